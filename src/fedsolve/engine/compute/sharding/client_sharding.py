"""What a device trains of a cohort: which clients, in which order, in how many chunks."""

from __future__ import annotations

from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from fedsolve.core.types import Scalar
from fedsolve.engine.compute.clients import PackedClients
from fedsolve.engine.compute.groups import Group
from fedsolve.engine.compute.program import CLIENT_AXIS, Program
from fedsolve.engine.compute.sharding.state_sharding import StateRows


def shards(
    program: Program, packed: PackedClients, ids: Array, present: Array
) -> tuple[Array, Array, StateRows | None, int]:
    """Every device's part of the cohort, shape (devices, places), the rows of their states where these are sharded, and
    how many clients share a chunk.

    Parts are padded to whole chunks; clients of like length share a chunk.
    """
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
    """This device's part of `shards`."""
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
    """The places of a device's part of a cohort, in whole chunks, and those of a chunk."""
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
    """The number; of several trials the largest: loops of one length keep no trial's states aside."""
    return number


@_most.def_vmap
def _(trials: int, batched: Any, number: Array) -> tuple[Scalar, bool]:
    return jnp.max(number), False
