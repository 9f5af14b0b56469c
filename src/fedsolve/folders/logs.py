"""A file that only grows, beside a smaller one that is replaced atomically and says how much of it is whole.

What a killed process appended beyond that is cut off when more is appended. So a save costs what is new, and an older
checkpoint finds its part of the same file. Below, what writing and reading such files without a buffer needs.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.files import INTACT, errors_of_writing
from fedsolve.folders.untrusted import open_regular


@dataclass
class AppendLog:
    """The whole part of such a file: its bytes, and their CRC-32."""

    path: Path
    bytes: int = 0
    checksum: int = 0

    def append(self, content: bytes) -> None:
        # the file grows before the part does, so that a kill between the two leaves the part whole
        with errors_of_writing(self.path), open_to_append(self.path, self.bytes) as file:
            file.write(content)
            sync(file)
        self.bytes, self.checksum = self.bytes + len(content), zlib.crc32(content, self.checksum)

    def read(self, what: str) -> bytes:
        remedy = "restore a copy, or start a new run"
        try:
            with open_regular(self.path, follow=False) as file:
                content = file.read(min(self.bytes, os.fstat(file.fileno()).st_size))
        except OSError as error:
            raise InvalidInput(f"cannot read {what} {self.path}: {error.strerror}; {remedy}") from None
        if len(content) != self.bytes or zlib.crc32(content) != self.checksum:
            raise InvalidInput(f"{what} {self.path} is corrupt (it is not what was written): {remedy}")
        return content


def append_line(path: Path, line: str) -> None:
    # a line before it that a killed process left without its end is ended first
    with errors_of_writing(path, INTACT), open_regular(path, "ab+", follow=False) as file:
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
    file.flush()
    os.fsync(file.fileno())


def write_all(file: RawIOBase | IO[bytes], content: bytes | memoryview) -> None:
    # before its disk is full, a file may take less at once
    rest = memoryview(content)
    while len(rest):
        rest = rest[file.write(rest) or 0 :]


def read_all(file: int, content: memoryview, offset: int) -> None:
    done = 0
    while done < len(content):
        more = os.preadv(file, [content[done:]], offset + done)
        if not more:
            raise OSError("it has become shorter")
        done += more


def bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


# A file of rows of equal length, of which those that change are written: the rest is as the last checkpoint left it.
#
# Which row of the file is whose, and the CRC-32 of what lies there, two arrays say that are part of a checkpoint. Who
# never wrote has no row. A row that the last checkpoint knows is never written over: what changes goes to a free one.
# So a run that is killed anywhere finds all that its checkpoint knows as it was, and a checkpoint waits for what
# changed since the one before.

_NONE = -1


class RowFile:
    """Rows of bytes by the number of their owner; errors call all of them WHAT, and one ONE, before its owner's number.

    `rows` has each owner's row, -1 where it has none, int32 of shape (owners,); `sums` its CRC-32, uint32.
    """

    WHAT = "the rows"
    ONE = "row"

    def __init__(
        self, path: Path, first: np.ndarray, owners: int, background: Callable[..., Future[Any]] | None
    ) -> None:
        """No rows yet. `first` is the row of who has none; `background` begins a call in a thread."""
        self._path, self._first, self._background = path, first, background
        self.rows, self.sums = np.full(owners, _NONE, np.int32), np.zeros(owners, np.uint32)
        self._kept = np.zeros(0, bool)  # whether the last checkpoint knows a row
        self._free = np.zeros(0, np.int32)
        self._synced: Future[None] | None = None
        self._file: Any = None

    def begin(self) -> None:
        with self._os_errors():
            self._file = open_regular(self._path, "w+b", follow=False, buffering=0)

    @property
    def folder(self) -> Path:
        return self._path.parent

    @property
    def row_bytes(self) -> int:
        return len(self._first)

    @property
    def known(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps, 8 bytes an owner: by it the file is read again."""
        return {"rows": self.rows, "sums": self.sums}

    def restore(self, known: dict[str, np.ndarray]) -> None:
        self.rows, self.sums = known["rows"], known["sums"]
        with self._os_errors():
            self._file = open_regular(self._path, "r+b", follow=False, buffering=0)
            size = os.fstat(self._file.fileno()).st_size
        # rows may lie behind the last that the checkpoint knows: a killed run has written them
        if size < (needed := (int(self.rows.max()) + 1) * len(self._first)):
            raise InvalidInput(
                f"{self._path} has {size:,} bytes, not {needed:,}: restore a copy of the whole folder, "
                "or start again"
            )
        self._kept = np.zeros(size // len(self._first), bool)
        self.committed()

    def close(self) -> None:
        if self._synced is not None:
            self._synced.exception()
        if self._file is not None:
            self._file.close()

    def read_rows(self, owners: np.ndarray) -> np.ndarray:
        """The rows of some owners, shape (owners, bytes)."""
        payload = np.empty((len(owners), len(self._first)), np.uint8)
        rows = self.rows[owners]
        payload[rows == _NONE] = self._first
        # read in the order of the file, and put back into the order that was asked for
        own = np.flatnonzero(rows != _NONE)
        own = own[np.argsort(rows[own])]
        there = np.empty((len(own), len(self._first)), np.uint8)
        with self._os_errors():
            for start, stop, offset in self._contiguous(rows[own]):
                read_all(self._file.fileno(), there[start:stop].reshape(-1).data, offset)
        wrong = owners[own][_sums(there) != self.sums[owners[own]]]
        if len(wrong):
            raise InvalidInput(
                f"{self._path} is damaged, or of another checkpoint ({self.ONE} {wrong.min()}): "
                "restore a copy of the whole folder, or start again"
            )
        payload[own] = there
        return payload

    def write_rows(self, owners: np.ndarray, payload: np.ndarray) -> None:
        # in the order of the file: one call writes each stretch of neighbouring rows
        rows = self._rows_for(self.rows[owners])
        order = np.argsort(rows)
        with self._os_errors():
            for start, stop, offset in self._contiguous(rows[order]):
                self._file.seek(offset)
                write_all(self._file, payload[order[start:stop]].reshape(-1).data)
            self.rows[owners], self.sums[owners] = rows, _sums(payload)
            self._sync()

    def commit(self) -> None:
        # before a checkpoint that knows the rows is written
        with self._os_errors():
            if self._synced is not None:
                self._synced.result()
            os.fsync(self._file.fileno())

    def committed(self) -> None:
        # what the checkpoint knows is kept from here on, all else is free
        self._kept[:] = False
        self._kept[self.rows[self.rows != _NONE]] = True
        self._free = np.flatnonzero(~self._kept).astype(np.int32)

    def _rows_for(self, rows: np.ndarray) -> np.ndarray:
        # into their old rows, unless the last checkpoint knows them
        # an owner needs another row if it has none, or one that the last checkpoint knows
        new = rows == _NONE
        new[~new] = self._kept[rows[~new]]
        free, needed = self._free, int(new.sum())
        end = len(self._kept)
        more = np.arange(end, end + max(0, needed - len(free)), dtype=np.int32)
        new_rows = rows.copy()
        new_rows[new] = np.concatenate([free[:needed], more])
        self._free = free[needed:]
        self._kept = np.concatenate([self._kept, np.zeros(len(more), bool)])
        return new_rows

    def _sync(self) -> None:
        # so that a checkpoint waits for little
        if self._background is not None and (self._synced is None or self._synced.done()):
            if self._synced is not None:
                self._synced.result()
            self._synced = self._background(os.fdatasync, self._file.fileno())

    def _contiguous(self, rows: np.ndarray) -> Iterator[tuple[int, int, int]]:
        # of ascending rows those that follow one another: first place, last and one, the bytes before them
        if not len(rows):
            return iter(())
        # where a row does not follow the one before it a new stretch begins
        ends = np.flatnonzero(np.diff(rows) != 1) + 1
        first = np.concatenate([[0], ends])
        offsets = rows[first].astype(np.int64) * len(self._first)
        return zip(first.tolist(), [*ends.tolist(), len(rows)], offsets.tolist(), strict=True)

    @contextlib.contextmanager
    def _os_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InvalidInput(
                f"cannot use {self.WHAT} {self._path}: {error.strerror or error}; what the last checkpoint has "
                "is intact: free space, restore the file, or choose another folder"
            ) from None


def _sums(rows: np.ndarray) -> np.ndarray:
    return np.array([zlib.crc32(row.data) for row in rows], np.uint32)
