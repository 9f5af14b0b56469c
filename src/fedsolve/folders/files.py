"""Writing a file so that a reader, or a crash, never meets half of it."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedsolve.core.errors import InvalidInput, check_path

_REMEDY = "what was saved before is intact: free space or choose another folder"
_BEGUN = time.time()
_HOST = f"{zlib.crc32(platform.node().encode()):08x}"
_TEMPORARY = re.compile(r"\..+\.([0-9a-f]{8})-(\d+)-[0-9a-f]{8}\.part")
_A_DAY = 24 * 3600.0
_cleared: set[Path] = set()


def write_atomically(path: str | Path, content: str | bytes, *, private: bool = False) -> Path:
    """Write `content` (text as UTF-8) to `path`, creating its folder; an old file stays until then.

    Args:
        path: the file.
        content: what it shall hold.
        private: for its owner's eyes alone (mode 0600); else who may read it follows from the umask.

    Raises:
        InvalidInput: the disk is full, or the folder cannot be written; the old file is untouched.
    """
    data = content.encode() if isinstance(content, str) else content
    return replace_atomically(path, lambda new: new.write_bytes(data), private=private)


def replace_atomically(path: str | Path, write: Callable[[Path], Any], *, private: bool = False) -> Path:
    """Put what `write` writes to the file that it is given in the place of `path`, likewise.

    Raises:
        InvalidInput: the disk is full, or the folder cannot be written; the old file is untouched.
    """
    path = check_path("path", path)
    if path.is_dir():
        raise InvalidInput(f"cannot write to {path}: it is a folder; give a file's path")
    temporary = path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{secrets.token_hex(4)}.part")
    with errors_of_writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _clear(path.parent)
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if private else 0o666))
        try:
            write(temporary)
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


def _clear(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder, once for each process and folder."""
    if folder.absolute() in _cleared:
        return
    _cleared.add(folder.absolute())
    for entry in os.scandir(folder):
        match = _TEMPORARY.fullmatch(entry.name)
        if match is None:
            continue
        with contextlib.suppress(OSError):  # another process clears it, too, or it is not ours to remove
            if _left(match[1], int(match[2]), entry.stat().st_mtime):
                os.unlink(entry)


def _left(host: str, process: int, written: float) -> bool:
    """Whether nobody writes to a temporary file any more: its process is dead, or it is a day old."""
    if time.time() - written > _A_DAY:
        return True
    if host != _HOST:
        return False
    if process == os.getpid():  # of a process before this one that had the same number
        return written < _BEGUN
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
