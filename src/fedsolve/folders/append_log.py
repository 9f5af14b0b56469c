"""A file that only grows, beside a smaller one that is replaced atomically and says how much of it is whole.

What a killed process appended beyond that is cut off when more is appended. So a save costs what is new, and an older
checkpoint finds its part of the same file. Below, what writing and reading such files without a buffer needs.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.files import errors_of_writing
from fedsolve.folders.untrusted import open_regular


@dataclass
class AppendLog:
    """The whole part of such a file.

    Attributes:
        path: the file.
        bytes: of the part.
        checksum: CRC-32 of the part.
    """

    path: Path
    bytes: int = 0
    checksum: int = 0

    def append(self, content: bytes) -> None:
        """Write `content` behind the part and bring it to the disk; the part has grown by it.

        Raises:
            InvalidInput: the disk is full, or the file cannot be written.
        """
        with errors_of_writing(self.path), open_to_append(self.path, self.bytes) as file:
            file.write(content)
            sync(file)
        self.bytes, self.checksum = self.bytes + len(content), zlib.crc32(content, self.checksum)

    def read(self, what: str) -> bytes:
        """The part; errors call it `what`.

        Raises:
            InvalidInput: the file is missing, cut short or damaged.
        """
        remedy = "restore a copy, or start a new run"
        try:
            with open_regular(self.path, follow=False) as file:
                content = file.read(min(self.bytes, os.fstat(file.fileno()).st_size))
        except OSError as error:
            raise InvalidInput(f"cannot read {what} {self.path}: {error.strerror}; {remedy}") from None
        if len(content) != self.bytes or zlib.crc32(content) != self.checksum:
            raise InvalidInput(f"{what} {self.path} is corrupt (it is not what was written): {remedy}")
        return content


def append_line(path: Path, line: str, remedy: str) -> None:
    """Add a line to a file of lines; one before it that a killed process left without its end is ended first.

    Raises:
        InvalidInput: the file cannot be written; `remedy` says what to do.
    """
    with errors_of_writing(path, remedy), open_regular(path, "ab+", follow=False) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - 1, 0))
        cut_short = file.read(1) not in (b"", b"\n")
        file.write(("\n" if cut_short else "").encode() + line.encode() + b"\n")


def open_to_append(path: Path, whole: int) -> BinaryIO:
    """A file behind its first `whole` bytes, what lies beyond cut off; a new one where there is none."""
    file = open_regular(path, "r+b" if path.exists() else "w+b", follow=False)
    file.truncate(whole)
    file.seek(whole)
    return file


def sync(file: BinaryIO) -> None:
    """Bring what was written to a file to the disk."""
    file.flush()
    os.fsync(file.fileno())


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
