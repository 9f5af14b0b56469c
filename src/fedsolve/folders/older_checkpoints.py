"""The checkpoints before the newest: that of the save before, for the day on which the newest cannot be read, and two
older ones, for the day on which a model turns out to be spoiled.

An older one has the rounds done in its name, and is a second name of the same file: it costs no writing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.files import errors_of_writing

INTACT = "the checkpoint is intact: free space and resume"
"""What errors say of a file that cannot be written, beside the checkpoint."""
_NAME = "checkpoint-round-"


class OlderCheckpoints:
    """Those of one folder.

    Attributes:
        source: the checkpoint that is gone on from: the newest, unless an older one had to be taken.
        notice: one line if an older one was taken, else "".
    """

    def __init__(self, newest: Path, previous: str) -> None:
        self._newest, self._previous = newest, newest.with_name(previous)
        self._left = [self._previous, *self.by_round().values()]
        self.source, self.notice = newest, ""

    @property
    def any_exists(self) -> bool:
        """Whether there is one that can be gone on from."""
        return any(path.exists() for path in self._left)

    def by_round(self) -> dict[int, Path]:
        """The two older ones by their rounds done, the newest first."""
        found = {
            path.stem.removeprefix(_NAME): path for path in self._newest.parent.glob(f"{_NAME}*.safetensors")
        }
        return {int(n): found[n] for n in sorted((n for n in found if n.isdecimal()), key=int, reverse=True)}

    def fall_back(self, error: InvalidInput, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """The manifest of the next older one that `read` takes; `error` if there is none."""
        while self._left:
            path = self._left.pop(0)
            with contextlib.suppress(InvalidInput):
                manifest = read(path)
                which = "the checkpoint before it" if path == self._previous else path.name
                self.notice = f"{error}; {which} is taken, of round {manifest['round']}"
                self.source = path
                return manifest
        raise error

    def add(self, done: int | None) -> None:
        """The newest, about to be replaced, becomes the one before, and stays by its rounds done, unless None.

        Raises:
            InvalidInput: the folder cannot be written.
        """
        # else the newest is the one that could not be read
        if self.source == self._newest and self._newest.exists():
            _link(self._newest, self._previous)
            if done is not None:
                _link(self._newest, self._newest.with_name(f"{_NAME}{done}.safetensors"))
                for path in list(self.by_round().values())[2:]:
                    path.unlink(missing_ok=True)

    def replaced(self, done: int) -> None:
        """The newest was written, of so many rounds; those that have more are of before the run went back, and go."""
        for rounds, path in self.by_round().items():
            if rounds > done:
                path.unlink(missing_ok=True)
        self.source = self._newest

    def how_to_go_back(self, round: int) -> str:
        """How a run is gone on with from before an update that was used in a round, counted from 1."""
        kept = self.by_round()
        good = next((path for done, path in kept.items() if done < round), None)
        if good is None:
            return "no checkpoint is older: start anew without that client"
        newer = [self._newest, self._previous, *(path for done, path in kept.items() if done >= round)]
        names = ", ".join(path.name for path in newer)
        return f"to go on from {good.name}, which is older, remove {names} and resume without that client"


def _link(source: Path, target: Path) -> None:
    """Give a file a second name; a file that has this name goes."""
    with errors_of_writing(target, INTACT):
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:  # a file system without links
            shutil.copyfile(source, target)
