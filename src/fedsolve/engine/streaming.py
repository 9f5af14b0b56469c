"""Clients read as they are needed: the windows of a run, one after another, the next one while the device computes.

Who comes in a round follows from the key and the round alone, so the cohorts of the next rounds are drawn ahead, as
many as fit a window; their clients' examples are read by a thread, and their states when the window is entered, after
those of the one before are written back. Of several devices each has the examples of the clients that it trains
alone, and of several processes each reads its own devices'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput
from fedsolve.core.sampling import Sampling
from fedsolve.core.types import Params, replace
from fedsolve.data.federated import FederatedData
from fedsolve.engine.compute.clients import PackedClients, Window, frozen_on_device, on_device, pack
from fedsolve.engine.compute.layout import free_bytes, size, total_bytes
from fedsolve.engine.compute.round import RunState
from fedsolve.engine.compute.sharding import (
    MODEL_AXIS,
    Program,
    clients_by_device,
    ordered_by,
    own_devices,
    put_by_device,
    replicate,
)
from fedsolve.engine.options import RunOptions
from fedsolve.engine.resolve import ResolvedRun
from fedsolve.folders.logs import RowFile

# Where clients live: on the device, or on the host and on disk, from where a few at a time are packed for it.

T = TypeVar("T")

_FEW = 16
_ALIGNED = 64  # bytes: what a CPU device takes as it lies
_DEVICE_SHARE = 4  # of the memory there is: a run's examples and states may take so small a part by default
WINDOW_BYTES = 2**26
"""What is read at once, about."""


@dataclass(frozen=True)
class Population:
    """All that parts are made of: clients with their local steps, on `mesh` in `dtype`, and `frozen` leaves there."""

    data: FederatedData
    steps: np.ndarray
    dtype: Any
    frozen: Params
    mesh: Mesh


def place_clients(
    resolved: ResolvedRun, dtype: Any, state_bytes: int
) -> tuple[PackedClients, Population | None, str]:
    """Clients on the device, the population where only some lie there, and what is to be said of it."""
    task, options, mesh = resolved.task, resolved.options, resolved.mesh
    streamed, remark = is_streamed(options, task.data, dtype, state_bytes)
    frozen = frozen_on_device(task.frozen, dtype)
    if not streamed:
        return pack(task.data, task.loss, dtype, **options.local_work, frozen=frozen)[0], None, remark
    if MODEL_AXIS in mesh.shape:
        raise InvalidInput("mesh: sharded models train clients on the device: give residency = 'device'")
    population = Population(task.data, resolved.steps, dtype, frozen, mesh)
    return first_clients(population), population, remark


def is_streamed(options: RunOptions, data: FederatedData, dtype: Any, state_bytes: int) -> tuple[bool, str]:
    """Whether clients are streamed, as asked, else by their size; and what is to be said of it."""
    # by the memory that the device has, not by what is free at the moment: so a run that goes on decides alike
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
    """Packs some clients after others, in parts of one form."""

    # What a part lies in is used again by the next but one: by then nothing may need it any more.

    def __init__(self, population: Population, slots: int, rows: int) -> None:
        # parts with room for so many clients and rows
        self.population, self.slots, self.rows = population, slots, rows
        leaves = jax.tree.leaves(population.data.examples)
        self._buffers = [[_aligned((rows, *a.shape[1:]), a.dtype) for a in leaves] for _ in range(2)]

    def pack(self, clients: np.ndarray) -> PackedClients:
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
    # zeros that a CPU device needs no copy of; the system gives no pages of what is not written
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
    shapes = jax.eval_shape(partial(on_device, dtype=dtype), data.examples)
    return sum(trees.nbytes(a) // max(1, a.shape[0]) for a in jax.tree.leaves(shapes))


# The states of all clients in a file: read and written for the clients of a window alone.

ROWS = "clients.states"


class ClientStates(RowFile):
    """The states of one run, each a row: the bytes of its arrays one after another."""

    WHAT = "the clients' states"
    ONE = "the state of client"

    def __init__(self, folder: Path, first: Any, population: int, *, lasting: bool) -> None:
        # no states yet: `begin`, or `restore` those of a checkpoint; and `close` them
        # folder: where the file lies
        leaves = [np.asarray(x) for x in jax.tree.leaves(first)]
        self._forms = [(x.shape, x.dtype, x.nbytes) for x in leaves]
        self._structure = jax.tree.structure(first)
        self._clients = np.zeros(0, np.int64)  # whose states were read last
        row = np.concatenate([_as_bytes(x[None])[0] for x in leaves])
        super().__init__(folder / ROWS, row, population, in_background if lasting else None)

    def read(self, clients: np.ndarray, slots: int) -> Any:
        """The states of clients, stacked, with room for so many in all; `write` will replace them."""
        self._clients = clients
        return self.peek(clients, slots)

    def peek(self, clients: np.ndarray, slots: int) -> Any:
        """What `read` gives, of clients whose states will not change."""
        return self._unpacked(self.read_rows(clients), slots)

    def write(self, states: Any) -> None:
        """Replace the states of the clients that were read last; further ones are left out."""
        clients = self._clients
        parts = [_as_bytes(np.asarray(x)[: len(clients)]) for x in jax.tree.leaves(states)]
        self.write_rows(clients, np.concatenate(parts, axis=1))

    def _unpacked(self, payload: np.ndarray, slots: int) -> Any:
        leaves, start = [], 0
        for shape, dtype, width in self._forms:
            part = np.zeros((slots, width), np.uint8)
            part[: len(payload)] = payload[:, start : start + width]
            leaves.append(part.view(dtype).reshape(slots, *shape))
            start += width
        return jax.tree.unflatten(self._structure, leaves)


def _as_bytes(array: np.ndarray) -> np.ndarray:
    # rows of an array as bytes, shape (rows, bytes)
    size = int(np.prod(array.shape[1:], dtype=np.int64))
    return np.ascontiguousarray(array).reshape(len(array), size).view(np.uint8)


_DRAWN = 2**20  # clients of all cohorts that are drawn at once
_COPIES = 4  # of a window: on the host and on the device, this one and the next


@dataclass(frozen=True)
class _Loaded:
    # a window on the device: its clients, ascending, and the rounds first .. stop - 1 that it serves.
    packed: PackedClients
    clients: np.ndarray
    first: int
    stop: int


class Stream:
    """The windows of one run, of `num_slots` clients: a cohort that needs more makes them grow, and compiles anew."""

    def __init__(
        self,
        population: Population,
        program: Program,
        sampling: Sampling,
        key: Array,
        rounds: int,
        cohort: int,
        state_bytes: int,
    ) -> None:
        # windows of about `WINDOW_BYTES`
        self.population, data = population, population.data
        self._sampling, self._key, self._rounds_in_all = sampling, key, rounds
        self._cohort = cohort
        row = row_bytes(data, population.dtype)
        self._bytes = row, state_bytes + 16
        mean, self._devices = data.num_examples / data.num_clients, program.num_shards
        # a quarter more than a usual cohort, since a window that a random one exceeds grows and is compiled anew
        enough = max(math.ceil(1.25 * cohort), int(WINDOW_BYTES / (mean * row + self._bytes[1])))
        self.num_slots = min(data.num_clients, cohort * rounds, enough)
        # rows of one device: a tenth above the mean, as clients differ, and room for the largest client among them
        share = math.ceil(self.num_slots * mean * 1.1 / self._devices) + int(data.counts.max())
        self._rows = min(data.num_examples, share)
        draw = partial(_cohorts, population=data.num_clients, rounds=1)
        drawn = jax.eval_shape(draw, *self._given(0))[0].size
        by = ordered_by(program, drawn)
        self._length = {None: None, "counts": data.counts, "steps": population.steps}[by]
        # cohorts are drawn ahead in one call, whose result is bounded whatever the cohort
        most = max(1, min(rounds, _DRAWN // drawn))
        self._ahead = min(most, _rounds_in(self.num_slots, cohort, data.num_clients))
        self._check_room()
        self._packers: list[Packer] = []
        self._states: ClientStates | None = None
        self._current: _Loaded | None = None
        self._written_back_at: int | None = None
        self._next: Future[_Loaded] | None = None

    def keep_states(self, states: ClientStates) -> None:
        """Keep clients' states there: before the first window."""
        self._states = states

    def rounds_from(self, done: int) -> int:
        return self._window(done).stop - done

    def enter(self, state: RunState) -> tuple[PackedClients, RunState]:
        """The window of the round that is next, and the state with its clients' own."""
        new = self._window(int(state.round))
        if new is self._current:
            return new.packed, state
        self.write_back(state)
        self._current, self._next = new, None
        if new.stop < self._rounds_in_all:
            self._next = in_background(self._load, new.stop)
        if self._states is not None:
            clients = self._states.read(new.clients, new.packed.counts.shape[0])
            state = replace(state, clients=replicate(clients, self.population.mesh, may_alias=False))
        return new.packed, state

    def write_back(self, state: RunState) -> None:
        if self._states is not None and self._current is not None:
            self._states.write(state.clients)

    def read_states(self, state: RunState, clients: np.ndarray, slots: int) -> Any:
        """The states of clients by their numbers, ascending, stacked, with room for so many in all."""
        if self._states is None:
            return None
        if self._written_back_at != int(state.round):  # of several blocks the first one
            self.write_back(state)
            self._written_back_at = int(state.round)
        return self._states.peek(clients, slots)

    def _window(self, done: int) -> _Loaded:
        # the window that serves the next round, once it is read
        if self._current is not None and self._current.first <= done < self._current.stop:
            return self._current
        if self._next is None:
            self._next = in_background(self._load, done)
        return self._next.result()

    def _load(self, first: int) -> _Loaded:
        # draw cohorts from a round on, as many as fit, and read their clients; all clients where there is room
        population, data = self.population, self.population.data
        with jax.enable_x64(population.dtype == jnp.float64):
            if self._devices == 1 and self.num_slots == data.num_clients:
                # the whole population: the program is that of clients that lie on the device
                everyone = np.arange(self.num_slots)
                return _Loaded(self._pack(everyone, [everyone]), everyone, first, self._rounds_in_all)
            drawn = _cohorts(*self._given(first), population=data.num_clients, rounds=self._ahead)
            ids, present = (np.asarray(x) for x in drawn)
            shares, rounds = self._fitting(ids, present)
            clients = np.unique(np.concatenate(shares))
            slots = np.searchsorted(clients, ids[:rounds])
            window = Window(
                first=np.int32(first),
                slots=jnp.asarray(padded(self._ahead, np.minimum(slots, self.num_slots - 1)), jnp.int32),
                numbers=jnp.asarray(padded(self.num_slots, clients, data.num_clients), jnp.int32),
                population=data.num_clients,
            )
            packed = replace(self._pack(clients, shares), window=replicate(window, population.mesh))
            return _Loaded(packed, clients, first, min(first + rounds, self._rounds_in_all))

    def _pack(self, clients: np.ndarray, shares: Sequence[np.ndarray]) -> PackedClients:
        # a window's clients; on each device of this process the examples of those that it trains
        population, mesh = self.population, self.population.mesh
        local_devices = [i for i, d in enumerate(mesh.devices.flat) if d in own_devices(mesh)]
        room = self.num_slots, self._rows
        if not self._packers or (self._packers[0].slots, self._packers[0].rows) != room:
            self._packers = [Packer(population, self.num_slots, self._rows) for _ in local_devices]
        parts = []
        for packer, device in zip(self._packers, local_devices, strict=True):
            packed, slots = packer.pack(shares[device]), np.searchsorted(clients, shares[device])
            first = np.zeros(self.num_slots, np.int32)
            first[slots] = np.asarray(packed.offsets)[: len(slots)]
            parts.append((packed.examples, first))
        examples, offsets = put_by_device(parts, mesh)
        facts = (padded(self.num_slots, a[clients]) for a in (population.data.counts, population.steps))
        counts, steps = replicate([jnp.asarray(a, jnp.int32) for a in facts], mesh)
        return PackedClients(examples, offsets, counts, steps, replicate(population.frozen, mesh))

    def _fitting(self, ids: np.ndarray, present: np.ndarray) -> tuple[list[np.ndarray], int]:
        # each device's clients, ascending, of as many cohorts as have room, at least one; and how many cohorts
        counts, devices = self.population.data.counts, self._devices
        seen, by_device = np.zeros((devices, len(counts)), bool), [[] for _ in range(devices)]
        clients, rows, fits = 0, np.zeros(devices, int), len(ids)
        for round, (cohort, here) in enumerate(zip(ids, present, strict=True)):
            shares = clients_by_device(self._length, cohort, here, devices)
            unseen = [share[~known[share]] for share, known in zip(shares, seen, strict=True)]
            clients += sum(map(len, unseen))
            rows += [int(counts[share].sum()) for share in unseen]
            if clients > self.num_slots or rows.max() > self._rows:
                if round:
                    fits = round
                    break
                self._grow(clients, int(rows.max()))
            for share, known, new_clients in zip(unseen, seen, by_device, strict=True):
                known[share] = True
                new_clients.append(share)
        return [np.sort(np.concatenate(new_clients)) for new_clients in by_device], fits

    def _grow(self, clients: int, rows: int) -> None:
        # make room for a larger cohort
        data = self.population.data
        self.num_slots = min(data.num_clients, max(self.num_slots, math.ceil(1.25 * clients)))
        self._rows = min(data.num_examples, max(self._rows, math.ceil(1.25 * rows)))
        self._check_room()

    @property
    def needed(self) -> int:
        row, state = self._bytes
        copies = _COPIES * len(own_devices(self.population.mesh))
        return copies * (self._rows * row + self.num_slots * state)

    @property
    def expected(self) -> int:
        some, population = self._cohort, self.population.data.num_clients
        never = math.exp(self._rounds_in_all * math.log1p(-some / population)) if some < population else 0
        return int(population * (1 - never))

    def _check_room(self) -> None:
        needed, free = self.needed, free_bytes()
        if needed > free:
            raise InvalidInput(
                f"the clients of a cohort ({self.num_slots:,} with {self._rows:,} examples) need {needed / 1e9:.1f} GB "
                f"while they train, and {free / 1e9:.1f} GB are free: take fewer clients a round"
            )

    def _given(self, first: int) -> tuple[Sampling, Array, Array]:
        return self._sampling, self._key, jnp.int32(first)


def _rounds_in(slots: int, cohort: int, population: int) -> int:
    # about as many rounds as have so many different clients together, 2^31 where all fit
    if slots >= population:
        return 2**31
    expected = math.log1p(-slots / population) / math.log1p(-cohort / population)
    return math.ceil(1.1 * expected) + 1


@partial(jax.jit, static_argnames=("population", "rounds"))
def _cohorts(
    sampling: Sampling, key: Array, first: Array, *, population: int, rounds: int
) -> tuple[Array, Array]:
    # who comes in each of so many rounds, as `one_round` draws it
    def one(round: Array) -> tuple[Array, Array]:
        return sampling.draw(jax.random.fold_in(key, round), round, population)

    return jax.lax.map(one, first + jnp.arange(rounds, dtype=jnp.int32))
