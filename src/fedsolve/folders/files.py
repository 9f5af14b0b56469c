"""Writing a file so that a reader, or a crash, never meets half of it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import re
import secrets
import signal
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from fedsolve.core.errors import InvalidInput, check_path
from fedsolve.folders.untrusted import open_regular

_REMEDY = "what was saved before is intact: free space or choose another folder"
INTACT = "the checkpoint is intact: free space and resume"
"""What errors say of a file that cannot be written, beside the checkpoint."""
_PROCESS_START = time.time()
_HOST = f"{zlib.crc32(platform.node().encode()):08x}"
_TEMPORARY = re.compile(r"\..+\.([0-9a-f]{8})-(\d+)-[0-9a-f]{8}\.part")
_A_DAY = 24 * 3600.0
_cleared: set[Path] = set()


def write_atomically(path: str | Path, content: str | bytes, *, private: bool = False) -> Path:
    """Write `content` (text as UTF-8) in place of `path`, which stays until then; `private`: mode 0600."""
    data = content.encode() if isinstance(content, str) else content
    return replace_atomically(path, lambda new: new.write_bytes(data), private=private)


def replace_atomically(path: str | Path, write: Callable[[Path], Any], *, private: bool = False) -> Path:
    """Likewise with what `write` writes to the file that it is given."""
    path = check_path("path", path)
    if path.is_dir():
        raise InvalidInput(f"cannot write to {path}: it is a folder; give a file's path")
    temporary = path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{secrets.token_hex(4)}.part")
    with errors_of_writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path.parent)
        # created with its mode, not changed to it later: nobody can open a private file in between
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if private else 0o666))
        try:
            write(temporary)
            # on the disk before it takes the old one's place: a crash after the rename finds a whole file
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def errors_of_writing(path: Path, remedy: str = _REMEDY) -> Iterator[None]:
    """Raise `InvalidInput` in place of the system's errors while `path` is written; `remedy` says what is left."""
    try:
        yield
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror or error}; {remedy}") from None


def _remove_abandoned(folder: Path) -> None:
    # what killed processes left half-written, once for each process and folder
    if folder.absolute() in _cleared:
        return
    _cleared.add(folder.absolute())
    for entry in os.scandir(folder):
        match = _TEMPORARY.fullmatch(entry.name)
        if match is None:
            continue
        with contextlib.suppress(OSError):  # another process clears it, too, or it is not ours to remove
            if _is_abandoned(match[1], int(match[2]), entry.stat().st_mtime):
                os.unlink(entry)


def _is_abandoned(host: str, process: int, written: float) -> bool:
    # its process is dead, or it is a day old
    if time.time() - written > _A_DAY:
        return True
    if host != _HOST:
        return False
    # process ids come again
    if process == os.getpid():  # of a process before this one that had the same number
        return written < _PROCESS_START
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def slug(label: str) -> str:
    """A label as the name of a folder.

    >>> slug("FedAvg, lr 0.1")
    'FedAvg-lr-0.1'
    """
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", label).strip("-.")[:80] or "method"


# Holding a folder for one run, so that no second writes into it, and noticing when it is gone.

_LOCKED = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_PATIENCE = 0.2  # seconds: one that only looks (`is_locked`) has the lock for a moment


@dataclass(frozen=True)
class FolderLock:
    """A folder that is held, known by the file that its lock is on; without one another process holds it."""

    folder: Path
    file: os.stat_result | None

    def check(self) -> None:
        """Raise `InvalidInput` if the folder was removed since, or another stands in its place."""
        try:
            here = os.stat(self.folder / ".lock")
        except OSError:
            here = None
        if here is None or self.file is None or not os.path.samestat(here, self.file):
            raise InvalidInput(
                f"{self.folder} was removed or replaced while it was written to: nothing more is saved; start again"
            )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[FolderLock]:
    """Hold a folder for one run; the lock ends with the process, however it ends."""
    # On a file system that knows no locks a warning says so, and the folder is used without.
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # opened to append: another run's lock file is not emptied
        file = open_regular(folder / ".lock", "ab", follow=False)
    except OSError as error:
        raise InvalidInput(
            f"cannot write to {folder}: {error.strerror or error}; choose another folder"
        ) from None
    with file:
        try:
            _acquire(file)
        except OSError as error:
            if error.errno in _LOCKED:
                raise InvalidInput(
                    f"{folder} is in use by another run: wait for it or choose another folder"
                ) from None
            warnings.warn(
                f"{folder} lies on a file system without locks ({error.strerror}): do not start a second run in it",
                stacklevel=3,
            )
        yield FolderLock(folder, os.fstat(file.fileno()))


def is_locked(folder: Path) -> bool:
    # False where that cannot be known
    try:
        with open_regular(folder / ".lock", follow=False) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # for a moment: it ends with the file
    except OSError as error:
        return error.errno in _LOCKED
    return False


def locked_within(folder: Path) -> set[Path]:
    return {lock.parent for lock in folder.rglob(".lock") if is_locked(lock.parent)}


def _acquire(file: IO[bytes]) -> None:
    # who only looks has the lock for a moment: wait for longer than that
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in _LOCKED or time.monotonic() > until:
                raise
            time.sleep(_PATIENCE / 10)


# What asks a run to save and stop after the current compiled call: Ctrl-C, or a file in its folder.
#
# A second Ctrl-C stops at once. The file is how another process asks, such as `fedsolve stop`.

_SECONDS_BETWEEN = 0.5
STOP = "stop"
"""The file that asks the run of its folder to stop; who is asked removes it."""


def stop_within(folder: Path) -> None:
    """Ask what runs in a folder, or in those in it, to save and stop, and wait until it has."""
    running, asked = locked_within(folder), set[Path]()
    if not running:
        raise InvalidInput(f"nothing runs in {folder}: give the folder of a run whose rounds have begun")
    while running:  # asked again: a comparison may hold its folder before a method of it does
        for place in running - {parent for each in running for parent in each.parents}:
            write_atomically(place / STOP, "")
            asked.add(place)
        time.sleep(_SECONDS_BETWEEN)
        running = locked_within(folder)
    for place in asked:
        (place / STOP).unlink(missing_ok=True)


_innermost: ContextVar[Interruptible | None] = ContextVar("innermost", default=None)


class Interruptible:
    """While entered, the first SIGINT or SIGTERM, and a file `STOP` in the folder, set `stop_requested`."""

    # So does what asks the block around it, which a signal asks as well. A `shared` file is not its own to remove.

    def __init__(self, folder: Path | None = None, *, shared: bool = False) -> None:
        self._file = None if folder is None else folder / STOP
        self._own = None if shared else self._file
        self.signalled, self._around = False, _innermost.get()
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Interruptible:
        self._remove()  # one that was meant for an earlier run
        _innermost.set(self)
        if threading.current_thread() is threading.main_thread():
            self._old = {s: signal.signal(s, self._on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc: Any) -> None:
        _innermost.set(self._around)
        self._remove()
        self._restore()

    @property
    def stop_requested(self) -> bool:
        around = self._around is not None and self._around.stop_requested
        return around or self.signalled or (self._file is not None and self._file.exists())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signalled = True
        self._restore()
        if self._around is not None:
            self._around._on_signal(number, frame)

    def _restore(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}

    def _remove(self) -> None:
        if self._own is not None:
            self._own.unlink(missing_ok=True)
