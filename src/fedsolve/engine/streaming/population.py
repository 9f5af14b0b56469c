"""A population that is read in parts: what all parts are made of, and some of its clients packed for the device."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedsolve.core import trees
from fedsolve.core.types import Params, replace
from fedsolve.data.federated import FederatedData
from fedsolve.engine.compute.clients import PackedClients, Window, on_device

T = TypeVar("T")

_FEW = 16
_ALIGNED = 64  # bytes: what a CPU device takes as it lies
WINDOW_BYTES = 2**26
"""What is read at once, about."""


@dataclass(frozen=True)
class Population:
    """All that parts are made of.

    Attributes:
        data: the clients.
        steps: local steps of each, shape (clients,).
        dtype: the run's floating-point type.
        frozen: leaves of the model that do not train, on the device.
        mesh: where windows lie.
    """

    data: FederatedData
    steps: np.ndarray
    dtype: Any
    frozen: Params
    mesh: Mesh


class Packer:
    """Packs some clients after others, in parts of one form.

    What a part lies in is used again by the next but one: by then nothing may need it any more.
    """

    def __init__(self, population: Population, slots: int, rows: int) -> None:
        """Parts with room for so many clients and rows."""
        self.population, self.slots, self.rows = population, slots, rows
        leaves = jax.tree.leaves(population.data.examples)
        self._buffers = [[_aligned((rows, *a.shape[1:]), a.dtype) for a in leaves] for _ in range(2)]

    def pack(self, clients: np.ndarray) -> PackedClients:
        """These clients, in their order."""
        population, data = self.population, self.population.data
        self._buffers.reverse()
        if len(clients):
            data.read_into(clients, self._buffers[0])
        examples = jax.tree.unflatten(jax.tree.structure(data.examples), self._buffers[0])
        counts = data.counts[clients]
        facts = (np.cumsum(counts) - counts, counts, population.steps[clients])
        offsets, own, work = (jnp.asarray(padded(self.slots, a), jnp.int32) for a in facts)
        packed = PackedClients(on_device(examples, population.dtype), offsets, own, work, population.frozen)
        return jax.block_until_ready(packed)


def in_background(function: Callable[..., T], *args: Any) -> Future[T]:
    """Begin a call in a thread of its own."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function, *args)
    pool.shutdown(wait=False)
    return future


def first_clients(population: Population) -> PackedClients:
    """A few clients as they lie on the device, for what is tried on shapes, in a window that serves no round."""
    data, clients = population.data, np.arange(min(_FEW, population.data.num_clients))
    packed = Packer(population, len(clients), int(data.counts[clients].sum())).pack(clients)
    return replace(packed, window=Window.of_no_round(clients, data.num_clients))


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros that a CPU device needs no copy of; the system gives no pages of what is not written."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    content = np.zeros(size + _ALIGNED, np.uint8)
    start = -content.ctypes.data % _ALIGNED
    return content[start : start + size].view(dtype).reshape(shape)


def padded(length: int, array: np.ndarray, filled: int = 0) -> np.ndarray:
    """The array with room for so many rows, those beyond its own `filled`."""
    rows = np.zeros((length, *array.shape[1:]), array.dtype)
    rows[: len(array)] = array
    if filled:
        rows[len(array) :] = filled
    return rows


def row_bytes(data: FederatedData, dtype: Any) -> int:
    """Bytes of an example on the device."""
    shapes = jax.eval_shape(partial(on_device, dtype=dtype), data.examples)
    return sum(trees.nbytes(a) // max(1, a.shape[0]) for a in jax.tree.leaves(shapes))
