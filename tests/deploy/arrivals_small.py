"""Whose replies each update of an asynchronous run took, and the same updates repeated in `fs.run`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.fleets import Timeline, as_tasks
from fedsolve.core.types import module, static
from fedsolve.deploy.asynchronous import BufferedCoordinator
from fedsolve.engine import placement
from fedsolve.engine.compute import train
from fedsolve.engine.compute.casting import run_key
from fedsolve.engine.simulated_time import Scheduled, Timed
from fedsolve.results.record_files import leaves_by_path, read_history, read_model

Arrivals = dict[int, dict[int, int]]
"""Update, from 0 -> its clients in the order of their numbers, each with the version that it began with."""


def recorded(monkeypatch: pytest.MonkeyPatch) -> Arrivals:
    """What deployments write from now on; an update that is done again, after its server died, is written anew."""
    arrivals: Arrivals = {}
    finish = BufferedCoordinator.finish_round

    def finish_round(self: Any, accepted: Any, drawn: int) -> Any:
        arrivals[self.state.round] = {client: self.version_of(client) for client in sorted(accepted)}
        return finish(self, accepted, drawn)

    monkeypatch.setattr(BufferedCoordinator, "finish_round", finish_round)
    return arrivals


@module
class Repeated(Scheduled):
    """Cohorts that came so on a federation."""

    which: str = static(default="")
    """The arrivals in words: other ones are another program, as their keys are constants in it."""


def repeat(
    arrivals: Arrivals,
    algorithm: fs.Algorithm,
    problem: fs.Task,
    params: Any,
    monkeypatch: Any,
    dtype: Any,
    seed: int,
) -> fs.Result:
    """The run with these arrivals in the engine; a client's randomness follows from the version, as in a deployment."""
    ids, versions = (np.array([list(x) for x in rows], np.int32) for rows in _columns(arrivals))
    updates, size = ids.shape
    seconds = np.arange(1.0, updates + 1)
    timeline = Timeline(
        "arrivals", seconds, np.full(updates, size), np.zeros(updates), as_tasks([]), None, ids,
        np.ones(ids.shape, bool), versions,
    )  # fmt: skip
    oracle_of = train.client_oracle

    def schedule(
        fleet: Any, method: Any, sampling: Any, options: Any, key: Any, steps: Any, sent: Any
    ) -> Timed:
        there = (jnp.asarray(x) for x in (ids, np.ones(ids.shape, bool), versions))
        rows = Repeated(*there, never_empty=True, which=repr(arrivals))  # pyright: ignore[reportCallIssue]
        return Timed(
            timeline,
            rows,
            sampling,
            sent,
            2 ** int((np.arange(updates)[:, None] - versions).max()).bit_length(),
        )

    def client_oracle(work: Any, packed: Any, key: Any, number: Any, *given: Any) -> Any:
        keys = jax.vmap(lambda t: jax.random.fold_in(run_key(seed), t))(jnp.arange(updates))
        update = jnp.argmax((jax.random.key_data(keys) == jax.random.key_data(key)).all(axis=1))
        version = jnp.asarray(versions)[update, jnp.argmax(jnp.asarray(ids)[update] == number)]
        return oracle_of(work, packed, keys[version], number, *given)

    with monkeypatch.context() as patched:
        patched.setattr(placement, "schedule_cohorts", schedule)
        patched.setattr(train, "client_oracle", client_oracle)
        task = replace(problem, init=lambda key: params)
        return fs.run(
            algorithm, task, rounds=updates, systems="even", seed=seed, dtype=dtype, chunk=1, eval_every=1
        )


def _columns(arrivals: Arrivals) -> tuple[list[Any], list[Any]]:
    rows = [arrivals[t] for t in sorted(arrivals)]
    assert sorted(arrivals) == list(range(len(rows)))
    return [list(row) for row in rows], [list(row.values()) for row in rows]


def differences(folder: Path, result: fs.Result) -> list[str]:
    """What of a deployment's model and of its rounds' columns is not that of a run to the bit."""
    there, here = read_model(folder / "model.safetensors")[0], leaves_by_path(result.params)
    assert there.keys() == here.keys()
    found = [name for name, x in there.items() if x.tobytes() != np.asarray(here[name]).tobytes()]
    history = read_history(folder)
    assert history is not None
    mine, others = history.rounds, result.history.rounds
    of_messages = {"bytes_up", "bytes_down", "rejected", "asked", "waited", "time"}
    names = (mine.keys() & others.keys()) - of_messages
    assert {"round", "participants"} <= names
    return found + [
        name for name in sorted(names) if not np.array_equal(mine[name], others[name], equal_nan=True)
    ]
