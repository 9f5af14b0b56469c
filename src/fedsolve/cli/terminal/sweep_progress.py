"""Progress of a sweep, on standard error: a bar on a terminal, short plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from fedsolve.cli.terminal.console import say, visible
from fedsolve.results.metrics import duration

if TYPE_CHECKING:
    from fedsolve.engine.progress import SweepProgress

_SECONDS_BETWEEN_LINES = 5.0


class SweepLines:
    """Plain lines, at most one every few seconds. Call it with each `SweepProgress`; `last` is the latest."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.last: SweepProgress | None = None
        self._printed = float("-inf")
        self._estimated = False
        self._start: tuple[float, int] | None = None
        self._noted: set[str] = set()

    def __enter__(self) -> SweepLines:
        self.note("preparing")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __call__(self, progress: SweepProgress) -> None:
        """The sweep has come further."""
        if self.last is None:
            self.begin(progress)
        moved = self.last is not None and progress.done > self.last.done
        self.last = progress
        for note in progress.notes:
            if note not in self._noted:
                self._noted.add(note)
                self.remark(note)
        if self._start is None and moved:  # what went before held compilation
            self._start = time.monotonic(), progress.done
        if moved:
            self.advance(progress)

    def begin(self, progress: SweepProgress) -> None:
        """All is checked, and it is known how much there is to do: the rounds are compiled."""
        self.note("compiling")

    def remark(self, text: str) -> None:
        """Something to be known of the sweep."""
        say(f"note: {text}")

    def note(self, text: str) -> None:
        """Say how it goes."""
        say(f"{self.label}: {text}")

    def advance(self, progress: SweepProgress) -> None:
        """Show how far it is."""
        left = self._left(progress)
        first = bool(left) and not self._estimated  # how long it takes is said as soon as it is known
        if first or time.monotonic() - self._printed >= _SECONDS_BETWEEN_LINES:
            self._printed, self._estimated = time.monotonic(), bool(left)
            self.note(f"{how_far(progress)}, {self.standing(progress)}")

    def standing(self, progress: SweepProgress) -> str:
        """Trials that diverged, and the time left."""
        return ", ".join(filter(None, (f"{progress.diverged} diverged", self._left(progress))))

    def _left(self, progress: SweepProgress) -> str:
        if self._start is None:
            return ""
        begun, before = self._start
        if progress.done <= before:
            return ""
        rate = (progress.done - before) / max(time.monotonic() - begun, 1e-9)
        return f"about {duration((progress.total - progress.done) / rate)} left"


class SweepBar(SweepLines):
    """One bar."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} trial-rounds", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        self._bars = Progress(*columns, console=Console(stderr=True), refresh_per_second=5)
        self._bar = self._bars.add_task(visible(label), total=1, note="")

    def __enter__(self) -> SweepLines:
        self._bars.start()
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        self._bars.stop()

    def begin(self, progress: SweepProgress) -> None:
        """See `SweepLines`."""
        super().begin(progress)
        self._bars.update(self._bar, completed=progress.done, total=progress.total)

    def remark(self, text: str) -> None:
        """See `SweepLines`."""
        self._bars.console.print(visible(f"note: {text}"), markup=False, highlight=False)

    def note(self, text: str) -> None:
        """See `SweepLines`."""
        self._bars.update(self._bar, note=visible(text))

    def advance(self, progress: SweepProgress) -> None:
        """See `SweepLines`."""
        standing = self.standing(progress)
        self._bars.update(self._bar, completed=progress.done, total=progress.total, note=visible(standing))


def how_far(progress: SweepProgress | None) -> str:
    """Lane-rounds done of all, in words."""
    return "no round" if progress is None else f"{progress.done:,} of {progress.total:,} trial-rounds"


def open_sweep_display(label: str) -> SweepLines:
    """A bar if standard error is a terminal, else lines."""
    if sys.stderr.isatty():
        from rich.console import Console

        if not Console(stderr=True).is_dumb_terminal:
            return SweepBar(label)
    return SweepLines(label)
