"""Clients' states sharded over devices: each on one device, and those of a cohort's surplus moved for a round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from fedsolve.core import trees
from fedsolve.core.types import replace
from fedsolve.engine.compute.processes import local_copy

CLIENT_AXIS = "clients"
"""Name of a mesh's axis: what shares a cohort."""
# Measured (benchmarks/FINDINGS.md): up to so many bytes a device trains, all devices keep all clients' states and tell
# one another the new ones, in one gather; beyond, each state stays on one device and only a cohort's surplus moves.
_GATHER_BYTES = 2**24
_MOVE_BYTES = 2**17  # bytes of states that move at once


@dataclass(frozen=True)
class StateSharding:
    """Which device keeps which client's state: each keeps a block of clients, then spare rows for those of others.

    With 5 clients on 2 devices and 1 spare row each, the rows are those of the clients 0 1 2 _ | 3 4 _ _. A device
    that has more of a cohort's states than its share moves the surplus, for the round, to one that has fewer.

    Attributes:
        clients: in all.
        devices: that share them.
        spare: rows of a device for states of clients that another one keeps.
    """

    clients: int
    devices: int
    spare: int

    @classmethod
    def of(
        cls, clients: int, capacity: int, devices: int, state_bytes: int, always: bool
    ) -> StateSharding | None:
        """The sharding of states of so many bytes a client, None where all devices may keep all of them.

        Args:
            clients: in all.
            capacity: of a cohort.
            devices: that share it.
            state_bytes: of a client.
            always: whether every client takes part in every round; then nothing is moved.
        """
        places = -(-capacity // devices)
        return (
            cls(clients, devices, 0 if always else places) if places * state_bytes > _GATHER_BYTES else None
        )

    @property
    def block(self) -> int:
        """Clients whose states a device keeps."""
        return -(-self.clients // self.devices)

    @property
    def rows(self) -> int:
        """Rows of the states of all devices."""
        return self.devices * (self.block + self.spare)

    def assign(
        self, ids: Int[Array, " capacity"], present: Bool[Array, " capacity"], places: int
    ) -> tuple[Int[Array, "devices places"], Bool[Array, "devices places"], StateRows]:
        """Each device's part of a cohort: equally many clients, whose states it keeps as far as that is possible.

        Absent clients have no place: where nobody is present the id is 0.
        """
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
        """The shapes of all clients' states, of those of the devices' rows."""
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

    Attributes:
        rows: on the device that trains a client, its row there.
        owner: the device that keeps it between rounds.
        owner_row: its row there.
        moved: whether these are two devices.
    """

    rows: Array
    owner: Array
    owner_row: Array
    moved: Array


def fetch_states(states: Any, state_rows: StateRows) -> Any:
    """This device's states, with those that others keep and it trains with."""
    return _move(states, state_rows, back=False)


def return_states(states: Any, state_rows: StateRows) -> Any:
    """This device's states, with those of its clients that another one trained."""
    return _move(states, state_rows, back=True)


def _move(states: Any, state_rows: StateRows, back: bool) -> Any:
    """Send the moved states, some at once, from where they are."""
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
    """The rows of all devices, one behind another; small ones meet as one matrix, since every meeting costs a wait.

    Of a matrix all axes of a row stay joined: XLA on a CPU (JAX 0.10.2) copies columns into rows of several axes number
    by number.

    Args:
        rows: arrays whose first axis is that of a device's clients.
    """
    leaves, structure = jax.tree.flatten(rows)
    clients, alike = len(leaves[0]), {x.dtype for x in leaves}
    if len(alike) > 1 or trees.nbytes(rows) > _GATHER_BYTES:
        return lax.all_gather(rows, CLIENT_AXIS, tiled=True)
    widths = [math.prod(x.shape[1:]) for x in leaves]
    wide = jnp.concatenate([x.reshape(clients, w) for x, w in zip(leaves, widths, strict=True)], axis=1)
    gathered = lax.all_gather(wide, CLIENT_AXIS, tiled=True)
    return structure.unflatten(jnp.split(gathered, np.cumsum(widths)[:-1], axis=1))


def scatter(clients: Any, ids: Array, present: Array, after: Any) -> Any:
    """Write the cohort's states back; padding rows point outside and are dropped.

    Args:
        clients: the states of all.
        ids: whose are written.
        present: the others of these are dropped.
        after: the new ones, of as many axes, or with all axes of a row joined.
    """
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
