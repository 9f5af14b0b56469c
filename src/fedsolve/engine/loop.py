"""The loop of rounds: compiled calls, evaluations, callbacks, checkpoints, and the clock."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsolve.core import gc_paused, trees
from fedsolve.core.buffers import WithBuffers, bare
from fedsolve.core.errors import Diverged, Interrupted
from fedsolve.core.types import Params
from fedsolve.core.xla.compiler import return_memory
from fedsolve.engine.checkpoint import Checkpoints
from fedsolve.engine.checks.methods import divergence_hint, largest_value, rates
from fedsolve.engine.checks.preflight import where_no_slope
from fedsolve.engine.compute.round import RunState
from fedsolve.engine.compute.sharding import (
    broadcast_from_first,
    check_same,
    is_first,
    process_allgather,
    report_lost_process,
    several,
    whole,
)
from fedsolve.engine.evaluation.client_metrics import (
    ClientModels,
    client_metrics,
    first_evaluation,
    without_nonfinite_clients,
)
from fedsolve.engine.prepare import PreparedRun
from fedsolve.engine.progress import Progress, tell_compiling
from fedsolve.engine.record import EvaluationSetup, Recorder
from fedsolve.engine.results import Result
from fedsolve.folders.files import Interruptible
from fedsolve.results.callbacks import Callback, Evaluated, stop_reason
from fedsolve.results.clients import ClientMetrics

_CALL_SECONDS = 1.0
_LARGE = 2**24  # bytes of a model
_clocks: ContextVar[tuple[CompileClock, ...]] = ContextVar("clocks", default=())
_listening = False


class CompileClock:
    """Counts what is compiled while it is entered, by its thread and those given its context; `seconds` so far."""

    # Tracing one function reports the functions inside it too: a report covers those that began after it.

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []  # begin and length, none inside another

    @property
    def seconds(self) -> float:
        return sum(length for _, length in self._spans)

    def add(self, end: float, length: float) -> None:
        while self._spans and self._spans[-1][0] >= end - length:
            self._spans.pop()
        self._spans.append((end - length, length))

    def __enter__(self) -> CompileClock:
        global _listening
        if not _listening:  # jax has no way to remove one listener, so one stays for the process
            jax.monitoring.register_event_duration_secs_listener(_on_duration)
            _listening = True
        self._before = _clocks.set((*_clocks.get(), self))
        return self

    def __exit__(self, *exc: Any) -> None:
        _clocks.reset(self._before)


def _on_duration(event: str, duration_secs: float, **_: Any) -> None:
    if event.startswith("/jax/core/compile/"):
        for clock in _clocks.get():
            clock.add(time.perf_counter(), duration_secs)


class Stopwatch:
    """Seconds of a run, without those that a clock counts as compilation."""

    def __init__(self, before: float, clock: CompileClock | None = None) -> None:
        # go on from the seconds that the run had taken `before` it was resumed
        self._clock = clock or CompileClock()
        self._begun = time.perf_counter() - before - self._clock.seconds

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._begun - self._clock.seconds


class CallLength:
    """Rounds of the next call, by what those before took; progress and Ctrl-C wait for no more than that."""

    def __init__(self, clock: CompileClock) -> None:
        self._clock = clock
        self._round_seconds: float | None = None

    def rounds(self, most: int) -> int:
        """Rounds of the next call: one while nothing is known, and never more than `most`."""
        if self._round_seconds is None:
            return 1
        return min(most, max(1, int(_CALL_SECONDS / self._round_seconds)))

    @contextlib.contextmanager
    def timed(self, rounds: int) -> Iterator[None]:
        """Time a call of so many rounds, without what it compiles."""
        begun, compiled = time.perf_counter(), self._clock.seconds
        yield
        spent = time.perf_counter() - begun - (self._clock.seconds - compiled)
        self._round_seconds = max(spent / rounds, 1e-6)


class Rounds(ABC):
    """Rounds under way: what `loop` asks of a run, of batches of a sweep, and of a deployment."""

    rounds: int
    eval_every: int

    @property
    @abstractmethod
    def done(self) -> int:
        """Rounds done."""

    @property
    def next_evaluation(self) -> int:
        """Rounds done at the next evaluation: they are evaluated every so often, and after the last."""
        return min(self.rounds, (self.done // self.eval_every + 1) * self.eval_every)

    @property
    def most_rounds(self) -> int:
        return self.rounds

    @abstractmethod
    def begin(self) -> str:
        """Evaluate the initial model, unless a checkpoint goes on; why a callback ends the rounds here, or ''."""

    @abstractmethod
    def advance(self, rounds: int) -> Any:
        """So many rounds; what `record` is given of them."""

    @abstractmethod
    def record(self, logs: Any) -> None:
        """Write down what the last call gave."""

    @abstractmethod
    def evaluate(self) -> str:
        """Evaluate the models after the last call; why a callback ends the rounds here, or ''."""

    @abstractmethod
    def due(self, over: bool) -> bool:
        """Whether it is time to save; `over` says that no round follows."""

    @abstractmethod
    def save(self) -> None:
        """Save all that the next rounds begin with, and the record."""

    @abstractmethod
    def report(self) -> None:
        """Tell who follows the rounds how far they are."""

    def how_to_resume(self) -> str:
        """What an interrupted user is told."""
        return ""


class RecordedRounds(Rounds):
    """Those of one method, which have a record, and callbacks that are told of their evaluations in order."""

    label: str
    callbacks: Sequence[Callback]
    recorder: Recorder

    @abstractmethod
    def callback_arguments(self) -> tuple[Callable[[], Any], Callable[..., ClientMetrics]]:
        """What a callback may ask for: the result so far, and the metrics of each client."""

    def why_they_end(self) -> str:
        """Why the rounds end at this evaluation, by the first callback that says so; "" if they go on."""
        # of several processes the first one calls them, and its answer is that of all
        why = self._first_answer() if is_first() else ""
        over = bool(process_allgather(bool(why))[0, 0])
        return why or ("ended by a callback of process 0" if over else "")

    def _first_answer(self) -> str:
        # resumed between two evaluations
        if not self.callbacks or self.recorder.latest["round"] != self.done:
            return ""
        columns = self.recorder.evaluations.arrays()
        return stop_reason(
            self.callbacks, Evaluated(self.label, self.done, self.rounds, columns, *self.callback_arguments())
        )


def loop(run: Rounds, clock: CompileClock, interrupted: Callable[[], bool]) -> str:
    """All rounds that are left, in calls of about a second; why a callback ended them early, "" if none did."""
    # what the clock and a signal decide is agreed upon among all processes
    with gc_paused():
        ended, length = run.begin(), CallLength(clock)
    while (done := run.done) < run.rounds and not ended:
        stop = run.next_evaluation
        count = int(process_allgather(length.rounds(min(stop - done, run.most_rounds)))[0, 0])
        with length.timed(count), gc_paused():
            logs = run.advance(count)
        run.record(logs)
        if done + count == stop:
            ended = run.evaluate()
        over = bool(ended) or run.done == run.rounds
        asked = bool(process_allgather(interrupted()).any())  # read once: what stops here has been saved
        if asked or run.due(over):
            run.save()
        run.report()
        if asked and not over:
            raise Interrupted(run.how_to_resume())
    return ended


# The rounds of a run: compiled calls, their evaluations, their checkpoints, and a record of it all.


@contextlib.contextmanager
def open_rounds(
    prepared: PreparedRun,
    out: str | Path | None,
    resume: bool,
    clock: CompileClock,
    progress: Callable[[Progress], None] | None,
    callbacks: Sequence[Callback],
) -> Iterator[tuple[SimulationLoop, Interruptible]]:
    """The rounds of a run from where the checkpoint in a folder is, and whether somebody asks them to stop."""
    # what decides the results must agree with the checkpoint, and among processes
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
        yield SimulationLoop(prepared, checkpoints, clock, progress, callbacks), interrupt


def run_rounds(
    prepared: PreparedRun,
    out: str | Path | None,
    resume: bool,
    clock: CompileClock,
    interrupted: Callable[[], bool],
    progress: Callable[[Progress], None] | None,
    callbacks: Sequence[Callback],
) -> Result:
    """All rounds of a run that others wait for: `interrupted` asks it to stop too."""
    with open_rounds(prepared, out, resume, clock, progress, callbacks) as (run, interrupt):
        return run.finished(loop(run, clock, lambda: interrupt.stop_requested or interrupted()))


class SimulationLoop(RecordedRounds):
    """The rounds of a run, from where its checkpoint is; `state` is what the next round begins with."""

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
        if self.recorder.evaluated:
            self.prepared = without_nonfinite_clients(self.prepared)
        else:
            self.prepared, metrics = first_evaluation(self.prepared, self.seen)
            self.recorder.evaluation(0, 0.0, broadcast_from_first(metrics))
        if trees.nbytes(self.prepared.params) > _LARGE:  # before rounds are compiled too
            return_memory()
        ended = self._react()
        self._watch = Stopwatch(self.recorder.seconds, self._clock)
        tell_compiling(self._progress, self.label)
        return ended

    def advance(self, rounds: int) -> dict[str, np.ndarray]:
        self.state, logs = self._now.advance(self.state, rounds)
        return logs

    def record(self, logs: dict[str, np.ndarray]) -> None:
        before, self._done = self._done, int(self.state.round)
        self.recorder.log(before, self._done, logs, self.prepared.traffic, self.prepared.timeline)
        self._check_alive(self.seen)

    def evaluate(self) -> str:
        metrics = broadcast_from_first(self.prepared.evaluate(self.seen))
        self.recorder.evaluation(self._done, self._watch.seconds, metrics)
        return self._react()

    def due(self, over: bool) -> bool:
        return over or self._checkpoints.due

    def save(self) -> None:
        self.recorder.seconds = self._watch.seconds
        self._checkpoints.save(self.state, self.recorder)

    def report(self) -> None:
        if self._progress is not None:
            self._progress(Progress(self.label, self._done, self.rounds, self.recorder.latest))

    def how_to_resume(self) -> str:
        return self._checkpoints.how_to_resume(self._done, self.rounds)

    def callback_arguments(self) -> tuple[Callable[[], Any], Callable[..., ClientMetrics]]:
        state = self.seen
        return partial(self.result, state), partial(client_metrics, self.prepared, state)

    def finished(self, ended: str) -> Result:
        """The result; `ended` says why a callback ended the rounds early, '' if none did."""
        return self.result(self.seen, (ended,) if ended else ())

    def result(self, state: RunState, notes: tuple[str, ...] = ()) -> Result:
        prepared, task = self.prepared, self.prepared.task
        notes = prepared.warnings(self.recorder) + notes
        history = self.recorder.history(self.label, task.name, prepared.settings, self._clock.seconds, notes)
        model = prepared.algorithm.export(state.server)
        buffers = model.buffers.given() if isinstance(model, WithBuffers) else None
        own = ClientModels.of(prepared, state)
        return Result(task.assemble(bare(model)), history, buffers, task.inference, prepared.timeline, own)

    def _react(self) -> str:
        # let callbacks and rates react to the last evaluation; why a callback ends the run, or ''
        ended = self.why_they_end()
        self._now = self.prepared.with_current_rates(self.recorder, self.next_evaluation)
        return ended

    def _check_alive(self, state: RunState) -> None:
        # raise `Diverged` if no client returned a finite update, or the last model is not finite
        failed, run, recorder = int(state.failed), self._now, self.recorder
        if failed >= 0:
            what = "every client's update of {} is not finite"
        elif self._done == self.rounds and not _finite(run.algorithm.export(state.server)):
            failed = self._done - 1  # nobody trains from it to notice
            what = "the model of {} is not finite any more"
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
        no_slope = None if failed > 0 else where_no_slope(run.task, run.packed)
        why = divergence_hint(start, known, largest_value(run.packed.examples), self.label, no_slope)
        where = self._checkpoints.where_is_last()
        raise Diverged(f"round {failed + 1}: {what.format(self.label)}{why}. {where}", history)


def _finite(model: Params) -> bool:
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(model))
