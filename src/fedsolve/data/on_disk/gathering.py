"""Rows of a column on disk that lie here and there, packed one after another.

A call to the system reads one stretch of rows, a fault of a map brings in a stretch of pages. So a column is read
through a map where what is wanted lies dense in it. The pages count as the process's own: they are let go of after each
part of the file.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

from fedsolve.data.on_disk.description import Column
from fedsolve.folders.append_log import read_all

_DENSE = 2**16  # bytes of a file for each stretch of rows: about what one fault brings in
_PART = 2**26  # bytes of a map that are in memory at once
_IF_IN_MEMORY = getattr(os, "RWF_NOWAIT", 0)


def gather(path: Path, column: Column, starts: np.ndarray, counts: np.ndarray, into: np.ndarray) -> None:
    """Put the rows `starts[i]` to `starts[i] + counts[i] - 1`, for one i after another, at the beginning of an array.

    Args:
        path: the column's file.
        column: what lies in it.
        starts, counts: of each stretch of rows.
        into: an array with room for all of them, in the column's type.

    Raises:
        OSError: the file cannot be read, or has become shorter.
    """
    if not column.width:
        return
    size = column.start + column.rows * column.width
    with path.open("rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size < size:  # a map would not say so
            raise OSError("it has become shorter")
        if size <= _DENSE * len(starts):
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped:
                _through_map(mapped, column, starts, counts, into)
        else:
            content = into.reshape(-1).view(np.uint8).data
            offsets, sizes = column.start + starts * column.width, counts * column.width
            _by_calls(file.fileno(), offsets.tolist(), sizes.tolist(), content)


def _through_map(
    mapped: mmap.mmap, column: Column, starts: np.ndarray, counts: np.ndarray, into: np.ndarray
) -> None:
    """A part of the file after another."""
    all_rows = np.frombuffer(mapped, np.dtype(column.dtype), offset=column.start).reshape(-1, *column.shape)
    ends = np.cumsum(counts)
    steps = np.flatnonzero(np.diff(starts * column.width // _PART)) + 1
    for first, stop in zip([0, *steps], [*steps, len(starts)], strict=True):
        begin, end = int(ends[first] - counts[first]), int(ends[stop - 1])
        before = ends[first:stop] - counts[first:stop]
        rows = np.repeat(starts[first:stop] - before, counts[first:stop]) + np.arange(begin, end)
        np.take(
            all_rows, rows, axis=0, out=into[begin:end], mode="clip"
        )  # it checks no row, and buffers nothing
        mapped.madvise(mmap.MADV_DONTNEED)
    del all_rows


def _by_calls(file: int, places: list[int], sizes: list[int], content: memoryview) -> None:
    """What is in memory already at once; the rest is announced, so that the system fetches much of it together."""
    missing, end = [], 0
    for place, size in zip(places, sizes, strict=True):
        part = content[end : end + size]
        end += size
        try:
            found = os.preadv(file, [part], place, _IF_IN_MEMORY)
        except OSError:  # it is not, or this file system does not say
            found = 0
        if found < size:
            missing.append((part, place))
    for part, place in missing:
        _announce(file, place, len(part))
    for part, place in missing:
        read_all(file, part, place)


def _announce(file: int, offset: int, size: int) -> None:
    """Let the system fetch what will be read."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, offset, size, os.POSIX_FADV_WILLNEED)
