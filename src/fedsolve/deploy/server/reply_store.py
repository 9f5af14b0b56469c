"""Replies that count, stored until their round ends: on disk, so that memory holds one of them at a time.

A mean is summed in the order of client numbers, whatever order replies come in, and a repeated round brings the first
of them last. Small replies never reach the disk; where it is full, they stay in memory.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax
import numpy as np

from fedsolve.folders.logs import bytes_of, read_all, write_all

_IN_MEMORY = 32 * 1024**2


class _Entry(NamedTuple):
    structure: Any
    leaves: list[Any]  # arrays, or their shapes and types where they lie in the file
    start: int | None  # where in the file


class ReplyStore:
    """Pytrees of arrays by a number.

    Args:
        folder: where a file without a name is made, which is gone with the process however it ends; None for the
            system's folder of temporary files.
        memory: bytes that stay in memory; what is beyond them goes into the file.
    """

    def __init__(self, folder: Path | None = None, memory: int = _IN_MEMORY) -> None:
        self._folder, self._memory = folder, memory
        self._file: IO[bytes] | None = None
        self._entries: dict[int, _Entry] = {}
        self._in_memory = self._end = 0

    def put(self, number: int, tree: Any) -> None:
        """Store a pytree; one of the same number is replaced."""
        leaves, structure = jax.tree.flatten(tree)
        arrays = [np.asarray(x) for x in leaves]
        size = sum(x.nbytes for x in arrays)
        if self._in_memory + size > self._memory and self._write(arrays):
            shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
            self._entries[number] = _Entry(structure, shapes, self._end)
            self._end += size
        else:
            self._entries[number] = _Entry(structure, [np.array(x) for x in arrays], None)
            self._in_memory += size

    def get(self, number: int) -> Any:
        """The pytree of this number."""
        structure, leaves, start = self._entries[number]
        if start is not None and self._file is not None:
            leaves = [np.empty(x.shape, x.dtype) for x in leaves]
            for x in leaves:
                read_all(self._file.fileno(), bytes_of(x), start)
                start += x.nbytes
        return structure.unflatten(leaves)

    def clear(self) -> None:
        """Remove everything, the file included."""
        self._entries, self._in_memory, self._end = {}, 0, 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, arrays: list[np.ndarray]) -> bool:
        """Append to the file; False if the disk would not take it."""
        try:
            if self._file is None:  # unbuffered: what cannot be written is known now, not when it is read
                self._file = tempfile.TemporaryFile(buffering=0, dir=self._folder)  # noqa: SIM115 - closed by clear
            self._file.seek(self._end)
            for x in arrays:
                write_all(self._file, bytes_of(np.ascontiguousarray(x)))
        except OSError:
            return False
        return True
