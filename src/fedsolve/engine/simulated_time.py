"""A run on the clock of a fleet: its cohorts and times, worked out before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from fedsolve.core.algorithm import Algorithm, declares, name_of
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.fleets import Fleet, Timeline, asynchronous, profile, synchronous
from fedsolve.core.sampling import Sampling, Uniform
from fedsolve.core.types import Scalar, module, static
from fedsolve.engine.checks.methods import Traffic
from fedsolve.engine.compute.layout import free_bytes
from fedsolve.engine.options import RunOptions

_BLOCK = 2**20  # places of cohorts that are drawn at once


@module
class Scheduled(Sampling):
    """Cohorts that were worked out ahead, a row for each server update, those present first.

    `versions`: the update whose broadcast each began with, `()` where all have the newest; each row has somebody if
    `never_empty`.
    """

    ids: Int[Array, "updates size"]
    present: Bool[Array, "updates size"]
    versions: Any = ()
    never_empty: bool = static(default=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def size(self) -> int:
        return self.ids.shape[1]

    def draw(self, key: Array, round: Scalar, population: int) -> tuple[Array, Array]:
        return self.ids[round], self.present[round]

    def at_best(self, population: int) -> float:
        return int(np.asarray(self.present).sum(axis=1).max())

    def started(self, round: Scalar) -> Any:
        """Whose messages an update takes, and the update whose broadcast each began with."""
        return None if isinstance(self.versions, tuple) else (self.ids[round], self.versions[round])


@dataclass(frozen=True)
class Timed:
    """What the clock makes of a run: when its updates are done, who counts in them, and how many broadcasts are kept.

    `asks` is the sampling as it was given, `sent` a client's bytes; of `depth` 0 all begin with the newest model.
    """

    timeline: Timeline
    sampling: Sampling
    asks: Sampling
    sent: Traffic
    depth: int = 0


def with_versions(algorithm: Algorithm, timed: Timed | None) -> Algorithm:
    """The method with the last broadcasts around it, where clients at work began with them."""
    return algorithm if timed is None or not timed.depth else algorithm.with_versions(timed.depth)


def fleet_of(systems: Fleet | str, population: int, seed: int) -> Fleet:
    fleet = profile(systems, population, seed) if isinstance(systems, str) else systems
    if not isinstance(fleet, Fleet):
        raise InvalidInput(
            f"systems = {shown(systems)} must be a fs.systems.Fleet or a name such as 'stragglers'"
        )
    if fleet.clients != population:
        raise InvalidInput(
            f"systems has {fleet.clients} clients, the task {population}: give one of {population}"
        )
    return fleet


def schedule_cohorts(
    fleet: Fleet,
    algorithm: Algorithm,
    sampling: Sampling,
    options: RunOptions,
    key: Array,
    steps: np.ndarray,
    sent: Traffic,
) -> Timed:
    # where the clock only measures, cohorts are drawn by `sampling` inside the program as ever, and no bit of
    # the model changes; where it chooses (a quorum, a deadline, dropouts, a trace) they are written down here
    # steps: local steps of each client, shape (clients,)
    # sent: bytes of a client; of a message with several lengths the longest counts
    population = len(steps)
    check_outermost(algorithm)
    if fleet.available is not None and not isinstance(sampling, Uniform):
        raise InvalidInput(
            f"systems has an availability trace, from which clients are drawn uniformly: give clients_per_round "
            f"in place of sampling = {type(sampling).__name__}"
        )
    seconds = fleet.task_seconds(steps, sent.down, max(sent.up), algorithm.traits.overlap)
    joules = fleet.task_joules(steps, sent.down, max(sent.up))
    if algorithm.traits.buffer:
        return _asynchronous(fleet, algorithm, sampling, options, seconds, joules, sent)
    first = jax.eval_shape(partial(sampling.draw, population=population), key, jnp.int32(0))[0]
    cohorts = (_cohorts(sampling, key, population, len(first), options), len(first))
    ends = {"quorum": options.quorum, "deadline": options.deadline}
    timeline = synchronous(fleet, seconds, cohorts, options.rounds, options.seed, **ends, joules=joules)
    if timeline.ids is None or timeline.present is None:
        return Timed(timeline, sampling, sampling, sent)
    if not timeline.present.any():
        raise InvalidInput(_nobody(fleet, options, seconds))
    scheduled = Scheduled(
        jnp.asarray(timeline.ids),
        jnp.asarray(timeline.present),
        never_empty=bool(timeline.present.any(axis=1).all()),
    )
    algorithm.check(scheduled, population)
    return Timed(timeline, scheduled, sampling, sent)


def _nobody(fleet: Fleet, options: RunOptions, seconds: np.ndarray) -> str:
    # why no message of a run is in time
    soonest = float(seconds.min())
    if options.deadline is not None and soonest > options.deadline:
        return (
            f"deadline = {options.deadline}: no client takes part in any round, as the quickest task takes "
            f"{soonest:.3g} s: give more"
        )
    return (
        f"systems: no client takes part in any of the {options.rounds} rounds, as all that are asked drop out or are "
        "late: run more rounds, or give fewer dropouts or more time"
    )


def check_outermost(algorithm: Algorithm, where: str = "with systems") -> None:
    """Raise `InvalidInput` for what is around a late method: it would see messages that are weighed already."""
    inner = getattr(algorithm, "inner", None)
    while inner is not None:
        if declares(inner, "buffer") and inner.traits.buffer:
            raise InvalidInput(
                f"{name_of(algorithm)}: {where}, {name_of(inner)} must be the outermost wrapper: put "
                f"{type(algorithm).__name__} inside it; models with buffers, such as BatchNorm's, are not supported"
            )
        inner = getattr(inner, "inner", None)


def _asynchronous(
    fleet: Fleet,
    algorithm: Algorithm,
    sampling: Sampling,
    options: RunOptions,
    seconds: np.ndarray,
    joules: np.ndarray | None,
    sent: Traffic,
) -> Timed:
    # the updates of a method whose clients come when they come
    at_work = _at_work(algorithm, sampling, options)
    timeline = asynchronous(
        fleet, seconds, options.rounds, options.seed, buffer=algorithm.traits.buffer, concurrency=at_work,
        joules=joules,
    )  # fmt: skip
    return _scheduled(timeline, algorithm, sampling, len(seconds), sent)


def _at_work(algorithm: Algorithm, sampling: Sampling, options: RunOptions) -> int:
    # the number of clients at work at a time; options of synchronous rounds are refused
    name = name_of(algorithm)
    if not isinstance(sampling, Uniform):
        raise InvalidInput(
            f"{name} draws clients uniformly, one after another: give clients_per_round, the number that train at "
            f"a time, in place of sampling = {type(sampling).__name__}"
        )
    for option in ("quorum", "deadline"):
        if getattr(options, option) is not None:
            raise InvalidInput(f"{name} has no rounds that a {option} could end: leave {option} out")
    return sampling.size


def _scheduled(
    timeline: Timeline, algorithm: Algorithm, sampling: Sampling, population: int, sent: Traffic
) -> Timed:
    # what a timeline of late messages makes of a run
    ids, versions = np.asarray(timeline.ids), np.asarray(timeline.versions)
    latest = int((np.arange(len(versions))[:, None] - versions).max())
    # the least power of two above it: more rounds are mostly the same program
    depth = 2 ** latest.bit_length()
    if depth * sent.down > free_bytes():
        raise InvalidInput(
            f"{name_of(algorithm)}: a message is {latest} updates late, and {depth} models of {sent.down:,} bytes "
            f"are more than the {free_bytes() / 1e9:.1f} GB that are free: take fewer clients_per_round or a larger "
            "buffer"
        )
    scheduled = Scheduled(
        jnp.asarray(ids), jnp.ones(ids.shape, bool), jnp.asarray(versions), never_empty=True
    )
    algorithm.check(scheduled, population)
    return Timed(timeline, scheduled, sampling, sent, depth)


def _cohorts(
    sampling: Sampling, key: Array, population: int, size: int, options: RunOptions
) -> Callable[[int, np.ndarray | None], np.ndarray]:
    # (round, who is there or None) -> the clients that it asks: as the program draws them, or among those there
    block = min(options.rounds, max(1, _BLOCK // size))
    drawn: tuple[int, np.ndarray, np.ndarray] = (-1, np.zeros(0), np.zeros(0))

    def draw(t: int, there: np.ndarray | None) -> np.ndarray:
        nonlocal drawn
        if there is not None:
            random = np.random.default_rng((options.seed, 0xA5CED, t))
            return random.permutation(np.flatnonzero(there))[:size]
        if drawn[0] != t // block:
            rounds = jnp.arange(t // block * block, (t // block + 1) * block, dtype=jnp.int32)
            ids, present = _draws(sampling, key, rounds, population)
            drawn = (t // block, np.asarray(ids), np.asarray(present))
        _, ids, present = drawn
        return ids[t % block][present[t % block]]

    return draw


@partial(jax.jit, static_argnums=3)
def _draws(sampling: Sampling, key: Array, rounds: Array, population: int) -> Any:
    # the cohorts of some rounds, as `fedsolve.engine.compute.round` draws them
    return jax.vmap(lambda t: sampling.draw(jax.random.fold_in(key, t), t, population))(rounds)
