"""A cohort's local work: clients vmapped in chunks, chunks scanned, the cohort split over devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.sharding import Mesh
from jaxtyping import Array

from fedsolve import trees, wire
from fedsolve.algorithm import Algorithm
from fedsolve.engine.client_oracle import client_oracle
from fedsolve.engine.clients import LocalWork, PackedClients
from fedsolve.engine.reduce import (
    Stacked,
    Totals,
    across_devices,
    from_all_devices,
    merge,
    nothing,
    put,
    room_for,
    stack_messages,
    sum_messages,
)
from fedsolve.types import Scalar

AXIS = "clients"


@dataclass(frozen=True)
class Program:
    """All that is static in a compiled run; equal programs are compiled once.

    Attributes:
        work: local work.
        chunk: clients trained side by side (vmapped); 1 trains one after another.
        capacity: rounds of the longest call, the length of the logs.
        mesh: the devices that share each cohort.
        variants: forms that a client's message may have (see `fedsolve.wire.variants`).
    """

    work: LocalWork
    chunk: int
    capacity: int
    mesh: Mesh
    variants: int = 1


def train_cohort(
    program: Program,
    algorithm: Algorithm,
    packed: PackedClients,
    key: Array,
    broadcast: Any,
    clients: Any,
    ids: Array,
    present: Array,
) -> tuple[Totals | Stacked, Any]:
    """Train the cohort's clients: this device's share in chunks; sums and client states of all devices.

    Where the algorithm has a reduction of its own, messages are not summed as they come but kept, those of all
    devices on each: memory is the cohort's messages instead of a chunk's.
    """
    devices = program.mesh.size
    ids, present, chunk = _share(program, packed, ids, present, devices)
    one, common = partial(_train_one, program), (algorithm, packed, key, broadcast)
    summed = algorithm.reduction is None
    collect = sum_messages if summed else partial(stack_messages, algorithm.reduction)

    def train(ids: Array, present: Array, clients: Any) -> tuple[Any, Any]:
        bound = program.work.max_steps
        if not program.work.in_step:
            bound = jnp.max(jnp.where(present, packed.steps[ids], 0))
        before = _gather(clients, ids)
        if chunk == 1:
            alone = one(*common, bound, ids[0], present[0], _gather(before, 0))
            results = jax.tree.map(lambda x: jnp.asarray(x)[None], alone)
        else:
            results = _side_by_side(one, (*common, bound), (ids, present, before))
        message, after, weight, used, variant = results
        totals = collect(message, weight, used, variant, present)
        return totals, _scatter(clients, ids, present, after)

    if len(ids) == chunk:
        totals, updated = train(ids, present, clients)
    else:
        blocks = (ids.reshape(-1, chunk), present.reshape(-1, chunk))
        shapes, _ = jax.eval_shape(train, blocks[0][0], blocks[1][0], clients)
        # cohorts of random size come with present clients first: chunks after the last of them are not run
        busy = jnp.max(jnp.where(jnp.any(blocks[1], axis=1), jnp.arange(len(blocks[1])) + 1, 0))

        def step(i: Scalar, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            totals, clients = carry
            more, clients = train(blocks[0][i], blocks[1][i], clients)
            return merge(totals, more) if summed else put(totals, more, i), clients

        none = nothing(shapes) if summed else room_for(algorithm.reduction, shapes, len(blocks[0]))
        totals, updated = lax.fori_loop(0, busy, step, (none, clients))
    if devices > 1:
        totals = across_devices(totals, AXIS) if summed else from_all_devices(totals, AXIS)
        if jax.tree.leaves(clients):  # every device takes over what the others' clients have become
            theirs = lax.all_gather((ids, present, _gather(updated, ids)), AXIS, tiled=True)
            updated = _scatter(clients, *theirs)
    return totals, updated


def _share(
    program: Program, packed: PackedClients, ids: Array, present: Array, devices: int
) -> tuple[Array, Array, int]:
    """This device's part of the cohort, padded to whole chunks; clients of like length share a chunk."""
    per_device = -(-len(ids) // devices)
    chunk = min(program.chunk, per_device)
    per_device = -(-per_device // chunk) * chunk
    if not program.work.in_step and per_device > chunk > 1:
        order = jnp.argsort(jnp.where(present, -packed.steps[ids], 1), stable=True)
        ids, present = ids[order], present[order]
    pad = per_device * devices - len(ids)
    ids = jnp.concatenate([ids, jnp.zeros(pad, ids.dtype)]) if pad else ids
    present = jnp.concatenate([present, jnp.zeros(pad, bool)]) if pad else present
    if devices == 1:
        return ids, present, chunk
    share = lax.axis_index(AXIS) + devices * jnp.arange(per_device)  # dealt in turn: equal loads
    return ids[share], present[share], chunk


def _train_one(
    program: Program,
    algorithm: Algorithm,
    packed: PackedClients,
    key: Array,
    broadcast: Any,
    bound: Scalar,
    client: Scalar,
    present: Scalar,
    before: Any,
) -> tuple[Any, Any, Scalar, Scalar, Array]:
    """One client's message, state, weight, whether it is used (absent and non-finite ones are not), variant."""
    oracle = client_oracle(program.work, packed, key, client, bound)
    sent, after = algorithm.train(broadcast, before, oracle)
    message, _ = algorithm.receive(broadcast, sent, before)
    # integers cannot show that a client failed: its state does
    used = present & trees.all_finite((sent, after) if trees.has_codes(sent) else sent)
    dtype = trees.dtype_of(message)
    weight = jnp.where(used, oracle.num_examples if algorithm.weighting == "examples" else 1, 0).astype(dtype)
    variant = wire.variants(sent).which
    return message, trees.where(used, after, before), weight, used, variant


def _side_by_side(one: Callable[..., Any], common: Any, own: Any) -> Any:
    """`one(*common, *own)` for each client, `own` with a leading axis.

    Vmapped again, over the trials of a sweep, clients stay the outer axis: all trials' weights of one client then lie
    side by side and meet its examples in one matrix product, without a copy that turns the axes.
    """

    def each(common: Any, own: Any) -> Any:
        return one(*common, *own)

    if common[0].remembers:  # JAX (0.10) takes no mutable array inside a custom_vmap
        return jax.vmap(each, in_axes=(None, 0))(common, own)

    @custom_vmap
    def clients(common: Any, own: Any) -> Any:
        return jax.vmap(each, in_axes=(None, 0))(common, own)

    @clients.def_vmap
    def _(trials: int, batched: Any, common: Any, own: Any) -> tuple[Any, Any]:
        over_trials = jax.vmap(
            each, in_axes=jax.tree.map(lambda b: 0 if b else None, tuple(batched)), axis_size=trials
        )
        turned = jax.tree.map(lambda b, x: jnp.moveaxis(x, 0, 1) if b else x, batched[1], own)
        results = jax.vmap(over_trials, in_axes=(None, 0))(common, turned)
        results = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), results)
        return results, jax.tree.map(lambda x: True, results)

    return clients(common, own)


def _gather(clients: Any, ids: Any) -> Any:
    return jax.tree.map(lambda x: x[ids], clients)


def _scatter(clients: Any, ids: Array, present: Array, after: Any) -> Any:
    """Write the cohort's states back; padding rows point outside and are dropped."""
    if not jax.tree.leaves(clients):
        return clients
    if len(ids) == 1:  # an absent client's state is what it was: one row is written in place, nothing dropped
        return jax.tree.map(lambda x, a: lax.dynamic_update_index_in_dim(x, a[0], ids[0], 0), clients, after)
    rows = jnp.where(present, ids, jax.tree.leaves(clients)[0].shape[0])
    return jax.tree.map(lambda x, a: x.at[rows].set(a, mode="drop"), clients, after)
