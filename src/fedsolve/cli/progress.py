"""Progress of methods and of an experiment's parts, on standard error: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from fedsolve.cli.console import say, visible
from fedsolve.core.errors import Interrupted
from fedsolve.engine.progress import Display, Progress
from fedsolve.folders.files import STOP, locked


class Lines(Display):
    """Progress of methods as plain lines, with the remarks that come up."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._noted: set[str] = set()

    def __call__(self, at: Progress) -> None:
        for note in at.notes:
            if note not in self._noted:
                self._noted.add(note)
                self.write(f"note: {note}")
        super().__call__(at)

    def write(self, text: str) -> None:
        say(text)


class Bars(Lines):
    """One bar a method, and one for all together where there are several."""

    seconds_between = 0.0

    def __init__(self, labels: Sequence[str], rounds: int | None) -> None:
        super().__init__()
        self._rounds = rounds
        self._ended: set[Any] = set()
        self._progress = _bars(20)
        self._bars: dict[str, Any] = {
            label: self._progress.add_task(visible(label), total=rounds, note="waiting", start=False)
            for label in labels
        }
        self._all = None
        if rounds is not None and len(labels) > 1:
            self._all = self._progress.add_task("all methods", total=rounds * len(labels), note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def begin(self, label: str, doing: str = "preparing") -> None:
        super().begin(label, doing)
        self._progress.start_task(self._bars[label])

    def write(self, text: str) -> None:
        self._progress.console.print(visible(text), markup=False, highlight=False)

    def note(self, label: str, text: str) -> None:
        self._progress.update(self._bars[label], note=visible(text))

    def show(self, at: Progress, speed: str) -> None:
        # the bar has the rounds, and a column the time
        seed = at.where.split(",")[0] if at.by_seed else ""
        self._progress.update(self._bars[at.label], total=at.total)
        self._move(at.label, at.done, ", ".join(filter(None, (seed, at.words, speed))))

    def end(self, label: str, text: str, done: bool = True) -> None:
        # full if the method finished; it stands still either way
        self._ended.add(self._bars[label])
        self._move(label, self._rounds if done else None, text)
        self._progress.stop_task(self._bars[label])

    def _move(self, label: str, round: int | None, text: str) -> None:
        self._progress.update(self._bars[label], completed=round, note=visible(text))
        if self._all is not None:
            tasks = [t for t in self._progress.tasks if t.id != self._all]
            total = sum((t.total or 0) if t.id in self._ended else t.completed for t in tasks)
            self._progress.update(self._all, completed=total)


def _bars(width: int) -> Any:
    # bars of a width, with what counts beside them, the time and a note
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=width),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    return Progress(*columns, console=Console(stderr=True), refresh_per_second=5)


def open_display(labels: Sequence[str], rounds: int | None) -> Lines:
    """What shows the progress of methods of so many rounds; of a sweep, whose first progress says how many, None."""
    if not sys.stderr.isatty():
        return Lines()
    from rich.console import Console

    return Lines() if Console(stderr=True).is_dumb_terminal else Bars(labels, rounds)


# Progress of an experiment on standard error: a bar for each of its parts.


class PartsProgress(ExitStack):
    """Called with each part that has come further; raises `Interrupted` once a file in the folder asks to stop.

    It holds the folder from the first call on, which comes only once it is known that the experiment can run.
    """

    def __init__(self, folder: Path, title: str, takes: str) -> None:
        super().__init__()
        self._folder = folder
        self._announced = f"{title}: {takes}{', ' if takes else ''}into {folder}"
        self._bars = _bars(40)
        self._rows: dict[str, Any] = {}

    def __call__(self, part: str, done: int, total: int) -> None:
        if not self._rows:
            self._begin()
        if part not in self._rows:
            self._rows[part] = self._bars.add_task(part, total=total, note="")
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
