"""The rounds of a run: compiled calls, their evaluations, their checkpoints, and a record of it all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsolve.core.buffers import WithBuffers, bare
from fedsolve.core.errors import Diverged
from fedsolve.core.types import Params
from fedsolve.engine.checks.divergence_hint import divergence_hint, largest_value, rates
from fedsolve.engine.checks.preflight import slope_is_finite
from fedsolve.engine.compute.processes import (
    broadcast_from_first,
    check_same,
    report_lost_process,
    several,
)
from fedsolve.engine.compute.round import RunState
from fedsolve.engine.compute.sharding.state_sharding import whole
from fedsolve.engine.evaluation.client_metrics import client_metrics
from fedsolve.engine.evaluation.client_models import ClientModels
from fedsolve.engine.evaluation.nonfinite_clients import first_evaluation, without_nonfinite_clients
from fedsolve.engine.loop import CompileClock, RecordedRounds, Stopwatch, loop
from fedsolve.engine.prepared_run import PreparedRun
from fedsolve.engine.progress import Progress, tell_compiling
from fedsolve.engine.records.checkpoint import Checkpoints
from fedsolve.engine.records.evaluation_setup import EvaluationSetup
from fedsolve.engine.records.record import Recorder
from fedsolve.engine.result import Result
from fedsolve.folders.files import Interruptible
from fedsolve.results.callbacks import Callback
from fedsolve.results.clients import ClientMetrics


def run_rounds(
    prepared: PreparedRun,
    out: str | Path | None,
    resume: bool,
    clock: CompileClock,
    interrupted: Callable[[], bool],
    progress: Callable[[Progress], None] | None,
    callbacks: Sequence[Callback],
) -> Result:
    """All rounds from where the checkpoint in a folder is, evaluated, recorded and saved on the way.

    Raises:
        InvalidInput: the folder cannot be used, or holds a run that differs.
        Diverged: a round in which every client's update was not finite, or a last model that is not.
        Interrupted: Ctrl-C, or `interrupted` said so, after the state was saved.
    """
    known = out is not None or several()
    identity = prepared.identity | prepared.digests() if known else {}
    check_same("configuration or data", identity)
    with (
        Checkpoints.at(
            out, identity, resume, prepared.stream, prepared.program.state_sharding
        ) as checkpoints,
        Interruptible(checkpoints.where) as interrupt,
        report_lost_process(checkpoints.where_is_last),
    ):
        run = RunRounds(prepared, checkpoints, clock, progress, callbacks)
        ended = loop(run, clock, lambda: interrupt.asked or interrupted())
        return run.result(run.seen, (ended,) if ended else ())


class RunRounds(RecordedRounds):
    """The rounds of a run, from where its checkpoint is.

    Attributes:
        prepared: the run, its method as it was given.
        state: what the next round begins with.
    """

    def __init__(
        self,
        prepared: PreparedRun,
        checkpoints: Checkpoints,
        clock: CompileClock,
        progress: Callable[[Progress], None] | None,
        callbacks: Sequence[Callback],
    ) -> None:
        self.rounds, self.eval_every, self.label = prepared.rounds, prepared.eval_every, prepared.label
        self.callbacks, self._checkpoints = callbacks, checkpoints
        self._clock, self._progress = clock, progress
        evaluated = EvaluationSetup.of(prepared.eval_every, prepared.algorithm, callbacks)
        self.state, self.recorder = checkpoints.restore(
            prepared.state, Recorder(), prepared.rounds, evaluated
        )
        self._done = int(self.state.round)
        check_same("round to go on from", self._done)
        self.prepared = replace(prepared, remarks=(*prepared.remarks, *checkpoints.moves))

    @property
    def done(self) -> int:
        """Rounds done."""
        return self._done

    @property
    def seen(self) -> RunState:
        """The state as evaluations see it: clients' states are there where these are models of their own."""
        prepared = self.prepared
        return whole(self.state, prepared.program.state_sharding, clients=prepared.has_own_models)

    @property
    def most_rounds(self) -> int:
        """Rounds of the next call at most: its logs have a row for each, and streamed clients are in memory."""
        return self.prepared.most_rounds(self._done)

    def begin(self) -> str:
        """Evaluate the initial model, unless a checkpoint goes on; why a callback ends the run here, or ''."""
        if self.recorder.evaluated:
            self.prepared = without_nonfinite_clients(self.prepared)
        else:
            self.prepared, metrics = first_evaluation(self.prepared, self.seen)
            self.recorder.evaluation(0, 0.0, broadcast_from_first(metrics))
        ended = self._react()
        self._watch = Stopwatch(self.recorder.seconds, self._clock)
        tell_compiling(self._progress, self.label)
        return ended

    def advance(self, rounds: int) -> dict[str, np.ndarray]:
        """So many rounds; their logs."""
        self.state, logs = self._now.advance(self.state, rounds)
        return logs

    def record(self, logs: dict[str, np.ndarray]) -> None:
        """Add the logs of the last call to the record.

        Raises:
            Diverged: no client returned a finite update, or the last model is not finite.
        """
        before, self._done = self._done, int(self.state.round)
        self.recorder.log(before, self._done, logs, self.prepared.traffic, self.prepared.timeline)
        self._check_alive(self.seen)

    def evaluate(self) -> str:
        """Evaluate the model; why a callback ends the run here, or ''."""
        metrics = broadcast_from_first(self.prepared.evaluate(self.seen))
        self.recorder.evaluation(self._done, self._watch.seconds, metrics)
        return self._react()

    def due(self, over: bool) -> bool:
        """Whether to save: after the last round, or some time after the last saving."""
        return over or self._checkpoints.due

    def save(self) -> None:
        """Save state and record, where there is a folder."""
        self.recorder.seconds = self._watch.seconds
        self._checkpoints.save(self.state, self.recorder)

    def report(self) -> None:
        """Tell the progress."""
        if self._progress is not None:
            self._progress(Progress(self.label, self._done, self.rounds, self.recorder.latest))

    def how_to_resume(self) -> str:
        """What an interrupted user is told."""
        return self._checkpoints.how_to_resume(self._done, self.rounds)

    def offered(self) -> tuple[Callable[[], Any], Callable[..., ClientMetrics]]:
        """The result so far, and the metrics of each client, of the present state."""
        state = self.seen
        return partial(self.result, state), partial(client_metrics, self.prepared, state)

    def result(self, state: RunState, notes: tuple[str, ...] = ()) -> Result:
        """The state's model and the record so far."""
        prepared, task = self.prepared, self.prepared.task
        notes = prepared.warnings(self.recorder) + notes
        history = self.recorder.history(self.label, task.name, prepared.settings, self._clock.seconds, notes)
        model = prepared.algorithm.export(state.server)
        buffers = model.buffers.given() if isinstance(model, WithBuffers) else None
        own = ClientModels.of(prepared, state)
        return Result(task.assemble(bare(model)), history, buffers, task.inference, prepared.timeline, own)

    def _react(self) -> str:
        """Let callbacks and rates react to the last evaluation; why a callback ends the run, or ''."""
        ended = self.why_they_end()
        self._now = self.prepared.reacted(self.recorder, self.next_evaluation)
        return ended

    def _check_alive(self, state: RunState) -> None:
        """Raise `Diverged` if no client returned a finite update, or the last model is not finite."""
        failed, run, recorder = int(state.failed), self._now, self.recorder
        if failed >= 0:
            what = "every client's update of {} is not finite"
        elif self._done == self.rounds and not _finite(run.algorithm.export(state.server)):
            failed, what = (
                self._done - 1,
                "the model of {} is not finite any more",
            )  # nobody trains from it to notice
        else:
            return
        nothing = {name: float("nan") for name in recorder.latest if name not in ("round", "seconds")}
        nothing |= run.clock(failed + 1)
        recorder.evaluation(failed + 1, recorder.latest["seconds"], nothing)
        history = recorder.history(self.label, run.task.name, run.settings, 0.0, ())
        known = rates(run.algorithm, failed)
        # the method's own, by what it measured
        if "server_lr" not in known and "server_lr" in history.rounds:
            known["last server_lr"] = recorder.last("server_lr")
        start = float(history.evaluations["train_loss"][0])
        fine = failed > 0 or slope_is_finite(run.task, run.packed)
        why = divergence_hint(start, known, largest_value(run.packed.examples), self.label, fine)
        where = self._checkpoints.where_is_last()
        raise Diverged(f"round {failed + 1}: {what.format(self.label)}{why}. {where}", history)


def _finite(model: Params) -> bool:
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(model))
