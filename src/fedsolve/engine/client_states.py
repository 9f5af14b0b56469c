"""The states of all clients in a file, one row a client: read and written for the clients of a window alone.

A row is the exclusive or of a state's bytes with those of the first state, and of their CRC-32s. A row that was never
written is a hole of the file, reads as zeros, and so is the first state: clients that never came cost nothing.

Between two checkpoints a journal keeps what the first of them knows of the rows that change; a run that goes on puts
that back. What is written goes to the disk meanwhile, so that a checkpoint waits for little.
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

from fedsolve.engine.background import in_background
from fedsolve.engine.journal import Journal
from fedsolve.errors import InvalidInput
from fedsolve.files import read_all, write_all

ROWS, JOURNAL = "clients.states", "clients.journal"
_SUM = 4  # bytes of a CRC-32


class ClientStates:
    """The states of one run.

    Attributes:
        epoch: checkpoints so far.
    """

    def __init__(
        self, folder: Path, first: Any, population: int, *, checkpoints: bool, epoch: int = 0
    ) -> None:
        """Open the states, new ones where `epoch` is 0, else those of a checkpoint; `close` them.

        Args:
            folder: where the files lie.
            first: the state of a client that never took part, a pytree of arrays.
            population: clients in all.
            checkpoints: whether there will be any.
            epoch: of the checkpoint that is gone on from, 0 for none.

        Raises:
            InvalidInput: the folder cannot be written; files that are missing, damaged, or of another checkpoint.
        """
        leaves = [np.asarray(x) for x in jax.tree.leaves(first)]
        self._forms = [(x.shape, x.dtype, x.nbytes) for x in leaves]
        self._structure = jax.tree.structure(first)
        self._first = np.concatenate([_as_bytes(x[None])[0] for x in leaves])
        self._first_sum = np.uint32(zlib.crc32(self._first.data))
        self._shape = (population, len(self._first) + _SUM)
        self._path, self.epoch = folder / ROWS, epoch
        self._journaled: Future[None] | None = None
        self._synced: Future[None] | None = None
        self._known = np.zeros(0, np.int64), np.zeros((0, self._shape[1]), np.uint8)
        self._journal: Journal | None = None
        with self._clearly():
            self._file = self._opened()
            if checkpoints:
                self._journal = Journal(folder / JOURNAL, self._shape[1], population, new=not epoch)
                if epoch:
                    for clients, rows in self._journal.undone(epoch):
                        self._put(clients, rows)
                    os.fsync(self._file.fileno())
                self._journal.begin(epoch)

    def _opened(self) -> Any:
        size = self._shape[0] * self._shape[1]
        if not self.epoch:
            file = self._path.open("w+b", buffering=0)
            file.truncate(size)
            return file
        file = self._path.open("r+b", buffering=0)
        if (found := os.fstat(file.fileno()).st_size) != size:
            file.close()
            raise InvalidInput(
                f"{self._path} has {found:,} bytes, not {size:,}: bring back a copy of the whole folder, or start anew"
            )
        return file

    def close(self) -> None:
        """Let go of the files."""
        for future in (self._journaled, self._synced):
            if future is not None:
                future.exception()
        self._file.close()
        if self._journal is not None:
            self._journal.close()

    def read(self, clients: np.ndarray, places: int) -> Any:
        """The states of clients, whose numbers ascend, stacked, with room for so many in all.

        They are journaled meanwhile: who reads a state will change it.

        Raises:
            InvalidInput: a row is not what was written; the client is named.
        """
        with self._clearly():
            rows = self._read(clients)
        self._known = clients, rows
        if self._journal is not None and self.epoch:
            self._journaled = in_background(self._add_to_journal)
        return self._stacked(clients, rows, places)

    def look(self, clients: np.ndarray, places: int) -> Any:
        """What `read` gives, of clients whose states will not change.

        Raises:
            InvalidInput: a row is not what was written; the client is named.
        """
        with self._clearly():
            rows = self._read(clients)
        return self._stacked(clients, rows, places)

    def _stacked(self, clients: np.ndarray, rows: np.ndarray, places: int) -> Any:
        states = rows[:, :-_SUM] if not self._first.any() else rows[:, :-_SUM] ^ self._first
        found, place = [], 0
        for client, state, wanted in zip(
            clients, states, (_sums(rows) ^ self._first_sum).tolist(), strict=True
        ):
            if zlib.crc32(state.data) != wanted:
                raise InvalidInput(
                    f"{self._path} is damaged (the state of client {client}): bring back a copy of the whole folder, "
                    "or start anew"
                )
        for shape, dtype, size in self._forms:
            part = np.zeros((places, size), np.uint8)
            part[: len(clients)] = states[:, place : place + size]
            found.append(part.view(dtype).reshape(places, *shape))
            place += size
        return jax.tree.unflatten(self._structure, found)

    def write(self, states: Any) -> None:
        """Replace the states of the clients that were read last; further ones are left out.

        Raises:
            InvalidInput: the disk is full.
        """
        clients = self._known[0]
        rows = np.empty((len(clients), self._shape[1]), np.uint8)
        place = 0
        for x, (_, _, size) in zip(jax.tree.leaves(states), self._forms, strict=True):
            rows[:, place : place + size] = _as_bytes(np.asarray(x)[: len(clients)])
            place += size
        payload = rows[:, :-_SUM]
        sums = np.array([zlib.crc32(row.data) for row in payload], np.uint32) ^ self._first_sum
        if self._first.any():
            payload ^= self._first
        rows[:, -_SUM:] = sums.view(np.uint8).reshape(-1, _SUM)
        with self._clearly():
            self._finish()
            self._add_to_journal()  # what a checkpoint since the reading has made necessary
            self._put(clients, rows)
            self._known = clients, rows
            if self._journal is not None:
                self._synced = in_background(os.fdatasync, self._file.fileno())

    def _add_to_journal(self) -> None:
        if self._journal is None or not self.epoch:  # nothing that a run could go on from
            return
        clients, rows = self._known
        new = self._journal.missing(clients)
        if new.any():
            self._journal.add(clients[new], rows if new.all() else rows[new])

    def _finish(self) -> None:
        """Wait for what goes on in the background."""
        for future in (self._journaled, self._synced):
            if future is not None:
                future.result()
        self._journaled = self._synced = None

    def commit(self) -> None:
        """Bring all rows to the disk, before a checkpoint that names the new `epoch` is written."""
        with self._clearly():
            self._finish()
            os.fsync(self._file.fileno())
        self.epoch += 1

    def committed(self) -> None:
        """The checkpoint that names `epoch` is on the disk: what changes from here on is journaled anew."""
        if self._journal is not None:
            with self._clearly():
                self._journal.begin(self.epoch)

    def _read(self, clients: np.ndarray) -> np.ndarray:
        rows = np.empty((len(clients), self._shape[1]), np.uint8)
        for start, stop in _neighbours(clients):
            read_all(
                self._file.fileno(), rows[start:stop].reshape(-1).data, int(clients[start]) * self._shape[1]
            )
        return rows

    def _put(self, clients: np.ndarray, rows: np.ndarray) -> None:
        for start, stop in _neighbours(clients):
            self._file.seek(int(clients[start]) * self._shape[1])
            write_all(self._file, rows[start:stop].reshape(-1).data)

    @contextlib.contextmanager
    def _clearly(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InvalidInput(
                f"cannot use the clients' states {self._path}: {error.strerror or error}; what the last checkpoint has "
                "is intact: free space, bring back the file, or choose another folder"
            ) from None


def _neighbours(clients: np.ndarray) -> Iterator[tuple[int, int]]:
    """The runs of numbers that follow one another, each as the places where it begins and ends."""
    ends = (np.flatnonzero(np.diff(clients) != 1) + 1).tolist()
    return zip([0, *ends], [*ends, len(clients)], strict=True)


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """Rows of an array as bytes, shape (rows, bytes)."""
    size = int(np.prod(array.shape[1:], dtype=np.int64))
    return np.ascontiguousarray(array).reshape(len(array), size).view(np.uint8)


def _sums(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows[:, -_SUM:]).view(np.uint32)[:, 0]
