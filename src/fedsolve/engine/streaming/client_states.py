"""The states of all clients in a file: read and written for the clients of a window alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsolve.engine.streaming.population import in_background
from fedsolve.folders.logs import RowFile

ROWS = "clients.states"


class ClientStates(RowFile):
    """The states of one run, each a row: the bytes of its arrays one after another."""

    WHAT = "the clients' states"
    ONE = "the state of client"

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
        self._clients = np.zeros(0, np.int64)  # whose states were read last
        row = np.concatenate([_as_bytes(x[None])[0] for x in leaves])
        super().__init__(folder / ROWS, row, population, in_background if lasting else None)

    def read(self, clients: np.ndarray, slots: int) -> Any:
        """The states of clients, stacked, with room for so many in all; `write` will replace them.

        Raises:
            InvalidInput: a row is not what was written; the client is named.
        """
        self._clients = clients
        return self.peek(clients, slots)

    def peek(self, clients: np.ndarray, slots: int) -> Any:
        """What `read` gives, of clients whose states will not change.

        Raises:
            InvalidInput: a row is not what was written; the client is named.
        """
        return self._unpacked(self.read_rows(clients), slots)

    def write(self, states: Any) -> None:
        """Replace the states of the clients that were read last; further ones are left out.

        Raises:
            InvalidInput: the disk is full.
        """
        clients = self._clients
        parts = [_as_bytes(np.asarray(x)[: len(clients)]) for x in jax.tree.leaves(states)]
        self.write_rows(clients, np.concatenate(parts, axis=1))

    def _unpacked(self, payload: np.ndarray, slots: int) -> Any:
        leaves, start = [], 0
        for shape, dtype, size in self._forms:
            part = np.zeros((slots, size), np.uint8)
            part[: len(payload)] = payload[:, start : start + size]
            leaves.append(part.view(dtype).reshape(slots, *shape))
            start += size
        return jax.tree.unflatten(self._structure, leaves)


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """Rows of an array as bytes, shape (rows, bytes)."""
    size = int(np.prod(array.shape[1:], dtype=np.int64))
    return np.ascontiguousarray(array).reshape(len(array), size).view(np.uint8)
