"""Writing a file so that a reader, or a crash, never meets half of it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedsolve.errors import InvalidInput


def write_atomically(path: str | Path, content: str | bytes) -> Path:
    """Write `content` (text as UTF-8) to `path`, creating its folder; an old file stays until then.

    Raises:
        InvalidInput: the disk is full, or the folder cannot be written; the old file is untouched.
    """
    data = content.encode() if isinstance(content, str) else content
    return replace_atomically(path, lambda new: new.write_bytes(data))


def replace_atomically(path: str | Path, write: Callable[[Path], Any]) -> Path:
    """Put what `write` writes to the file that it is given in the place of `path`, likewise.

    Raises:
        InvalidInput: the disk is full, or the folder cannot be written; the old file is untouched.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        write(Path(temporary))
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path


def slug(label: str) -> str:
    """A label as the name of a folder.

    >>> slug("FedAvg, lr 0.1")
    'FedAvg-lr-0.1'
    """
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", label).strip("-.")[:80] or "method"


def _unwritable(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(
        f"cannot write {path}: {error.strerror or error}; what was saved before is intact: "
        "free space or choose another folder"
    )
