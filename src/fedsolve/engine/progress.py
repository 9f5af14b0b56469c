"""How far a run or a sweep is, and the line on standard error that shows it from Python, rewritten in a terminal.

fs.run(method, task, rounds=500, progress=True)
FedAvg: round 320 of 500, test accuracy 93.1 %, training loss 0.21, 160 a second, 1 s left
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO, cast

from fedsolve.core.errors import InvalidInput, shown
from fedsolve.engine.compute.processes import is_first
from fedsolve.results.metrics import duration, summary

_SECONDS_REWRITTEN = 0.2
_SECONDS_BETWEEN_LINES = 5.0


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


@dataclass(frozen=True)
class SweepProgress:
    """Where a sweep stands.

    Attributes:
        label: the method's name.
        done, total: rounds of trials (a setting with a seed); those that diverged count as done.
        diverged: trials that have diverged so far.
        notes: remarks, such as that the grid runs in parts.
    """

    label: str
    done: int
    total: int
    diverged: int
    notes: tuple[str, ...] = ()

    def line(self) -> tuple[str, int, int, str]:
        """Label, rounds done and to do of all trials, and all else in words."""
        return self.label, self.done, self.total, f"{self.diverged} diverged" if self.diverged else ""


@dataclass
class ProgressLine:
    """The line; a file gets a new one every few seconds.

    Attributes:
        stream: what is written to.
        rewritten: whether a line takes the place of the one before.
    """

    stream: TextIO
    rewritten: bool
    _begun: tuple[float, int] | None = None
    _written: float = float("-inf")
    _width: int = field(default=0)

    def __call__(self, at: Any) -> None:
        """Show a run's or a sweep's progress."""
        self.show(*at.line())

    def begin(self, label: str) -> None:
        """Data are read and everything is checked first."""
        self._write(f"{label}: preparing")

    def compiling(self, label: str) -> None:
        """All is checked; the rounds are compiled, which takes seconds."""
        self._write(f"{label}: compiling")

    def show(self, label: str, done: int, total: int, words: str) -> None:
        """What runs is so far; the rate is told once there are two looks at it."""
        now = time.monotonic()
        if self._begun is None:  # the first call holds the compilation
            self._begun = (now, done)
        wait = _SECONDS_REWRITTEN if self.rewritten else _SECONDS_BETWEEN_LINES
        if done < total and now - self._written < wait:
            return
        self._written = now
        since, first = self._begun
        parts = [f"{label}: round {done:,} of {total:,}", words]
        if done > first and now > since:
            rate = (done - first) / (now - since)
            parts += [
                f"{rate:.3g} a second",
                f"{duration((total - done) / rate)} left" if done < total else "done",
            ]
        self._write(", ".join(part for part in parts if part))

    def end(self) -> None:
        """Leave the line as it stands: what is written next begins below it."""
        if self._width:
            self.stream.write("\n")
            self._width = 0

    def _write(self, text: str) -> None:
        if self.rewritten:
            self.stream.write(f"\r{text.ljust(self._width)}")
            self._width = len(text)
        else:
            self.stream.write(f"{text}\n")
        self.stream.flush()


@contextlib.contextmanager
def progress_to(progress: Any, label: str) -> Iterator[Callable[[Any], None] | None]:
    """What is called with the progress of a run: the function given, one that writes the line for True, or None.

    Args:
        progress: as a user gave it.
        label: the run's name, until its first progress tells it.

    Raises:
        InvalidInput: `progress` is something else.
    """
    if progress is None or progress is False or (progress is True and not is_first()):
        yield None
    elif progress is True:
        live = sys.stderr.isatty() or "ipykernel" in sys.modules
        line = ProgressLine(sys.stderr, live)
        try:
            line.begin(label)
            yield line
        finally:
            line.end()
    elif callable(progress):
        yield cast(Callable[[Any], None], progress)
    else:
        raise InvalidInput(f"progress = {shown(progress)} must be True or a function")


def tell_compiling(progress: object, label: str) -> None:
    """Tell a progress that shows it that all checks of a run are done and its rounds are compiled next."""
    compiling = getattr(progress, "compiling", None)
    if compiling is not None:
        compiling(label)
