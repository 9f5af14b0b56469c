"""Where clients live: on the device, or on the host and on disk, from where a few at a time are packed for it."""

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
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params, replace
from fedsolve.data.federated import FederatedData
from fedsolve.engine.checks.sizes import size
from fedsolve.engine.compute.clients import PackedClients, Window, on_device, pack
from fedsolve.engine.compute.layout import free_bytes, total_bytes
from fedsolve.engine.compute.program import MODEL_AXIS
from fedsolve.engine.options import RunOptions
from fedsolve.engine.preparation.requested import Requested

T = TypeVar("T")

_FEW = 16
_ALIGNED = 64  # bytes: what a CPU device takes as it lies
_DEVICE_SHARE = 4  # of the memory there is: a run's examples and states may take so small a part by default
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


def place_clients(
    requested: Requested, dtype: Any, state_bytes: int
) -> tuple[PackedClients, Population | None, str]:
    """Clients on the device, the population where only some lie there, and what is to be said of it.

    Args:
        requested: the run.
        dtype: its floating-point type.
        state_bytes: of a client's own state.

    Raises:
        InvalidInput: clients that shall lie on a device without the memory, or that cannot be streamed.
    """
    task, options, mesh = requested.task, requested.options, requested.mesh
    streamed, remark = is_streamed(options, task.data, dtype, state_bytes)
    frozen = on_device(task.frozen, dtype)
    if not streamed:
        return pack(task.data, task.loss, dtype, **options.local_work, frozen=frozen)[0], None, remark
    if MODEL_AXIS in mesh.shape:
        raise InvalidInput("mesh: sharded models train clients on the device: give residency = 'device'")
    population = Population(task.data, requested.steps, dtype, frozen, mesh)
    return first_clients(population), population, remark


def is_streamed(options: RunOptions, data: FederatedData, dtype: Any, state_bytes: int) -> tuple[bool, str]:
    """Whether clients are streamed, as asked, else by their size; and what is to be said of it.

    By the memory that the device has, not by what is free at the moment: so a run that goes on decides alike.

    Args:
        options: of the run.
        data: the clients.
        dtype: the run's floating-point type.
        state_bytes: of a client's own state.

    Raises:
        InvalidInput: they shall lie on the device, which has not that much memory free.
    """
    on_cpu = jax.default_backend() == "cpu"  # CPU devices of a process share one memory
    copies = (options.devices or 1) // jax.process_count() if on_cpu else 1
    examples = copies * data.num_examples * row_bytes(data, dtype)
    states = copies * data.num_clients * state_bytes
    sizes = f"{size(examples)} of examples" + (f", {size(states)} of states" if states else "")
    fit = options.residency is None and examples + states <= total_bytes() // _DEVICE_SHARE
    if options.residency != "device" and not fit:
        return True, f"clients are streamed ({sizes})"
    free = free_bytes()
    if examples + states > free:
        raise InvalidInput(
            f"residency = 'device' needs {size(examples + states)} ({sizes}), and {size(free)} are free: give "
            "'stream', or take fewer clients"
        )
    return False, ""


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
        place = lambda row: data.place(row, clients)  # noqa: E731
        packed = PackedClients(
            on_device(examples, population.dtype, place), offsets, own, work, population.frozen
        )
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
