"""Text of files that somebody else may have written: never endless, never nested so deeply that reading it fails."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

DEEPEST = 64
"""How deeply values of a file may lie in one another: what fedsolve writes has at most a dozen levels."""


def read_bytes(path: Path, largest: int, *, follow: bool = True) -> bytes:
    """The content of a regular file of a bounded size.

    Args:
        path: the file.
        largest: bytes that it may have.
        follow: whether it may be a link to one.

    Raises:
        OSError: as `open`, and for a pipe, a device or a file that is too large; the words say which.
    """
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            raise OSError(0, f"it has {size:,} bytes, more than {largest:,}")
        return file.read(largest)


def read_text(path: Path, largest: int, *, follow: bool = True) -> str:
    """The text of such a file; `UnicodeDecodeError` where it is not UTF-8."""
    return read_bytes(path, largest, follow=follow).decode()


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """A regular file, open for reading; `OSError` for a pipe or a device, and without `follow` for a link."""
    flags = os.O_RDONLY | os.O_NONBLOCK  # a pipe would wait for its writer
    file = os.fdopen(os.open(path, flags if follow else flags | os.O_NOFOLLOW), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(0, "it is no regular file")
    return file


def loads(text: str | bytes) -> Any:
    """The values in JSON text.

    Raises:
        ValueError: it is no JSON, or its values lie more than 64 deep in one another.

    >>> loads("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: its values are nested more than 64 deep
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Raise `ValueError` if plain data are nested more than 64 deep."""
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise _too_deep()


def _inside(value: Any) -> list[Any]:
    """The tables and lists in a table or a list."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in parts if isinstance(part, dict | list)]


def _too_deep() -> ValueError:
    return ValueError(f"its values are nested more than {DEEPEST} deep")
