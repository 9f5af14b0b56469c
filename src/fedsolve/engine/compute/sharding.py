"""Who trains whom: processes, devices, groups of clients by size, and clients' states sharded over devices.

Each runs the same program on devices of its own, and they meet in its sums. So whatever the clock, a signal or a
callback decides must be decided for all of them at once: one that did otherwise would leave the others waiting.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput, Unavailable
from fedsolve.core.types import Scalar, replace
from fedsolve.engine.compute.clients import LocalWork, PackedClients


def several() -> bool:
    """Whether the run has more processes than this one."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this is the process that writes, prints and calls back."""
    return jax.process_index() == 0


def own_devices(mesh: Mesh) -> list[Any]:
    return [d for d in mesh.devices.flat if d.process_index == jax.process_index()]


def replicate(tree: Any, mesh: Mesh, *, may_alias: bool | None = None) -> Any:
    """Arrays with a copy on every device of the mesh; each process gives its own, and all give the same."""
    sharding = NamedSharding(mesh, P())
    if not several():
        return jax.device_put(tree, sharding, may_alias=may_alias)

    def put(x: Any) -> jax.Array:
        copies = [jax.device_put(x, d, may_alias=False) for d in own_devices(mesh)]
        return jax.make_array_from_single_device_arrays(x.shape, sharding, copies)

    return jax.tree.map(put, tree)


def put_by_device(parts: Sequence[Any], mesh: Mesh) -> Any:
    """Arrays of which each device of the mesh has a part, one behind another along the first axis."""
    # parts: those of this process's own devices, pytrees of arrays of one shape
    sharding = NamedSharding(mesh, P(*mesh.axis_names))

    def put(*own: Any) -> jax.Array:
        placed = [jax.device_put(x, d) for x, d in zip(own, own_devices(mesh), strict=True)]
        shape = (mesh.size * len(own[0]), *own[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, sharding, placed)

    return jax.tree.map(put, *parts)


def put_sharded(tree: Any, sharding: Callable[[jax.Array], NamedSharding]) -> Any:
    """Arrays in parts, or copies, on devices of all processes, each of which gives the whole ones."""

    def put(x: Any) -> jax.Array:
        if not several():
            return jax.device_put(x, sharding(x))
        whole = np.asarray(x)
        return jax.make_array_from_callback(whole.shape, sharding(x), lambda part: whole[part])

    return jax.tree.map(put, tree)


def local_copy(tree: Any) -> Any:
    """What lies on all devices as this process's first ones have it, which takes no further memory."""
    # that is the copy on one device, or where some arrays lie in parts, the parts on the first that have a
    # whole model
    leaves = jax.tree.leaves(tree)
    if all(x.is_fully_replicated for x in leaves):
        return jax.tree.map(lambda x: x.addressable_data(0) if len(x.sharding.device_set) > 1 else x, tree)
    mesh = next(x.sharding.mesh for x in leaves if not x.is_fully_replicated)
    row = next(row for row in mesh.devices if set(row) <= set(own_devices(mesh)))
    own = Mesh(row, mesh.axis_names[1:])

    def taken(x: Any) -> jax.Array:
        parts = {part.device: part.data for part in x.addressable_shards}
        spec = P() if x.is_fully_replicated else x.sharding.spec
        return jax.make_array_from_single_device_arrays(
            x.shape, NamedSharding(own, spec), [parts[device] for device in row]
        )

    return jax.tree.map(taken, tree)


def process_allgather(*numbers: int) -> np.ndarray:
    """What each process gives, all known to all, shape (processes, numbers); every process must call it."""
    if not several():
        return np.array([numbers])
    mesh, gather = _allgather_program()
    own = NamedSharding(mesh, P("processes"))
    given = jax.make_array_from_process_local_data(own, np.array([numbers], np.int32))
    return np.asarray(gather(given).addressable_data(0))


def broadcast_from_first(numbers: Mapping[str, float]) -> dict[str, float]:
    """The first process's numbers, to the bit, in all of them; each gives its own under the same names."""
    if not several():
        return dict(numbers)
    bits = np.array(list(numbers.values()), np.float64).view(np.int32)
    return dict(zip(numbers, process_allgather(*bits.tolist())[0].view(np.float64).tolist(), strict=True))


@cache
def _allgather_program() -> tuple[Mesh, Any]:
    # one device of each process, and the program that makes known to all what each has
    firsts = {d.process_index: d for d in reversed(jax.devices())}
    mesh = Mesh(np.array([firsts[i] for i in sorted(firsts)]), ("processes",))
    return mesh, jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))


def check_same(what: str, fact: Any) -> None:
    """Raise `InvalidInput` unless all processes have the same of something, whose text is compared."""
    digests = process_allgather(zlib.crc32(repr(fact).encode()) >> 1)[:, 0]
    if (digests != digests[0]).any():
        other = int(np.flatnonzero(digests != digests[0])[0])
        raise InvalidInput(
            f"process {other} and process 0 differ in their {what}: start all {len(digests)} processes with the same "
            "configuration, data and folder"
        )


def check_alone(what: str) -> None:
    """Raise `InvalidInput` if what is asked for cannot be shared by several processes."""
    if several():
        raise InvalidInput(
            f"{what} runs in one process, and there are {jax.process_count()}: start one, or share single runs (fs.run)"
        )


@contextlib.contextmanager
def report_lost_process(last: Callable[[], str]) -> Iterator[None]:
    """Say it plainly where another process of the run is gone; `last` says where the last checkpoint is."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # JAX raises either
        met = not isinstance(error, ValueError) or "Gloo" in str(error)
        if not several() or not met or "RESOURCE_EXHAUSTED" in str(error):
            raise
        why = " ".join(str(error).splitlines()[0].split())
        raise Unavailable(
            f"process {jax.process_index()} of {jax.process_count()} has lost another ({why}): start all of them again "
            f"with resume. {last()}"
        ) from error


# Clients' states sharded over devices: each on one device, and those of a cohort's surplus moved for a round.

CLIENT_AXIS = "clients"
"""Name of a mesh's axis: what shares a cohort."""
# Measured (benchmarks/FINDINGS.md): up to so many bytes a device trains, all devices keep all clients' states and tell
# one another the new ones, in one gather; beyond, each state stays on one device and only a cohort's surplus moves.
_GATHER_BYTES = 2**24
_MOVE_BYTES = 2**17  # bytes of states that move at once


@dataclass(frozen=True)
class StateSharding:
    """Which device keeps which client's state: each keeps a block of clients, then `spare` rows for those of others.

    With 5 clients on 2 devices and 1 spare row each, the rows are those of the clients 0 1 2 _ | 3 4 _ _. A device
    that has more of a cohort's states than its share moves the surplus, for the round, to one that has fewer.
    """

    clients: int
    devices: int
    spare: int

    @classmethod
    def of(
        cls, clients: int, capacity: int, devices: int, state_bytes: int, always: bool
    ) -> StateSharding | None:
        """The sharding of states of so many bytes a client, None where all devices may keep all of them."""
        # always: whether every client takes part in every round; then nothing is moved
        places = -(-capacity // devices)
        return (
            cls(clients, devices, 0 if always else places) if places * state_bytes > _GATHER_BYTES else None
        )

    @property
    def block(self) -> int:
        return -(-self.clients // self.devices)

    @property
    def rows(self) -> int:
        return self.devices * (self.block + self.spare)

    def assign(
        self, ids: Int[Array, " capacity"], present: Bool[Array, " capacity"], places: int
    ) -> tuple[Int[Array, "devices places"], Bool[Array, "devices places"], StateRows]:
        """Each device's part of a cohort: equally many clients, whose states it keeps as far as that is possible."""
        # absent clients have no place: where nobody is present the id is 0
        owner, owner_row = ids // self.block, ids % self.block
        here = present & (owner == jnp.arange(self.devices)[:, None])  # (devices, capacity)
        rank = jnp.cumsum(here, axis=1)[owner, jnp.arange(len(ids))] - 1
        share = -(-jnp.sum(present) // self.devices)
        held = jnp.minimum(jnp.sum(here, axis=1), share)
        moved = rank >= share
        # the k-th of those that are moved has the k-th place that is left
        left = jnp.cumsum(share - held)
        k = jnp.cumsum(present & moved) - 1
        other = jnp.minimum(jnp.sum(left[:, None] <= k, axis=0), self.devices - 1)
        there = share - (left[other] - k)
        device, place = jnp.where(moved, other, owner), jnp.where(moved, there, rank)
        row = jnp.where(moved, self.block + there - held[other], owner_row)
        at = jnp.where(present, device * places + place, self.devices * places)
        # written in one go, and so in memory: XLA would work a row out again for each number of a state that it reads
        facts = jnp.stack([ids, row, owner, owner_row, moved, present], axis=1)
        seated = (
            jnp.zeros((self.devices * places, facts.shape[1]), facts.dtype).at[at].set(facts, mode="drop")
        )
        ids, row, owner, owner_row, moved, present = (x.reshape(self.devices, places) for x in seated.T)
        return ids, present > 0, StateRows(row, owner, owner_row, moved > 0)

    def gathered(self, states: Any) -> Any:
        """All clients' states by number, in this process's memory, of those that lie on the devices."""

        def leaf(x: Any) -> np.ndarray:
            parts = sorted(x.addressable_shards, key=lambda part: part.index[0].start or 0)
            return np.concatenate([np.asarray(part.data)[: self.block] for part in parts])[: self.clients]

        return jax.tree.map(leaf, states)

    def shapes_by_client(self, shapes: Any) -> Any:
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct((self.clients, *s.shape[1:]), s.dtype), shapes)

    def by_device(self, states: Any) -> Any:
        """The rows of all devices, of these or of all clients' states by number."""

        def leaf(x: Any) -> Any:
            if len(x) == self.rows:
                return x
            rows = np.zeros((self.devices, self.block + self.spare, *x.shape[1:]), x.dtype)
            for device in range(self.devices):
                own = x[device * self.block : (device + 1) * self.block]
                rows[device, : len(own)] = own
            return rows.reshape(-1, *x.shape[1:])

        return jax.tree.map(leaf, states)


def whole(state: Any, state_sharding: StateSharding | None, clients: bool = True) -> Any:
    """A run's state as `local_copy` has it, with the clients' states by number, or without them."""
    if state_sharding is None:
        return local_copy(state)
    rest = local_copy(replace(state, clients=()))
    return replace(rest, clients=state_sharding.gathered(state.clients) if clients else ())


class StateRows(NamedTuple):
    """Where the states of a cohort are, all of shape (devices, places).

    `rows` are those on the device that trains a client; `owner` keeps the state between rounds, in its `owner_row`.
    """

    rows: Array
    owner: Array
    owner_row: Array
    moved: Array


def move_states(states: Any, state_rows: StateRows, back: bool) -> Any:
    """This device's states with those that others keep and it trains with; `back`: with those that others trained."""
    # some are sent at once, from where they are
    places, me = state_rows.rows.shape[1], lax.axis_index(CLIENT_AXIS)
    row_bytes = sum(math.prod(x.shape[1:]) * x.dtype.itemsize for x in jax.tree.leaves(states))
    at_once = max(1, min(places, _MOVE_BYTES // max(1, row_bytes)))
    moved = state_rows.moved.reshape(-1)
    total = jnp.sum(moved)
    which = jnp.nonzero(moved, size=-(-len(moved) // at_once) * at_once, fill_value=0)[0]
    rows, owner, owner_row = (
        x.reshape(-1)[which] for x in (state_rows.rows, state_rows.owner, state_rows.owner_row)
    )
    ends = [(owner, owner_row), (which // places, rows)]
    (sender, sent), (receiver, received) = reversed(ends) if back else ends
    receives = receiver == me
    take = jnp.where(sender == me, sent, 0)
    # a device that receives none writes what it has
    into, source = jnp.where(receives, received, take), jnp.where(receives, sender, me)
    here = receives & (jnp.arange(len(which)) < total)

    def some(number: Any, states: Any) -> Any:
        of_now = [lax.dynamic_slice_in_dim(x, number * at_once, at_once) for x in (take, into, source, here)]
        taken, rows, come_from, arrive = of_now
        from_all = lax.all_gather(jax.tree.map(lambda x: x[taken], states), CLIENT_AXIS, tiled=True)
        arrived = come_from * at_once + jnp.arange(at_once)
        return scatter(states, rows, arrive, jax.tree.map(lambda x: x[arrived], from_all))

    return lax.fori_loop(0, -(-total // at_once), some, states)


def all_gather_rows(rows: Any) -> Any:
    """The rows of all devices, one behind another; small ones meet as one matrix, since every meeting costs a wait."""
    # of a matrix all axes of a row stay joined: XLA on a CPU (JAX 0.10.2) copies columns into rows of several
    # axes number by number
    leaves, structure = jax.tree.flatten(rows)
    clients, alike = len(leaves[0]), {x.dtype for x in leaves}
    if len(alike) > 1 or trees.nbytes(rows) > _GATHER_BYTES:
        return lax.all_gather(rows, CLIENT_AXIS, tiled=True)
    widths = [math.prod(x.shape[1:]) for x in leaves]
    wide = jnp.concatenate([x.reshape(clients, w) for x, w in zip(leaves, widths, strict=True)], axis=1)
    gathered = lax.all_gather(wide, CLIENT_AXIS, tiled=True)
    return structure.unflatten(jnp.split(gathered, np.cumsum(widths)[:-1], axis=1))


def scatter(clients: Any, ids: Array, present: Array, after: Any) -> Any:
    """Write the cohort's states back; padding rows point outside and are dropped."""
    # after: the new ones, of as many axes, or with all axes of a row joined
    if not jax.tree.leaves(clients):
        return clients
    if len(ids) == 1:  # an absent client's state is what it was: one row is written in place, nothing dropped
        return jax.tree.map(lambda x, a: lax.dynamic_update_index_in_dim(x, a[0], ids[0], 0), clients, after)
    # no row twice, not even one outside: a GPU whose operations are deterministic sorts all numbers of states otherwise
    rows = jnp.where(present, ids, jax.tree.leaves(clients)[0].shape[0] + jnp.arange(len(ids)))

    def put(x: Array, a: Array) -> Array:
        x_like_a = x.reshape(len(x), *a.shape[1:])
        return x_like_a.at[rows].set(a, mode="drop", unique_indices=True).reshape(x.shape)

    return jax.tree.map(put, clients, after)


# Clients grouped by size: what a compiled round keeps for a client has one length for all of a group.
#
# Padded to the largest of all, every client would draw as long an order, and see as large a batch where it sees all of
# its examples at once. Whatever the group, minibatches and their arithmetic stay the same; a batch of everything is
# shorter.

_PADDED_UP_TO = 64  # examples
_WORTH = 4  # a group more is a program more to compile: it must take three quarters of the padding away


@dataclass(frozen=True)
class Group:
    """Clients of a cohort that are trained by one program, `chunk` side by side; none is larger than `work.rows`."""

    work: LocalWork
    chunk: int


def group_clients(
    works: tuple[LocalWork, ...], counts: np.ndarray, cohort: float, side_by_side: Callable[..., int]
) -> tuple[Group, ...]:
    """The groups of a round, from the longest clients to the shortest; none if all clients are trained alike."""
    # works: as `works_by_size` gives them
    # counts: examples of each client, shape (clients,)
    # side_by_side: how many clients train side by side, by the examples of the `largest`
    if len(works) == 1:
        return ()
    groups = []
    for work, shorter in zip(works, [*(w.rows for w in works[1:]), 0], strict=True):
        members = int(((counts > shorter) & (counts <= work.rows)).sum())
        # as many as nearly every cohort has: two standard deviations beyond the mean
        expected = cohort * members / len(counts)
        wide = min(members, math.ceil(expected + 2 * math.sqrt(expected)))
        groups.append(Group(work, min(side_by_side(largest=work.rows), wide)))
    return tuple(groups)


def works_by_size(work: LocalWork, counts: np.ndarray, steps: np.ndarray) -> tuple[LocalWork, ...]:
    """The local work of clients up to each of a few sizes, the largest first."""
    # counts, steps: examples and local steps of each client, shape (clients,)
    works, sizes = [], _sizes(counts)
    for size, shorter in zip(sizes, [*sizes[1:], 0], strict=True):
        members = (counts > shorter) & (counts <= size)
        most, passes, batch = int(steps[members].max()), work.passes, work.batch_size
        # a client of one batch has an order of its own for each pass of any
        if passes and counts[members].min() > batch:
            passes = math.ceil((steps[members] / -(-counts[members] // batch)).max())
        works.append(
            dataclasses.replace(
                work, rows=size, max_steps=most, passes=passes, batch_size=batch if work.passes else size
            )
        )
    return tuple(works)


def of_client(works: tuple[LocalWork, ...], count: int) -> LocalWork:
    return next(work for work in reversed(works) if count <= work.rows)


def _sizes(counts: np.ndarray) -> list[int]:
    # sizes at which clients are grouped, the largest first: each cut is the one that leaves the least padding
    chosen = [int(counts.max())]
    if chosen[0] <= _PADDED_UP_TO:
        return chosen
    sizes, clients = np.unique(counts, return_counts=True)
    while chosen[-1] > _PADDED_UP_TO:
        below = np.cumsum(clients)
        rows = below * sizes + (below[-1] - below) * sizes[-1]
        best = int(rows.argmin())
        if _WORTH * rows[best] > rows[-1]:
            break
        chosen.append(int(sizes[best]))
        sizes, clients = sizes[: best + 1], clients[: best + 1]
    return chosen


# What is static in a compiled run.

MODEL_AXIS = "model"
"""Name of a mesh's axis: what shares each model."""


@dataclass(frozen=True)
class Program:
    """All that is static in a compiled run; equal programs are compiled once."""

    # `chunk` clients are trained side by side (vmapped); `capacity` is the length of the logs, the rounds of the
    # longest call; a client's message has one of `variants` forms; `groups` are by size, from the longest to the
    # shortest, none if all clients are trained alike.

    work: LocalWork
    chunk: int
    capacity: int
    mesh: Mesh
    variants: int = 1
    groups: tuple[Group, ...] = ()
    state_sharding: StateSharding | None = None
    on_one_core: bool = False

    @property
    def num_shards(self) -> int:
        return self.mesh.shape[CLIENT_AXIS]

    @property
    def is_sharded(self) -> bool:
        return MODEL_AXIS in self.mesh.shape


# What a device trains of a cohort: which clients, in which order, in how many chunks.


def shards(
    program: Program, packed: PackedClients, ids: Array, present: Array
) -> tuple[Array, Array, StateRows | None, int]:
    """Every device's part of the cohort, shape (devices, places), the rows of their states where these are sharded, and
    how many clients share a chunk."""
    # parts are padded to whole chunks; clients of like length share a chunk
    devices = program.num_shards
    per_device, chunk = _places(program, len(ids))
    if program.state_sharding is not None:
        return *program.state_sharding.assign(ids, present, per_device), chunk
    by = ordered_by(program, len(ids))
    if by is not None:
        length = getattr(packed, by)
        order = jnp.argsort(jnp.where(present, -length[ids], 1), stable=True)
        ids, present = ids[order], present[order]
    ids, present = _padded(ids, present, per_device * devices - len(ids))
    # every devices-th client of the sorted cohort: each device gets long and short ones, so that all end together
    ids, present = (x.reshape(per_device, devices).T for x in (ids, present))
    # the last chunk of a group may reach beyond its clients
    room = max((group.chunk for group in program.groups), default=0)
    return *_padded(ids, present, room), None, chunk


def own_shard(program: Program, ids: Array, present: Array) -> tuple[Array, Array]:
    device = lax.axis_index(CLIENT_AXIS) if program.num_shards > 1 else 0
    return ids[device], present[device]


def ordered_by(program: Program, capacity: int) -> Literal["counts", "steps"] | None:
    """What of its clients a cohort of so many places is put in order of, the most first; None if it stays as drawn."""
    if program.groups:
        return "counts"
    per_device, chunk = _places(program, capacity)
    return "steps" if not program.work.in_step and per_device > chunk > 1 else None


def clients_by_device(
    length: np.ndarray | None, ids: np.ndarray, present: np.ndarray, devices: int
) -> list[np.ndarray]:
    """The clients that each device trains of a cohort, as `shards` has them; `length` is what orders them."""
    if devices > 1 and length is not None:
        order = np.argsort(np.where(present, -length[ids], 1), kind="stable")
        ids, present = ids[order], present[order]
    return [ids[d::devices][present[d::devices]] for d in range(devices)]


def _places(program: Program, capacity: int) -> tuple[int, int]:
    # the places of a device's part of a cohort, in whole chunks, and those of a chunk
    per_device = -(-capacity // program.num_shards)
    chunk = min(program.chunk, per_device)
    return -(-per_device // chunk) * chunk, chunk


def _padded(ids: Array, present: Array, empty: int) -> tuple[Array, Array]:
    if not empty:
        return ids, present
    widths = ((0, 0),) * (ids.ndim - 1) + ((0, empty),)
    return jnp.pad(ids, widths), jnp.pad(present, widths)


def group_ranges(
    program: Program, packed: PackedClients, ids: Array, present: Array, chunk: int
) -> list[tuple[Group, Any, Any]]:
    """The groups that are trained, and the places of each one's clients, first .. stop - 1."""
    if not program.groups:
        # cohorts of random size come with present clients first: chunks after the last of them are not run
        last = jnp.max(jnp.where(present, jnp.arange(len(ids)) + 1, 0))
        return [(Group(program.work, chunk), 0, last)]
    sizes = jnp.where(present, packed.counts[ids], 0)  # they come with the longest first
    stops = [jnp.sum(sizes > group.work.rows) for group in program.groups[1:]]
    stops.append(jnp.sum(present))
    return list(zip(program.groups, [0, *stops[:-1]], stops, strict=True))


def num_chunks(group: Group, first: Scalar, stop: Scalar) -> Scalar:
    """How many chunks a group's clients at the places first .. stop - 1 are."""
    return _most(-(-(stop - first) // group.chunk))


@custom_vmap
def _most(number: Scalar) -> Scalar:
    # the number; of several trials the largest: loops of one length keep no trial's states aside
    return number


@_most.def_vmap
def _(trials: int, batched: Any, number: Array) -> tuple[Scalar, bool]:
    return jnp.max(number), False
