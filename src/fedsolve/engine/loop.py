"""The loop of a run: compiled intervals, evaluation between them, checkpoints, and a record of it all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import numpy as np

from fedsolve.core.buffers import WithBuffers, bare
from fedsolve.core.errors import Diverged, Interrupted
from fedsolve.core.types import Params
from fedsolve.engine.checks.divergence_hint import divergence_hint, largest_value, rates
from fedsolve.engine.compute.processes import (
    broadcast_from_first,
    check_same,
    is_first,
    local_copy,
    process_allgather,
)
from fedsolve.engine.compute.round import RunState
from fedsolve.engine.evaluation.client_metrics import by_client
from fedsolve.engine.evaluation.nonfinite_clients import first_evaluation, without_nonfinite_clients
from fedsolve.engine.prepared_run import PreparedRun
from fedsolve.engine.records.checkpoint import Checkpoints
from fedsolve.engine.records.looks import Looks
from fedsolve.engine.records.record import Recorder
from fedsolve.engine.result import Result
from fedsolve.engine.timing import CallLength, CompileClock
from fedsolve.results.callbacks import Callback, Evaluated, why_it_ends
from fedsolve.results.metrics import summary


@dataclass(frozen=True)
class Progress:
    """Where a run stands: rounds done and to do, the latest evaluation, and more in words (a federation's replies)."""

    label: str
    round: int
    rounds: int
    metrics: dict[str, float]
    remark: str = ""

    def line(self) -> tuple[str, int, int, str]:
        """Label, rounds done and to do, and all else in words."""
        words = ", ".join(part for part in (summary(self.metrics), self.remark) if part)
        return self.label, self.round, self.rounds, words


def tell_compiling(progress: object, label: str) -> None:
    """Tell a progress that shows it that all checks of a run are done and its rounds are compiled next."""
    compiling = getattr(progress, "compiling", None)
    if compiling is not None:
        compiling(label)


def loop(
    prepared: PreparedRun,
    checkpoints: Checkpoints,
    clock: CompileClock,
    interrupted: Callable[[], bool],
    progress: Callable[[Progress], None] | None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """All rounds from where the checkpoint is, evaluated, recorded and saved on the way.

    Raises:
        Diverged: a round in which every client's update was not finite, or a last model that is not.
        Interrupted: `interrupted` said so, after the state was saved.
    """
    looks = Looks.of(prepared.eval_every, prepared.algorithm, callbacks)
    state, recorder = checkpoints.restore(prepared.state, Recorder(), prepared.rounds, looks)
    check_same("round to go on from", int(state.round))
    prepared = replace(prepared, remarks=(*prepared.remarks, *checkpoints.moves))
    if not recorder.evaluated:
        prepared, metrics = first_evaluation(prepared, local_copy(state))
        recorder.evaluation(0, 0.0, broadcast_from_first(metrics))
    else:
        prepared = without_nonfinite_clients(prepared)
    rounds, every, call_length = prepared.rounds, prepared.eval_every, CallLength(clock)
    ended = _ended(callbacks, prepared, local_copy(state), recorder, clock)
    now = prepared.reacted(recorder)
    begun = time.perf_counter() - recorder.seconds - clock.seconds  # compilation does not count
    tell_compiling(progress, prepared.label)
    while (done := int(state.round)) < rounds and not ended:
        stop = min(rounds, (done // every + 1) * every)
        count = int(process_allgather(call_length.rounds(min(stop - done, prepared.most_rounds(done))))[0, 0])
        with call_length.timed(count):
            state, logs = now.advance(state, count)
            new = int(state.round)
        seen = local_copy(state)
        recorder.log(done, new, logs, prepared.traffic, prepared.timeline)
        _check_alive(now, seen, recorder, checkpoints)
        if new == stop:
            metrics = broadcast_from_first(prepared.evaluate(seen))
            recorder.evaluation(new, time.perf_counter() - begun - clock.seconds, metrics)
            ended = _ended(callbacks, prepared, seen, recorder, clock)
            now = prepared.reacted(recorder)
        asked = bool(process_allgather(interrupted()).any())  # read once: what stops here has been saved
        if new == rounds or ended or asked or checkpoints.due:
            recorder.seconds = time.perf_counter() - begun - clock.seconds
            checkpoints.save(state, recorder)
        if progress is not None:
            progress(Progress(prepared.label, new, rounds, recorder.latest))
        if asked and new < rounds and not ended:
            raise Interrupted(checkpoints.how_to_resume(new, rounds))
    return _result(prepared, local_copy(state), recorder, clock, (ended,) if ended else ())


def _result(
    prepared: PreparedRun,
    state: RunState,
    recorder: Recorder,
    clock: CompileClock,
    notes: tuple[str, ...] = (),
) -> Result:
    """The state's model and the record so far."""
    notes = prepared.warnings(recorder) + notes
    history = recorder.history(prepared.label, prepared.task.name, prepared.settings, clock.seconds, notes)
    model = prepared.algorithm.export(state.server)
    buffers = model.buffers.given() if isinstance(model, WithBuffers) else None
    task = prepared.task
    return Result(task.assemble(bare(model)), history, buffers, task.module, prepared.timeline)


def _ended(
    callbacks: Sequence[Callback],
    prepared: PreparedRun,
    state: RunState,
    recorder: Recorder,
    clock: CompileClock,
) -> str:
    """Why the run ends at this evaluation, by the first callback that says so; "" if it goes on.

    Of several processes the first one calls them, and its answer is that of all.
    """
    why = _first_answer(callbacks, prepared, state, recorder, clock) if is_first() else ""
    over = bool(process_allgather(bool(why))[0, 0])
    return why or ("ended by a callback of process 0" if over else "")


def _first_answer(
    callbacks: Sequence[Callback],
    prepared: PreparedRun,
    state: RunState,
    recorder: Recorder,
    clock: CompileClock,
) -> str:
    done = int(state.round)
    if not callbacks or recorder.latest["round"] != done:  # resumed between two evaluations
        return ""
    at = Evaluated(
        prepared.label,
        done,
        prepared.rounds,
        recorder.evaluations.arrays(),
        lambda: _result(prepared, state, recorder, clock),
        partial(by_client, prepared, state),
    )
    return why_it_ends(callbacks, at)


def _check_alive(
    prepared: PreparedRun, state: RunState, recorder: Recorder, checkpoints: Checkpoints
) -> None:
    """Raise `Diverged` if no client returned a finite update, or the last model is not finite."""
    failed, done = int(state.failed), int(state.round)
    if failed >= 0:
        what = "every client's update of {} is not finite"
    elif done == prepared.rounds and not _finite(prepared.algorithm.export(state.server)):
        failed, what = done - 1, "the model of {} is not finite any more"  # nobody trains from it to notice
    else:
        return
    nothing = {name: float("nan") for name in recorder.latest if name not in ("round", "seconds")}
    nothing |= prepared.clock(failed + 1)
    recorder.evaluation(failed + 1, recorder.latest["seconds"], nothing)
    history = recorder.history(prepared.label, prepared.task.name, prepared.settings, 0.0, ())
    known = rates(prepared.algorithm, failed)
    if "server_lr" not in known and "server_lr" in history.rounds:  # the method's own, by what it measured
        known["last server_lr"] = recorder.last("server_lr")
    start = float(history.evaluations["train_loss"][0])
    why = divergence_hint(start, known, largest_value(prepared.packed.examples), prepared.label)
    text = f"round {failed + 1}: {what.format(prepared.label)}{why}. {checkpoints.where_is_last()}"
    raise Diverged(text, history)


def _finite(model: Params) -> bool:
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(model))
