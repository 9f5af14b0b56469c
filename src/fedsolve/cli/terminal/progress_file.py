"""How far a sweep or an experiment is, as a file in its folder that a page can follow; runs have a record instead."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsolve.cli.terminal.console import say
from fedsolve.core.errors import Interrupted, InvalidInput
from fedsolve.folders.files import write_atomically
from fedsolve.folders.interrupt import STOP
from fedsolve.folders.lock import locked
from fedsolve.folders.untrusted import MALFORMED, loads, read_text

PROGRESS = "progress.json"
_SECONDS_BETWEEN = 2.0
_LARGEST = 2**16
_KINDS = {"title": (str,), "part": (str,), "done": (int,), "total": (int,), "seconds": (int, float)}


@dataclass(frozen=True)
class Progressed:
    """How far it is.

    Attributes:
        title: what runs.
        part: which part of it is under way, "" if it has none.
        done, total: of that part.
        seconds: since the part began in this process.
    """

    title: str
    part: str
    done: int
    total: int
    seconds: float


class ProgressFile:
    """The file of one folder, written at most every two seconds and when a part ends."""

    def __init__(self, folder: Path, title: str) -> None:
        self._path, self._title = folder / PROGRESS, title
        self._written = float("-inf")
        self._part, self._begun = "", time.monotonic()

    def __call__(self, part: str, done: int, total: int) -> None:
        """A part has come further."""
        now = time.monotonic()
        if part != self._part:
            self._part, self._begun = part, now
        if done < total and now - self._written < _SECONDS_BETWEEN:
            return
        self._written = now
        at = Progressed(self._title, part, done, total, now - self._begun)
        write_atomically(self._path, json.dumps(asdict(at)))

    def remove(self) -> None:
        """It has ended: what it leaves says so."""
        self._path.unlink(missing_ok=True)


def read_progress(folder: Path) -> Progressed | None:
    """What the file of a folder says; None where there is none.

    Raises:
        InvalidInput: it is damaged.
    """
    path = folder / PROGRESS
    try:
        facts = loads(read_text(path, _LARGEST, follow=False))
        if set(facts) != set(_KINDS) or any(not isinstance(facts[k], kinds) for k, kinds in _KINDS.items()):
            raise ValueError("it has other facts")
        return Progressed(**facts)
    except FileNotFoundError:
        return None
    except (OSError, *MALFORMED) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from None


class PartsProgress(ExitStack):
    """Called with each part that has come further. It holds the folder from the first call on, which comes only once it
    is known that the experiment can run.

    Args:
        folder: of the experiment's results.
        title: the experiment's.
        takes: about how long it takes, in words; "" where that is not known.
        page: what serves the page that follows it meanwhile.

    Raises:
        Interrupted: when called, if the folder holds a file that asks to stop.
    """

    def __init__(self, folder: Path, title: str, takes: str, page: AbstractContextManager[None]) -> None:
        super().__init__()
        self._folder, self._page = folder, page
        self._announced = f"{title}: {takes}{', ' if takes else ''}into {folder}"
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
        self._bars = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
        self._rows: dict[str, Any] = {}
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
        self.enter_context(self._page)
        self._bars.start()
        self.callback(self._bars.stop)
