"""One row of the page that follows runs: a run, the seeds of a method, a comparison, a sweep or a study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedsolve.cli.terminal.folders import TRIALS
from fedsolve.cli.terminal.progress_file import Progressed
from fedsolve.core.errors import InvalidInput
from fedsolve.folders.files import write_atomically
from fedsolve.folders.interrupt import STOP
from fedsolve.results.history import History


@dataclass(frozen=True)
class Watched:
    """A run as it stands, or several as one: the seeds of a method, or the methods of a comparison.

    Attributes:
        name: its folder below the one that is watched, "." for that itself.
        folder: its folder.
        label, task: as tables have them.
        status: running, finished, diverged, waiting, stopped or unreadable.
        history: its record so far, None if there is none.
        rounds: how many it shall do, None where that is not known.
        message: why it diverged or cannot be read, or which part is under way.
        progress: how far what has no rounds is.
        page: the folder of its page, or of that of the comparison that it belongs to; None where there is none.
        parts: the runs of several seeds or methods.
        listed: whether its parts have rows of their own: those of a comparison.
    """

    name: str
    folder: Path
    label: str
    task: str = ""
    status: str = "unreadable"
    history: History | None = None
    rounds: int | None = None
    message: str = ""
    progress: Progressed | None = None
    page: Path | None = None
    parts: tuple[Watched, ...] = ()
    listed: bool = False

    @property
    def histories(self) -> tuple[History, ...]:
        """The records so far, of each seed; those of a comparison's methods are theirs."""
        if self.history is not None:
            return (self.history,)
        return () if self.listed else tuple(h for part in self.parts for h in part.histories)

    @property
    def every_history(self) -> tuple[History, ...]:
        """The records so far, those of a comparison's methods too."""
        return self.histories or tuple(h for part in self.parts for h in part.every_history)

    @property
    def shown(self) -> str:
        """Its name as a reader knows it."""
        return self.folder.name if self.name == "." else self.name

    @property
    def done(self) -> int:
        """Rounds done, or what is done of the part under way."""
        if self.progress is not None:
            return self.progress.done
        return 0 if self.history is None else len(self.history.rounds["round"])

    @property
    def total(self) -> int | None:
        """What there is to do, in the same unit."""
        return self.rounds if self.progress is None else self.progress.total

    @property
    def seconds_left(self) -> float | None:
        """Time left at the speed so far; None where it does not run or that is not known."""
        seconds = self.progress.seconds if self.progress else self.history.seconds if self.history else 0.0
        left = (self.total or 0) - self.done
        if self.status != "running" or not self.done or left <= 0 or seconds <= 0:
            return None
        return seconds * left / self.done

    def ask_to_stop(self) -> None:
        """Ask it to save and stop.

        Raises:
            InvalidInput: it does not run, or its folder cannot be written.
        """
        if self.status != "running":
            raise InvalidInput(f"{self.shown} is not running")
        if self.parts:
            for part in self.parts:
                if part.status == "running":
                    part.ask_to_stop()
            return
        trials = self.folder / TRIALS
        write_atomically((trials if trials.is_dir() else self.folder) / STOP, "")
