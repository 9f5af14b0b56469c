"""The states of all clients in a file: read and written for the clients of a window alone.

Which row of the file is whose, and the CRC-32 of what lies there, two arrays say that are part of a checkpoint. A
client that never took part has no row. A row that the last checkpoint knows is never written over: what changes goes to
a free one. So a run that is killed anywhere finds all that its checkpoint knows as it was, and a checkpoint waits for
what changed since the one before.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.engine.streaming.background import in_background
from fedsolve.folders.raw_files import read_all, write_all

ROWS = "clients.states"
_NONE = -1


class ClientStates:
    """The states of one run.

    Attributes:
        rows: the row of each client, -1 where it has none; shape (clients,), int32.
        sums: the CRC-32 of each client's row; shape (clients,), uint32.
    """

    def __init__(self, folder: Path, first: Any, population: int, *, lasting: bool) -> None:
        """No states yet: `begin`, or `restore` those of a checkpoint; and `close` them.

        Args:
            folder: where the file lies.
            first: the state of a client that never took part, a pytree of arrays.
            population: clients in all.
            lasting: whether there will be checkpoints.
        """
        leaves = [np.asarray(x) for x in jax.tree.leaves(first)]
        self._forms = [(x.shape, x.dtype, x.nbytes) for x in leaves]
        self._structure = jax.tree.structure(first)
        self._first = np.concatenate([_as_bytes(x[None])[0] for x in leaves])
        self.rows, self.sums = np.full(population, _NONE, np.int32), np.zeros(population, np.uint32)
        self._path, self._lasting = folder / ROWS, lasting
        self._clients = np.zeros(0, np.int64)  # whose states were read last
        self._kept = np.zeros(0, bool)  # whether the last checkpoint knows a row
        self._free = np.zeros(0, np.int32)
        self._synced: Future[None] | None = None
        self._file: Any = None

    def begin(self) -> None:
        """An empty file.

        Raises:
            InvalidInput: the folder cannot be written.
        """
        with self._clearly():
            self._file = self._path.open("w+b", buffering=0)

    @property
    def folder(self) -> Path:
        """Where the file lies."""
        return self._path.parent

    @property
    def row_bytes(self) -> int:
        """Bytes of a client's row."""
        return len(self._first)

    @property
    def known(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps, 8 bytes a client: by it the file is read again."""
        return {"rows": self.rows, "sums": self.sums}

    def restore(self, known: dict[str, np.ndarray]) -> None:
        """The states that a checkpoint has kept.

        Raises:
            InvalidInput: the file is missing or too short.
        """
        self.rows, self.sums = known["rows"], known["sums"]
        with self._clearly():
            self._file = self._path.open("r+b", buffering=0)
            found = os.fstat(self._file.fileno()).st_size
        if found < (needed := (int(self.rows.max()) + 1) * len(self._first)):
            raise InvalidInput(
                f"{self._path} has {found:,} bytes, not {needed:,}: bring back a copy of the whole folder, "
                "or start anew"
            )
        self._kept = np.zeros(found // len(self._first), bool)
        self.committed()

    def close(self) -> None:
        """Let go of the file."""
        if self._synced is not None:
            self._synced.exception()
        if self._file is not None:
            self._file.close()

    def read(self, clients: np.ndarray, places: int) -> Any:
        """The states of clients, stacked, with room for so many in all; `write` will replace them.

        Raises:
            InvalidInput: a row is not what was written; the client is named.
        """
        self._clients = clients
        return self.look(clients, places)

    def look(self, clients: np.ndarray, places: int) -> Any:
        """What `read` gives, of clients whose states will not change.

        Raises:
            InvalidInput: a row is not what was written; the client is named.
        """
        payload = np.empty((len(clients), len(self._first)), np.uint8)
        rows = self.rows[clients]
        payload[rows == _NONE] = self._first
        own = np.flatnonzero(rows != _NONE)
        own = own[np.argsort(rows[own])]
        there = np.empty((len(own), len(self._first)), np.uint8)
        with self._clearly():
            for start, stop, offset in self._stretches(rows[own]):
                read_all(self._file.fileno(), there[start:stop].reshape(-1).data, offset)
        wrong = clients[own][_sums(there) != self.sums[clients[own]]]
        if len(wrong):
            raise InvalidInput(
                f"{self._path} is damaged, or of another checkpoint (the state of client {wrong.min()}): "
                "bring back a copy of the whole folder, or start anew"
            )
        payload[own] = there
        return self._unpacked(payload, places)

    def write(self, states: Any) -> None:
        """Replace the states of the clients that were read last; further ones are left out.

        Raises:
            InvalidInput: the disk is full.
        """
        clients = self._clients
        parts = [_as_bytes(np.asarray(x)[: len(clients)]) for x in jax.tree.leaves(states)]
        payload = np.concatenate(parts, axis=1)
        rows = self._rows_for(self.rows[clients])
        order = np.argsort(rows)
        with self._clearly():
            for start, stop, offset in self._stretches(rows[order]):
                self._file.seek(offset)
                write_all(self._file, payload[order[start:stop]].reshape(-1).data)
            self.rows[clients], self.sums[clients] = rows, _sums(payload)
            self._sync()

    def commit(self) -> None:
        """Bring all rows to the disk, before a checkpoint that knows them is written."""
        with self._clearly():
            if self._synced is not None:
                self._synced.result()
            os.fsync(self._file.fileno())

    def committed(self) -> None:
        """The checkpoint is on the disk: what it knows is kept from here on, all else is free."""
        self._kept[:] = False
        self._kept[self.rows[self.rows != _NONE]] = True
        self._free = np.flatnonzero(~self._kept).astype(np.int32)

    def _rows_for(self, rows: np.ndarray) -> np.ndarray:
        """Where new states of clients with these rows go: into them, unless the last checkpoint knows them."""
        new = rows == _NONE
        new[~new] = self._kept[rows[~new]]
        free, needed = self._free, int(new.sum())
        end = len(self._kept)
        more = np.arange(end, end + max(0, needed - len(free)), dtype=np.int32)
        found = rows.copy()
        found[new] = np.concatenate([free[:needed], more])
        self._free = free[needed:]
        self._kept = np.concatenate([self._kept, np.zeros(len(more), bool)])
        return found

    def _unpacked(self, payload: np.ndarray, places: int) -> Any:
        found, place = [], 0
        for shape, dtype, size in self._forms:
            part = np.zeros((places, size), np.uint8)
            part[: len(payload)] = payload[:, place : place + size]
            found.append(part.view(dtype).reshape(places, *shape))
            place += size
        return jax.tree.unflatten(self._structure, found)

    def _sync(self) -> None:
        """Have the system bring rows to the disk meanwhile, so that a checkpoint waits for little."""
        if self._lasting and (self._synced is None or self._synced.done()):
            if self._synced is not None:
                self._synced.result()
            self._synced = in_background(os.fdatasync, self._file.fileno())

    def _stretches(self, rows: np.ndarray) -> Iterator[tuple[int, int, int]]:
        """Of rows that ascend those that follow one another: first place, last and one, the bytes before them."""
        if not len(rows):
            return iter(())
        ends = np.flatnonzero(np.diff(rows) != 1) + 1
        first = np.concatenate([[0], ends])
        offsets = rows[first].astype(np.int64) * len(self._first)
        return zip(first.tolist(), [*ends.tolist(), len(rows)], offsets.tolist(), strict=True)

    @contextlib.contextmanager
    def _clearly(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InvalidInput(
                f"cannot use the clients' states {self._path}: {error.strerror or error}; what the last checkpoint has "
                "is intact: free space, bring back the file, or choose another folder"
            ) from None


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """Rows of an array as bytes, shape (rows, bytes)."""
    size = int(np.prod(array.shape[1:], dtype=np.int64))
    return np.ascontiguousarray(array).reshape(len(array), size).view(np.uint8)


def _sums(rows: np.ndarray) -> np.ndarray:
    return np.array([zlib.crc32(row.data) for row in rows], np.uint32)
