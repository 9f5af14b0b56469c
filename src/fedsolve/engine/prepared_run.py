"""A run made ready: what its rounds need beside its evaluation, and what it is known by."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core import trees
from fedsolve.core.algorithm import ASSUMED, Algorithm, name_of
from fedsolve.core.sampling import Sampling
from fedsolve.core.types import reports
from fedsolve.data.stored import StoredData
from fedsolve.engine.checks.losses import built_in
from fedsolve.engine.checks.methods import check_round, divergence_hint, largest_value, rates
from fedsolve.engine.compute.clients import PackedClients
from fedsolve.engine.compute.round import RunState, compiled_advance, on_all_devices, one_round
from fedsolve.engine.compute.sharding import Program, several
from fedsolve.engine.evaluation.evaluate import RunEvaluation
from fedsolve.engine.identity import arrays_digest, code_digest, function_name, versions
from fedsolve.engine.options import RunOptions
from fedsolve.engine.reacting import changes, reacted, reacts
from fedsolve.engine.record import Recorder, Traffic
from fedsolve.tasks.task import Task

_NOBODY = "no client took part in any round: the model is the initial one"


@dataclass(frozen=True, kw_only=True)
class PreparedRun(RunEvaluation):
    """A run made ready: arguments checked, data on the device, the program chosen.

    Attributes, beside those of its evaluation:
        sampling: with all numbers in the run's type.
        label: the method's name in tables.
        method: the method as a person writes it.
        options: of the run, with every default filled in.
        program: what is static in a compiled round.
        packed: all clients' examples; of a few where clients are streamed.
        shared: the same on every device that trains, here and in other processes.
        state: what the first round begins with.
        key: of all rounds.
        traffic: bytes of a broadcast and of a message.
        identity: what a checkpoint must share with the run that continues it.
        remarks: what is to be said of the run whatever happens.
    """

    sampling: Sampling
    label: str
    method: str
    options: RunOptions
    program: Program
    packed: PackedClients
    shared: PackedClients
    state: RunState
    key: Any
    traffic: Traffic
    identity: dict[str, Any]
    remarks: tuple[str, ...]

    @property
    def rounds(self) -> int:
        """Rounds of the whole run."""
        return self.options.rounds

    @property
    def eval_every(self) -> int:
        """Rounds between evaluations."""
        return self.options.eval_every or self.options.rounds

    @property
    def dtype(self) -> Any:
        """The run's floating-point type."""
        return jnp.dtype(self.options.dtype)

    @property
    def settings(self) -> dict[str, Any]:
        """What the record says the run was: its identity, its length and how often it was evaluated."""
        return {
            **self.identity,
            "algorithm": self.method,
            "rounds": self.rounds,
            "eval_every": self.eval_every,
        }

    @property
    def first_model(self) -> Any:
        """The initial model as the loss takes it, with frozen leaves and buffers."""
        return self.packed.first_model(self.params, self.task.buffers)

    def digests(self) -> dict[str, Any]:
        """What else decides a bit of the results: a checkpoint shares it, too, with the run that continues it."""
        task = self.task
        return {
            "versions": f"python {sys.version_info.major}.{sys.version_info.minor}, {versions()}",
            "sizes": arrays_digest(task.data.counts),
            "data": task.data.digest
            if isinstance(task.data, StoredData)
            else arrays_digest(task.data.examples),
            "test": arrays_digest(task.test),
            **({} if task.validation is None else {"held_out": arrays_digest(task.validation)}),
            **({} if task.unseen is None else {"unseen": arrays_digest(task.unseen.examples)}),
            "start": arrays_digest(self.first_model),
            "loss": function_name(task.loss),
            "metrics": ", ".join(f"{name} {function_name(f)}" for name, f in task.metrics.items()),
            "diagnostics": code_digest(self.diagnostics),
            "eval_examples": task.eval_examples,
            "code": code_digest(self.algorithm, self.sampling if self.timed is None else self.timed.asks),
        }

    def most_rounds(self, done: int) -> int:
        """Rounds of one call at most, after so many."""
        most = self.program.capacity
        return most if self.stream is None else min(most, self.stream.rounds_from(done))

    def advance(self, state: RunState, rounds: int) -> tuple[RunState, dict[str, np.ndarray]]:
        """So many rounds from a state on, at most `most_rounds`, in one compiled call, and their logs."""
        packed = self.shared
        if self.stream is not None:
            packed, state = self.stream.enter(state)
        inputs = self._inputs(packed)
        try:
            state, logs = compiled_advance(self.program.on_one_core)(*inputs, state, np.int32(rounds))
        except TypeError:  # a shape or type that changes is said plainly
            check_round(partial(on_all_devices, one_round, *inputs), state)
            raise
        return state, {name: log[:rounds] for name, log in trees.on_host(logs).items()}

    def compile(self) -> None:
        """Compile the rounds, unless that is done; the first call finds them."""
        compiled_advance(self.program.on_one_core).lower(
            *self._inputs(self.shared), self.state, np.int32(1)
        ).compile()

    def _inputs(self, packed: PackedClients) -> tuple[Any, ...]:
        return (self.program, self.algorithm, self.sampling, packed, self.key)

    def reacted(self, recorder: Recorder, stop: int) -> PreparedRun:
        """The run with the rates of the rounds until `stop`, where some react to evaluations; else itself."""
        if not reacts(self.algorithm):
            return self
        seen = recorder.evaluations.arrays()
        return replace(self, algorithm=reacted(self.algorithm, seen, self.versions, stop))

    @property
    def versions(self) -> int:
        """Broadcasts with which clients at work may have begun."""
        return 1 if self.timed is None else max(1, self.timed.depth)

    def warnings(self, recorder: Recorder) -> tuple[str, ...]:
        """What the server's reports and the dropped updates give reason to say."""
        lines = [*self.remarks]
        if self.algorithm.traits.secret_cohorts:
            lines.append(
                f"{ASSUMED}: here they follow from the seed, in a deployment from a key that stays on the server"
            )
        lines += [w for name, (_, w) in reports(self.state.server).items() if w and recorder.any(name)]
        losses = recorder.evaluations.arrays()["train_loss"]
        if np.isfinite(losses[0]) and not np.isfinite(losses[-1]):
            known = rates(self.algorithm, max(0, recorder.rounds.count - 1))
            why = divergence_hint(
                losses[0], known, largest_value(self.packed.examples), name_of(self.algorithm)
            )
            lines.append(f"the last train_loss is {losses[-1]}, of a model that is finite{why}")
        if recorder.rounds.count and not recorder.any("participants"):
            lines.append(_NOBODY)
        if dropped := recorder.total("dropped"):
            lines.append(f"{dropped} updates were not finite and left out")
        lines += changes(self.algorithm, recorder.evaluations.arrays())
        return tuple(lines)


# A run's rounds, compiled in a thread while its initial model is evaluated, which needs no Python.
#
# Nothing but JAX's caches is filled: a run that finds its program there is the run that would compile it. So whatever
# fails here is left to the run, which says so. Only fedsolve's own models, losses and methods are traced beside
# others: code of a user may count its calls, or draw from NumPy's generator.


@contextlib.contextmanager
def compiled_meanwhile(prepared: PreparedRun) -> Iterator[None]:
    """Compile the rounds of a run while its initial model is evaluated."""
    if prepared.stream is not None or several() or not is_ours(prepared.task, prepared.algorithm):
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        pool.submit(copy_context().run, _compile, prepared)  # whose clock counts it
        yield


def is_ours(task: Task, algorithm: Algorithm) -> bool:
    """Whether what a run traces is fedsolve's own code alone."""
    parts = (getattr(task.init, "__self__", None), task.loss, *task.metrics.values())
    return type(algorithm).__module__.startswith("fedsolve.") and all(built_in(part) for part in parts)


def _compile(prepared: PreparedRun) -> None:
    # each thread has its own types
    with contextlib.suppress(Exception), jax.enable_x64(prepared.options.dtype == "float64"):
        prepared.compile()
