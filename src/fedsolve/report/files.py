"""Writing a result file so that a reader never meets half of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fedsolve.errors import InvalidInput


def write_atomically(path: str | Path, content: str | bytes) -> Path:
    """Write `content` (text as UTF-8) to `path`, creating its folder; an old file stays until then.

    Raises:
        InvalidInput: the file or its folder cannot be written.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from None
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path
