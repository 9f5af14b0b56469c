"""Reading and writing files without a buffer, where one call to the system may do less than it was asked for."""

from __future__ import annotations

import os
from io import RawIOBase
from typing import IO

import numpy as np


def write_all(file: RawIOBase | IO[bytes], content: bytes | memoryview) -> None:
    """Write all of `content`, of which a file may take less at once, as before its disk is full."""
    rest = memoryview(content)
    while len(rest):
        rest = rest[file.write(rest) or 0 :]


def read_all(file: int, content: memoryview, offset: int) -> None:
    """Fill `content` from a place of a file on.

    Raises:
        OSError: the file ends before.
    """
    done = 0
    while done < len(content):
        more = os.preadv(file, [content[done:]], offset + done)
        if not more:
            raise OSError("it has become shorter")
        done += more


def bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of an array that is contiguous, where they lie."""
    return array.reshape(-1).view(np.uint8).data
