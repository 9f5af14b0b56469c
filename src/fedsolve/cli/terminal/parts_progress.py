"""Progress of an experiment on standard error: a bar for each of its parts."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fedsolve.cli.terminal.console import say
from fedsolve.core.errors import Interrupted
from fedsolve.folders.files import STOP, locked


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
