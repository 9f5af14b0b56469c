"""Progress of a sweep, on standard error: a bar on a terminal, short plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from fedsolve.cli.console import say, visible
from fedsolve.cli.progress import SECONDS_BETWEEN_LINES, Lines, has_bars, rich_progress
from fedsolve.engine.progress import SECONDS_OF_ESTIMATE
from fedsolve.results.metrics import duration

if TYPE_CHECKING:
    from fedsolve.engine.progress import SweepProgress


class SweepLines(Lines):
    """Progress of a sweep as plain lines."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._start: tuple[float, int] | None = None
        self._estimated = False
        self._noted: set[str] = set()

    def __enter__(self) -> Self:
        self.begin(self.label)
        return self

    def __call__(self, progress: SweepProgress) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The sweep has come further."""
        if self.last is None:
            self.counted(progress)
        moved = self.last is not None and progress.done > self.last.done
        self.last = progress
        for note in progress.notes:
            if note not in self._noted:
                self._noted.add(note)
                self.remark(f"note: {note}")
        if moved:
            if self._start is None:  # what went before held compilation
                self._start = time.monotonic(), progress.done
            self.advance(progress)

    def where(self) -> str:
        """Rounds of trials done of all, in words."""
        if self.last is None:
            return "no round"
        return f"{self.last.done:,} of {self.last.total:,} rounds of all trials"

    def counted(self, progress: SweepProgress) -> None:
        """It is known how much there is to do: the rounds are compiled."""
        self.compiling(self.label)

    def remark(self, text: str) -> None:
        """Something to be known of the sweep."""
        say(text)

    def advance(self, progress: SweepProgress) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Show how far it is; as soon as it is known, how long it takes."""
        left = self._left(progress)
        first = bool(left) and not self._estimated
        if first or time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed, self._estimated = time.monotonic(), bool(left)
            self.note(self.label, f"{self.where()}, {self.standing(progress)}")

    def standing(self, progress: SweepProgress) -> str:
        """Trials that diverged, and the time left."""
        return ", ".join(filter(None, (f"{progress.diverged} diverged", self._left(progress))))

    def _left(self, progress: SweepProgress) -> str:
        begun, before = self._start or (0.0, progress.done)
        spent = time.monotonic() - begun
        if progress.done <= before or spent < SECONDS_OF_ESTIMATE:
            return ""
        rate = (progress.done - before) / spent
        return f"about {duration((progress.total - progress.done) / rate)} left"


class SweepBar(SweepLines):
    """One bar."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        from rich.progress import TextColumn

        count = TextColumn("{task.completed:,.0f}/{task.total:,.0f} rounds of all trials", markup=False)
        self._bars = rich_progress(30, count)
        self._bar = self._bars.add_task(visible(label), total=1, note="")

    def __enter__(self) -> Self:
        self._bars.start()
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        self._bars.stop()

    def counted(self, progress: SweepProgress) -> None:
        """See `SweepLines`."""
        super().counted(progress)
        self._bars.update(self._bar, completed=progress.done, total=progress.total)

    def remark(self, text: str) -> None:
        """See `SweepLines`."""
        self._bars.console.print(visible(text), markup=False, highlight=False)

    def note(self, label: str, text: str) -> None:
        """See `Lines`."""
        self._bars.update(self._bar, note=visible(text))

    def advance(self, progress: SweepProgress) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See `SweepLines`."""
        self.note(self.label, self.standing(progress))
        self._bars.update(self._bar, completed=progress.done, total=progress.total)


def open_sweep_display(label: str) -> SweepLines:
    """What shows the progress of a sweep."""
    return SweepBar(label) if has_bars() else SweepLines(label)
