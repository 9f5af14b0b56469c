"""Making a run ready: what is asked for is resolved, placed and begun; and what its rounds need, `PreparedRun`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core import gc_paused, trees
from fedsolve.core.algorithm import SECRET_COHORT_NOTE, Algorithm, name_of
from fedsolve.core.fleets import PROFILES
from fedsolve.core.loss_checks import why_not_finite
from fedsolve.core.sampling import Sampling
from fedsolve.core.types import reports
from fedsolve.core.xla.compiler import clear_caches_near_mapping_limit, use_compile_cache
from fedsolve.data.stored import StoredData
from fedsolve.engine.checks.methods import Traffic, check_round, divergence_hint, largest_value, rates
from fedsolve.engine.checks.preflight import on_solvers, where_no_slope
from fedsolve.engine.compute.casting import in_run, start_params
from fedsolve.engine.compute.clients import PackedClients
from fedsolve.engine.compute.round import RunState, compiled_advance, on_all_devices, one_round, start
from fedsolve.engine.compute.sharding import Program, replicate
from fedsolve.engine.evaluation.eval_sets import choose_eval_sets
from fedsolve.engine.evaluation.evaluate import RunEvaluation
from fedsolve.engine.feedback_schedules import has_feedback, rate_changes, with_current_rates
from fedsolve.engine.identity import arrays_digest, as_written, code_digest, function_name, versions
from fedsolve.engine.options import RunOptions
from fedsolve.engine.placement import DeviceData, budget, plan, put_on_devices
from fedsolve.engine.record import Recorder
from fedsolve.engine.resolve import ResolvedRun, check_methods, choose_sampling, resolve
from fedsolve.tasks.task import Task

_NOBODY = "no client took part in any round: the model is the initial one"


@dataclass(frozen=True, kw_only=True)
class PreparedRun(RunEvaluation):
    """A run made ready: arguments checked, data on the device, the program chosen; beside what its evaluation has.

    `method` is the method as a person writes it, `options` have every default filled in, `packed` are all clients'
    examples (of a few where clients are streamed), `shared` is the same on every device that trains, here and in
    other processes, `state` what the first round begins with, `identity` what a checkpoint must share with the run
    that continues it.
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
        return self.options.rounds

    @property
    def eval_every(self) -> int:
        return self.options.eval_every or self.options.rounds

    @property
    def dtype(self) -> Any:
        return jnp.dtype(self.options.dtype)

    @property
    def settings(self) -> dict[str, Any]:
        """What the record says the run was: its identity, its length and how often it was evaluated."""
        return {
            **self.identity,
            "algorithm": self.method,
            "rounds": self.rounds,
            "eval_every": self.eval_every,
            **({} if self.options.start is None else {"start": self.options.start}),
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
        most = self.program.capacity
        return most if self.stream is None else min(most, self.stream.rounds_from(done))

    def advance(self, state: RunState, rounds: int) -> tuple[RunState, dict[str, np.ndarray]]:
        """So many rounds from a state on, at most `most_rounds`, in one compiled call, and their logs."""
        packed = self.shared
        if self.stream is not None:
            packed, state = self.stream.enter(state)
        inputs = (self.program, self.algorithm, self.sampling, packed, self.key)
        # what they raise leaves a program as it was raised
        loops: Any = getattr(self.task.loss, "loops", None)
        with nullcontext() if loops is None else loops.failing_plainly():
            try:
                state, logs = compiled_advance(self.program.on_one_core)(*inputs, state, np.int32(rounds))
            except TypeError:  # a shape or type that changes is said plainly
                check_round(partial(on_all_devices, one_round, *inputs), state)
                raise
            return state, {name: log[:rounds] for name, log in trees.on_host(logs).items()}

    def with_current_rates(self, recorder: Recorder, stop: int) -> PreparedRun:
        """The run with the rates of the rounds until `stop`, where some react to evaluations; else itself."""
        if not has_feedback(self.algorithm):
            return self
        seen = recorder.evaluations.arrays()
        return replace(self, algorithm=with_current_rates(self.algorithm, seen, self.versions, stop))

    @property
    def versions(self) -> int:
        """Broadcasts with which clients at work may have begun."""
        return 1 if self.timed is None else max(1, self.timed.depth)

    def warnings(self, recorder: Recorder) -> tuple[str, ...]:
        lines = [*self.remarks]
        if self.algorithm.traits.secret_cohorts:
            lines.append(
                f"{SECRET_COHORT_NOTE}: here they follow from the seed, in a deployment from a key that stays on the "
                "server"
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
            where = where_no_slope(self.task, self.packed)
            why = why_not_finite(0.0, where is None, where or "")
            lines.append(f"{dropped} updates were not finite and left out{f': {why}' if why else ''}")
        lines += rate_changes(self.algorithm, recorder.evaluations.arrays())
        notes = getattr(getattr(self.task.loss, "loops", None), "notes", {})
        return (*lines, *(f"client {client}: {note}" for note, client in notes.items()))


# Making a run ready in five steps: what is asked for, where it lies, its program, its memory, its start.

_OWN = (
    "clients of {} have models of their own: metrics of training examples, and of validation examples of theirs, are "
    "of these; a test set and unseen clients are measured with the server's model"
)
_NOBODY_LATE = "no systems were given: nobody is late, and a round of {} is synchronous, of all whom it draws"


def check_all_begin(algorithms: Iterable[Algorithm], task: Task, options: RunOptions) -> None:
    """Raise `InvalidInput` unless each method can begin on the task: before the first of several is run."""
    sampling, dtype = choose_sampling(options, task), jnp.dtype(options.dtype)
    with jax.enable_x64(options.dtype == "float64"):
        params = start_params(task, options.seed, dtype)
        for algorithm in algorithms:
            check_methods([algorithm], sampling, task)
            jax.eval_shape(in_run(algorithm, task, dtype).init, params)


@gc_paused()
def prepare(algorithm: Algorithm, task: Task, options: RunOptions, label: str | None = None) -> PreparedRun:
    """A run made ready; call it with 64-bit types enabled where the run's type needs them."""
    use_compile_cache()
    clear_caches_near_mapping_limit()
    resolved = resolve(algorithm, task, options, label)
    placed = put_on_devices(resolved)
    sets, on_sets = choose_eval_sets(resolved, placed)
    planned = plan(resolved, placed)
    memory = budget(placed, planned)
    clients = placed.clients
    state = start(planned.algorithm, placed.params, task.data.num_clients, planned.program, memory.slots)
    # what is evaluated in parts is one model, which lies whole on each device
    if not (planned.program.is_sharded or planned.algorithm.traits.personal):
        sets = sets.sharded_over(resolved.mesh, task.loss, clients.first_model(placed.params, task.buffers))
    # a stream copies its own window to the devices in each round
    on_one_device = resolved.mesh.size == 1 or planned.stream is not None
    return PreparedRun(
        algorithm=planned.algorithm,
        sampling=planned.sampling,
        task=task,
        label=resolved.label,
        method=as_written(resolved.algorithm),
        options=resolved.options,
        program=planned.program,
        packed=clients,
        shared=clients if on_one_device else replicate(clients, resolved.mesh),
        stream=planned.stream,
        params=placed.params,
        state=state,
        key=placed.key,
        traffic=planned.traffic,
        timed=planned.timed,
        identity=resolved.identity | planned.identity,
        remarks=(
            *task.notes,
            *resolved.remarks,
            *placed.remarks,
            *([memory.remark] if memory.remark else []),
            *on_sets,
            *_on_method(resolved, placed),
        ),
        **vars(sets),
    )


def _on_method(resolved: ResolvedRun, placed: DeviceData) -> Iterator[str]:
    # what is to be said of the method, the fleet that it is on or is not on, and its solver
    algorithm, options = placed.algorithm, resolved.options
    if algorithm.traits.personal:
        yield _OWN.format(name_of(algorithm))
    if options.systems is None and algorithm.traits.buffer:
        yield _NOBODY_LATE.format(name_of(algorithm))
    if isinstance(options.systems, str):
        yield f"time is on the clock of the fleet {options.systems} ({PROFILES[options.systems].source})"
    yield from on_solvers(algorithm, placed.params, int(resolved.steps.max()), options.rounds)
