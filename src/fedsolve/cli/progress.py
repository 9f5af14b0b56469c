"""Progress of methods and of an experiment's parts, on standard error: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fedsolve.cli.console import say, visible
from fedsolve.core.errors import Interrupted
from fedsolve.folders.files import STOP, locked

if TYPE_CHECKING:
    from fedsolve.engine.progress import Progress


SECONDS_BETWEEN_LINES = 5.0
_NEVER = float("-inf")


class Lines:
    """Progress of several methods as plain lines, at most one every few seconds for a method besides its first.

    Call it with each `Progress`; `last` is the latest of the current method.
    """

    last: Any = None
    _printed = _NEVER

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, label: str, doing: str = "preparing") -> None:
        """A method starts: what it does until its first progress, which is shown at once."""
        self.last, self._printed = None, _NEVER
        self.note(label, doing)

    def compiling(self, label: str) -> None:
        """All is checked; the rounds are compiled."""
        self.note(label, "compiling")

    def __call__(self, progress: Progress) -> None:
        """The current method has come further."""
        self.last = progress
        self.advance(progress)

    def where(self) -> str:
        """How far the current method is, in words."""
        if self.last is None:
            return "before its first round ended"
        return f"after {self.last.where}"

    def note(self, label: str, text: str) -> None:
        """Say something of a method."""
        say(f"{label}: {text}")

    def advance(self, progress: Progress) -> None:
        """Show how far a method is."""
        if time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            self.note(progress.label, f"{progress.where}, {progress.words}")

    def end(self, label: str, text: str, done: bool = True) -> None:
        """A method has ended: finished, or not (diverged)."""
        self.note(label, text)


class Bars(Lines):
    """One bar a method, and one for all together where there are several."""

    def __init__(self, labels: Sequence[str], rounds: int) -> None:
        from rich.progress import MofNCompleteColumn

        self._rounds = rounds
        self._ended: set[Any] = set()
        self._progress = rich_progress(20, MofNCompleteColumn())
        self._bars: dict[str, Any] = {
            label: self._progress.add_task(visible(label), total=rounds, note="waiting", start=False)
            for label in labels
        }
        self._all = (
            self._progress.add_task("all methods", total=rounds * len(labels), note="")
            if len(labels) > 1
            else None
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._progress.stop()

    def begin(self, label: str, doing: str = "preparing") -> None:
        """The clock of a method starts."""
        super().begin(label, doing)
        self._progress.start_task(self._bars[label])

    def note(self, label: str, text: str) -> None:
        """See `Lines`."""
        self._progress.update(self._bars[label], note=visible(text))

    def advance(self, progress: Progress) -> None:
        """See `Lines`."""
        seed = f"{progress.where.split(',')[0]}, " if progress.by_seed else ""
        self._move(progress.label, progress.done, f"{seed}{progress.words}")

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


def rich_progress(width: int, count: Any) -> Any:
    """Bars of a width, with what counts beside them, the time and a note."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=width),
        count,
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    return Progress(*columns, console=Console(stderr=True), refresh_per_second=5)


def has_bars() -> bool:
    """Whether standard error is a terminal that can show bars."""
    if not sys.stderr.isatty():
        return False
    from rich.console import Console

    return not Console(stderr=True).is_dumb_terminal


def open_display(labels: Sequence[str], rounds: int) -> Lines:
    """What shows the progress of methods of so many rounds."""
    return Bars(labels, rounds) if has_bars() else Lines()


# Progress of an experiment on standard error: a bar for each of its parts.


class PartsProgress(ExitStack):
    """Called with each part that has come further. It holds the folder from the first call on, which comes only once it
    is known that the experiment can run.

    Args:
        folder: of the experiment's results.
        title: the experiment's.
        takes: about how long it takes, in words; "" where that is not known.

    Raises:
        Interrupted: when called, if the folder holds a file that asks to stop.
    """

    def __init__(self, folder: Path, title: str, takes: str) -> None:
        super().__init__()
        self._folder = folder
        self._announced = f"{title}: {takes}{', ' if takes else ''}into {folder}"
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
        self._bars = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
        self._rows: dict[str, Any] = {}

    def __call__(self, part: str, done: int, total: int) -> None:
        """A part has come further."""
        if not self._rows:
            self._begin()
        if part not in self._rows:
            self._rows[part] = self._bars.add_task(part, total=total)
            if not self._bars.console.is_terminal:
                say(part)
        self._bars.update(self._rows[part], completed=done, total=total)
        if (self._folder / STOP).exists():
            (self._folder / STOP).unlink()
            raise Interrupted("stopped")

    def _begin(self) -> None:
        self.enter_context(locked(self._folder))
        (self._folder / STOP).unlink(missing_ok=True)
        say(self._announced)
        self._bars.start()
        self.callback(self._bars.stop)
