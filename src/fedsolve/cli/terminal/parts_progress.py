"""How far the parts of an experiment are: bars in the terminal, the file that a page follows, and the wish to stop."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedsolve.cli.terminal.console import say
from fedsolve.cli.terminal.progress_file import ProgressFile
from fedsolve.cli.watch.commands import watched
from fedsolve.core.errors import Interrupted
from fedsolve.folders.interrupt import STOP
from fedsolve.folders.lock import locked

_COLUMNS = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))


class PartsProgress(contextlib.ExitStack):
    """Called with each part that has come further. It holds the folder from the first call on, which comes only once it
    is known that the experiment can run.

    Args:
        folder: of the experiment's results.
        title: the experiment's.
        takes: about how long it takes, in words.
        watch: whether to open the page that follows it.

    Raises:
        Interrupted: when called, if the folder holds a file that asks to stop.
    """

    def __init__(self, folder: Path, title: str, takes: str, watch: bool) -> None:
        super().__init__()
        self._folder, self._watch = folder, watch
        self._announced = f"{title}: {takes}, into {folder}"
        self._bars = Progress(*_COLUMNS, TimeElapsedColumn(), console=Console(stderr=True))
        self._rows: dict[str, TaskID] = {}
        self._file = ProgressFile(folder, title)

    def __call__(self, part: str, done: int, total: int) -> None:
        """A part has come further."""
        if not self._rows:
            self._begin()
        if part not in self._rows:
            self._rows[part] = self._bars.add_task(part, total=total)
            if not self._bars.console.is_terminal:
                say(part)
        self._bars.update(self._rows[part], completed=done, total=total)
        self._file(part, done, total)
        if (self._folder / STOP).exists():
            (self._folder / STOP).unlink()
            raise Interrupted("stopped")

    def finished(self) -> None:
        """The experiment has run to its end: nothing is under way any more."""
        self._file.remove()

    def _begin(self) -> None:
        self.enter_context(locked(self._folder))
        (self._folder / STOP).unlink(missing_ok=True)
        say(self._announced)
        self.enter_context(watched(self._folder, self._watch))
        self._bars.start()
        self.callback(self._bars.stop)
