"""Progress while methods run, on standard error: bars on a terminal, short plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fedsolve.cli.terminal.console import say, visible

if TYPE_CHECKING:
    from fedsolve.engine.progress import Progress

_SECONDS_BETWEEN_LINES = 5.0
_NEVER = float("-inf")


class ProgressDisplay(ABC):
    """Shows several methods; call it with each `Progress`. `last` is the latest of the current method."""

    last: Progress | None = None

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, label: str, doing: str = "preparing") -> None:
        """A method starts; what it does until its first progress."""
        self.last = None
        self.note(label, doing)

    def compiling(self, label: str) -> None:
        """All is checked; the rounds are compiled."""
        self.note(label, "compiling")

    def __call__(self, progress: Progress) -> None:
        """The current method has come further."""
        self.last = progress
        self.advance(progress)

    @abstractmethod
    def note(self, label: str, text: str) -> None:
        """Say something of a method."""

    @abstractmethod
    def advance(self, progress: Progress) -> None:
        """Show how far a method is."""

    @abstractmethod
    def end(self, label: str, text: str, done: bool = True) -> None:
        """A method has ended: finished, or not (diverged)."""


class Lines(ProgressDisplay):
    """Plain lines, at most one every few seconds for a method besides its first."""

    def __init__(self) -> None:
        self._printed = _NEVER

    def begin(self, label: str, doing: str = "preparing") -> None:
        """A method starts: its first progress is printed at once."""
        super().begin(label, doing)
        self._printed = _NEVER

    def note(self, label: str, text: str) -> None:
        """See `ProgressDisplay`."""
        say(f"{label}: {text}")

    def advance(self, progress: Progress) -> None:
        """See `ProgressDisplay`."""
        if time.monotonic() - self._printed >= _SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            self.note(progress.label, f"round {progress.round} of {progress.rounds}, {progress.line()[-1]}")

    def end(self, label: str, text: str, done: bool = True) -> None:
        """See `ProgressDisplay`."""
        self.note(label, text)


class Bars(ProgressDisplay):
    """One bar a method, and one for all together where there are several."""

    def __init__(self, labels: Sequence[str], rounds: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        columns = [
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        ]
        self._rounds = rounds
        self._ended: set[Any] = set()
        self._progress = RichProgress(*columns, console=Console(stderr=True), refresh_per_second=5)
        self._bars: dict[str, Any] = {
            label: self._progress.add_task(visible(label), total=rounds, note="waiting", start=False)
            for label in labels
        }
        self._all = (
            self._progress.add_task("all methods", total=rounds * len(labels), note="")
            if len(labels) > 1
            else None
        )

    def __enter__(self) -> ProgressDisplay:
        self._progress.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._progress.stop()

    def begin(self, label: str, doing: str = "preparing") -> None:
        """The clock of a method starts."""
        super().begin(label, doing)
        self._progress.start_task(self._bars[label])

    def note(self, label: str, text: str) -> None:
        """See `ProgressDisplay`."""
        self._progress.update(self._bars[label], note=visible(text))

    def advance(self, progress: Progress) -> None:
        """See `ProgressDisplay`."""
        self._move(progress.label, progress.round, progress.line()[-1])

    def end(self, label: str, text: str, done: bool = True) -> None:
        """The bar is full if the method finished; it stands still either way."""
        self._ended.add(self._bars[label])
        self._move(label, self._rounds if done else None, text)
        self._progress.stop_task(self._bars[label])

    def _move(self, label: str, round: int | None, text: str) -> None:
        self._progress.update(self._bars[label], completed=round, note=visible(text))
        if self._all is not None:
            tasks = [t for t in self._progress.tasks if t.id != self._all]
            total = sum(self._rounds if t.id in self._ended else t.completed for t in tasks)
            self._progress.update(self._all, completed=total)


def open_display(labels: Sequence[str], rounds: int) -> ProgressDisplay:
    """Bars if standard error is a terminal, else lines."""
    if sys.stderr.isatty():
        from rich.console import Console

        if not Console(stderr=True).is_dumb_terminal:
            return Bars(labels, rounds)
    return Lines()
