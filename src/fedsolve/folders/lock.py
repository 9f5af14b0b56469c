"""Holding a folder for one run, so that no second writes into it, and noticing when it is gone."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.untrusted import open_regular

_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_PATIENCE = 0.2  # seconds: one that only looks (`held`) has the lock for a moment


@dataclass(frozen=True)
class Hold:
    """A folder that is held, known by the file that its lock is on; without one another process holds it."""

    folder: Path
    file: os.stat_result | None

    def check(self) -> None:
        """See that the folder is still the one that was held.

        Raises:
            InvalidInput: it was removed, or another stands in its place.
        """
        try:
            here = os.stat(self.folder / ".lock")
        except OSError:
            here = None
        if here is None or self.file is None or not os.path.samestat(here, self.file):
            raise InvalidInput(
                f"{self.folder} was removed or replaced while it was written to: nothing more is saved; start again"
            )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[Hold]:
    """Hold a folder for one run; the lock ends with the process, however it ends.

    On a file system that knows no locks a warning says so, and the folder is used without.

    Raises:
        InvalidInput: the folder cannot be written, or another process holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open_regular(folder / ".lock", "ab", follow=False)
    except OSError as error:
        raise InvalidInput(
            f"cannot write to {folder}: {error.strerror or error}; choose another folder"
        ) from None
    with file:
        try:
            _take(file)
        except OSError as error:
            if error.errno in _HELD:
                raise InvalidInput(
                    f"{folder} is in use by another run: wait for it or choose another folder"
                ) from None
            warnings.warn(
                f"{folder} lies on a file system without locks ({error.strerror}): do not start a second run in it",
                stacklevel=3,
            )
        yield Hold(folder, os.fstat(file.fileno()))


def held(folder: Path) -> bool:
    """Whether a process holds a folder; False where that cannot be known."""
    try:
        with open_regular(folder / ".lock", follow=False) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # for a moment: it ends with the file
    except OSError as error:
        return error.errno in _HELD
    return False


def held_within(folder: Path) -> set[Path]:
    """The folders that processes hold, of this one and those in it."""
    return {lock.parent for lock in folder.rglob(".lock") if held(lock.parent)}


def _take(file: IO[bytes]) -> None:
    """The lock of an open file; OSError if another has it for longer than it takes to look."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in _HELD or time.monotonic() > until:
                raise
            time.sleep(_PATIENCE / 10)
