"""The loop of rounds of a run, of each of several seeds, of a sweep's trials and of a deployment; and its clock."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax

from fedsolve.core.errors import Interrupted
from fedsolve.core.xla.compiler import collection_paused
from fedsolve.engine.compute.processes import is_first, process_allgather
from fedsolve.engine.records.record import Recorder
from fedsolve.results.callbacks import Callback, Evaluated, stop_reason
from fedsolve.results.clients import ClientMetrics

_CALL_SECONDS = 1.0
_clocks: ContextVar[tuple[CompileClock, ...]] = ContextVar("clocks", default=())
_listening = False


class CompileClock:
    """Counts what is compiled while it is entered, by its thread and those given its context; `seconds` so far.

    Tracing one function reports the functions inside it too: a report covers those that began after it.
    """

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []  # begin and length, none inside another

    @property
    def seconds(self) -> float:
        """Seconds of compilation so far."""
        return sum(length for _, length in self._spans)

    def add(self, end: float, length: float) -> None:
        """Count a span of time that ended now."""
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
        """Go on from the seconds that the run had taken `before` it was resumed."""
        self._clock = clock or CompileClock()
        self._begun = time.perf_counter() - before - self._clock.seconds

    @property
    def seconds(self) -> float:
        """Seconds so far."""
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
    """Rounds under way: what `loop` asks of a run, of batches of a sweep, and of a deployment.

    Attributes:
        rounds: of all.
        eval_every: rounds between evaluations.
    """

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
        """Rounds of the next call at most."""
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
    """Those of one method, which have a record, and callbacks that are told of their evaluations.

    Attributes:
        label: the method's name.
        callbacks: called in their order after each evaluation.
        recorder: the record so far.
    """

    label: str
    callbacks: Sequence[Callback]
    recorder: Recorder

    @abstractmethod
    def offered(self) -> tuple[Callable[[], Any], Callable[..., ClientMetrics]]:
        """What a callback may ask for: the result so far, and the metrics of each client."""

    def why_they_end(self) -> str:
        """Why the rounds end at this evaluation, by the first callback that says so; "" if they go on.

        Of several processes the first one calls them, and its answer is that of all.
        """
        why = self._first_answer() if is_first() else ""
        over = bool(process_allgather(bool(why))[0, 0])
        return why or ("ended by a callback of process 0" if over else "")

    def _first_answer(self) -> str:
        # resumed between two evaluations
        if not self.callbacks or self.recorder.latest["round"] != self.done:
            return ""
        columns = self.recorder.evaluations.arrays()
        return stop_reason(
            self.callbacks, Evaluated(self.label, self.done, self.rounds, columns, *self.offered())
        )


def loop(run: Rounds, clock: CompileClock, interrupted: Callable[[], bool]) -> str:
    """All rounds that are left, in calls of about a second; why a callback ended them early, "" if none did.

    What the clock and a signal decide is agreed upon among all processes.

    Args:
        run: whose rounds.
        clock: counts what is compiled, which makes no call longer.
        interrupted: whether to save and stop after the current call.

    Raises:
        Interrupted: `interrupted` said so, after everything was saved.
    """
    with collection_paused():
        ended, length = run.begin(), CallLength(clock)
    while (done := run.done) < run.rounds and not ended:
        stop = run.next_evaluation
        count = int(process_allgather(length.rounds(min(stop - done, run.most_rounds)))[0, 0])
        with length.timed(count), collection_paused():
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
