"""A cohort's local work: clients vmapped in chunks, chunks scanned, the cohort split over devices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int

from fedsolve.core import trees, wire
from fedsolve.core.algorithm import Algorithm, round_of
from fedsolve.core.oracle import TrainedRound, beginning_of
from fedsolve.core.types import Scalar, Traced, module, reductions, replace
from fedsolve.core.xla.products import with_client_products
from fedsolve.engine.compute.clients import LocalWork, PackedClients, client_oracle
from fedsolve.engine.compute.sharding import (
    CLIENT_AXIS,
    Group,
    Program,
    StateRows,
    all_gather_rows,
    group_ranges,
    move_states,
    num_chunks,
    own_shard,
    scatter,
    shards,
)

# Reducing a cohort's messages as each field says: sums while clients are trained, the mean at the end.
#
# A method with a `reduction` of its own is another matter: its cohort's messages are kept side by side for it.


@module
class Totals:
    """A cohort's messages summed so far: memory is one model, whatever the cohort."""

    # Each leaf of the message is a weighted sum, a plain sum (of integers modulo 2^32) or a maximum, as its field
    # says; `size` counts the clients whose message was finite, `sent` the messages by their variant.

    message: Any
    weight: Traced
    size: Traced
    sent: Int[Array, " variants"]

    def reduce(self) -> Any:
        weight, size = jnp.where(self.size > 0, self.weight, 1), jnp.maximum(self.size, 1)
        divisors = {"mean": weight, "average": size, "max": 1}

        def finish(by: str, total: Array) -> Array:
            if by == "sum":
                return total
            value = (total / divisors[by]).astype(total.dtype)
            return jnp.where(self.size > 0, value, 0) if by == "max" else value

        return jax.tree.map(finish, reductions(self.message), self.message)


def sum_messages(message: Any, weight: Array, used: Array, variant: Array, present: Array) -> Totals:
    """Sums over the first axis; a message that is not used counts for nothing, even if it is not finite."""
    # `variant` is the one-hot form of each message, shape (clients, variants)

    def total(by: str, x: Array) -> Array:
        keep = used.reshape(-1, *(1,) * (x.ndim - 1))
        if by == "max":
            return jnp.max(jnp.where(keep, x, -jnp.inf), axis=0)
        if by == "sum":
            return jnp.sum(jnp.where(keep, x, 0), axis=0, dtype=x.dtype)
        # (clients,) times (clients, ...): zeros first, since 0 * nan is nan
        w = (weight if by == "mean" else used).astype(x.dtype)
        return jnp.tensordot(w, jnp.where(keep, x, 0), 1, precision=lax.Precision.HIGHEST)

    sent = jnp.sum(variant & present[:, None], axis=0, dtype=jnp.int32)
    return Totals(jax.tree.map(total, reductions(message), message), jnp.sum(weight), jnp.sum(used), sent)


def merge(a: Totals, b: Totals) -> Totals:
    join = {"mean": jnp.add, "average": jnp.add, "max": jnp.maximum, "sum": jnp.add}
    message = jax.tree.map(lambda by, x, y: join[by](x, y), reductions(a.message), a.message, b.message)
    return Totals(message, a.weight + b.weight, a.size + b.size, a.sent + b.sent)


def empty_totals(shapes: Totals) -> Totals:
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    lowest = jax.tree.map(
        lambda by, x: jnp.full_like(x, -jnp.inf) if by == "max" else x, reductions(zero.message), zero.message
    )
    return Totals(lowest, zero.weight, zero.size, zero.sent)


def all_reduce(totals: Totals, axis: str) -> Totals:
    """The totals of all devices together: all sums meet as one vector, since every meeting costs a wait."""
    how = reductions(totals.message)
    alone = {"max": lax.pmax, "sum": lax.psum}  # integers have the same sum in any order
    sums = (
        jax.tree.map(lambda by, x: jnp.zeros(()) if by in alone else x, how, totals.message),
        totals.weight,
        totals.size.astype(totals.weight.dtype),
        totals.sent.astype(totals.weight.dtype),
    )
    # counts travel in the type of the weights: exact up to 2^24 clients in float32
    flat, unravel = ravel_pytree(sums)
    message, weight, size, sent = unravel(_sum_in_order(flat, axis))
    message = jax.tree.map(
        lambda by, total, x: alone[by](x, axis) if by in alone else total, how, message, totals.message
    )
    return Totals(message, weight, size.astype(totals.size.dtype), sent.astype(totals.sent.dtype))


def all_reduce_sharded(totals: Totals, axis: str) -> Totals:
    """The same of models that lie in parts: each array for itself, since one vector of all would lie whole."""
    meet = {"mean": lax.psum, "average": lax.psum, "max": lax.pmax, "sum": lax.psum}
    message = jax.tree.map(lambda by, x: meet[by](x, axis), reductions(totals.message), totals.message)
    return Totals(message, *lax.psum((totals.weight, totals.size, totals.sent), axis))


def _sum_in_order(flat: Array, axis: str) -> Array:
    # the sum over devices in their order; that of `lax.psum` depends on the processes that they are spread over
    devices = lax.axis_size(axis)
    parts = jnp.pad(flat, (0, -len(flat) % devices)).reshape(devices, -1)
    part = jnp.sum(lax.all_to_all(parts, axis, 0, 0), axis=0)  # each device adds up one
    return lax.all_gather(part, axis, tiled=True)[: len(flat)]


@module
class Stacked:
    """A cohort's messages side by side, for a reduction that is no sum: memory is the cohort's messages."""

    # `weight` and `used` are of each, shape (clients,): absent and non-finite ones are not used, their weight is 0.

    reduction: Any
    message: Any
    weight: Array
    used: Array
    sent: Int[Array, " variants"]

    @property
    def size(self) -> Scalar:
        return jnp.sum(self.used)

    def reduce(self) -> Any:
        return self.reduction(self.message, self.weight, self.used)


def stack_messages(
    reduction: Any, message: Any, weight: Array, used: Array, variant: Array, present: Array
) -> Stacked:
    """What `sum_messages` is to a mean."""
    sent = jnp.sum(variant & present[:, None], axis=0, dtype=jnp.int32)
    return Stacked(reduction, message, weight, used, sent)


def allocate(reduction: Any, shapes: Stacked, clients: int) -> Stacked:
    """Room for the messages of so many clients, none of them used yet; `shapes` are those of some."""

    def room(s: Any) -> Array:
        return jnp.zeros((clients, *s.shape[1:]), s.dtype)

    rows = [jax.tree.map(room, part) for part in (shapes.message, shapes.weight, shapes.used)]
    return Stacked(reduction, rows[0], rows[1], rows[2], jnp.zeros(shapes.sent.shape, shapes.sent.dtype))


def write_chunk(into: Stacked, chunk: Stacked, start: Scalar) -> Stacked:
    """The messages of a chunk in their place and those that follow."""

    def rows(x: Array, y: Array) -> Array:
        return lax.dynamic_update_slice_in_dim(x, y, start, 0)

    message = jax.tree.map(rows, into.message, chunk.message)
    weight, used = rows(into.weight, chunk.weight), rows(into.used, chunk.used)
    return Stacked(chunk.reduction, message, weight, used, into.sent + chunk.sent)


def all_gather_messages(stacked: Stacked, axis: str) -> Stacked:
    rows = (stacked.message, stacked.weight, stacked.used)
    message, weight, used = lax.all_gather(rows, axis, tiled=True)
    return Stacked(stacked.reduction, message, weight, used, lax.psum(stacked.sent, axis))


def reduce_stacked(algorithm: Algorithm, messages: Any, weight: Array, used: Array) -> Any:
    """The reduced message of a cohort whose messages, after `receive`, lie side by side."""
    # by the algorithm's own reduction, else as each field says: what the engine makes of one chunk, to the bit
    # messages: leaves of shape (clients, ...)
    # weight: of each in a mean, shape (clients,), in the messages' type; 0 where not used
    # used: booleans of shape (clients,); what a row holds that is not used does not matter
    one = jnp.ones((len(used), 1), bool)
    if algorithm.traits.reduction is None:
        return sum_messages(messages, weight, used, one, used).reduce()
    return stack_messages(algorithm.traits.reduction, messages, weight, used, one, used).reduce()


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
    """Train the cohort's clients: this device's share in chunks; sums and client states of all devices."""
    # where the algorithm has a reduction of its own, messages are not summed as they come but kept, those of
    # all devices on each: memory is the cohort's messages instead of a chunk's. `ids` are places among the
    # packed clients and among `clients`, their states.
    # everyone: ids and presence of all devices, (devices, places) each; below, those of this device, (places,)
    *everyone, state_rows, chunk = shards(program, packed, ids, present)
    ids, present = own_shard(program, *everyone)
    rows = ids  # of their states
    if state_rows is not None:
        rows = own_shard(program, state_rows.rows, everyone[1])[0]
        clients = move_states(clients, state_rows, back=False)
    shared = _Shared(algorithm, packed, key, broadcast)
    # sums need the memory of one message, a reduction of the method's own that of the cohort's messages
    summed = algorithm.traits.reduction is None
    collect = sum_messages if summed else partial(stack_messages, algorithm.traits.reduction)

    # traced once, for the shapes below and in the loop
    results_of = jax.jit(lambda *given: _train_some(*given), static_argnums=0, inline=True)

    def train(work: LocalWork, ids: Array, present: Array, before: Any) -> tuple[Any, Any]:
        message, after, weight, used, variant = results_of(work, shared, ids, present, before)
        return collect(message, weight, used, variant, present), after

    def one_chunk(group: Group, first: Any, stop: Any, i: Scalar, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        totals, clients, before = carry
        start = first + i * group.chunk
        # a group's last chunk reaches into the next group's clients: those are absent here
        chunk_ids, chunk_rows, here = (
            lax.dynamic_slice_in_dim(x, start, group.chunk) for x in (ids, rows, present)
        )
        here &= start + jnp.arange(group.chunk) < stop
        before = _gather(clients, chunk_rows) if before is None else before
        more, after = train(group.work, chunk_ids, here, before)
        totals = merge(totals, more) if summed else write_chunk(totals, more, start)
        clients = scatter(clients, chunk_rows, here, after)
        return totals, clients, states_of(clients, group, start + group.chunk)

    def states_of(clients: Any, group: Group, start: Any) -> Any:
        # read when those before are written, and carried: XLA would else read them again while a client is written,
        # from a copy of all (JAX 0.10.2, CPU; `python benchmarks/bench.py w4`, FedFW over an l2 ball)
        return _gather(clients, lax.dynamic_slice_in_dim(rows, start, 1)) if group.chunk == 1 else None

    # clients' states after the round: written chunk by chunk into `updated`, or all at once from the rows `states`
    states = None
    if not program.groups and len(ids) == chunk:
        totals, states = train(program.work, ids, present, _gather(clients, rows))
        updated = clients
    else:
        # what a loop carries must have its shapes before the first chunk is trained; those of sums and of one message
        # depend neither on how many clients a chunk has nor on which, so a chunk of one is traced for them
        one = (ids[:1], present[:1], _gather(clients, rows[:1]))
        shapes, _ = jax.eval_shape(partial(train, program.work), *one)
        totals: Any = (
            empty_totals(shapes) if summed else allocate(algorithm.traits.reduction, shapes, len(ids))
        )
        updated = clients
        for group, first, stop in group_ranges(program, packed, ids, present, chunk):
            step = partial(one_chunk, group, first, stop)
            carry = (totals, updated, states_of(updated, group, first))
            totals, updated, _ = lax.fori_loop(0, num_chunks(group, first, stop), step, carry)
    if program.num_shards > 1:
        meet = all_reduce_sharded if program.is_sharded else all_reduce
        totals = (meet if summed else all_gather_messages)(totals, CLIENT_AXIS)
    return totals, _states_of_all(program, clients, updated, states, everyone, state_rows)


def _states_of_all(
    program: Program,
    before: Any,
    updated: Any,
    rows: Any,
    everyone: list[Array],
    state_rows: StateRows | None,
) -> Any:
    # all clients' states after a round
    # updated: those of this device's clients already written, where it trained them chunk by chunk
    # rows: those of this device's clients, where it trained them all at once; else None
    # everyone: places and presence of every device's clients, as `shards` gives them
    # state_rows: where their states are while they are trained; None where each device has all
    ids, present = own_shard(program, *everyone)
    if state_rows is not None:
        own = own_shard(program, state_rows.rows, everyone[1])[0]
        own = updated if rows is None else scatter(updated, own, present, rows)
        return move_states(own, state_rows, back=True)
    if program.is_sharded:
        own = updated if rows is None else scatter(updated, ids, present, rows)
        return _merge_sharded_states(before, own, ids, present)
    # each device is told the states of the others' clients
    if program.num_shards > 1 and jax.tree.leaves(before):
        rows = all_gather_rows(_gather(updated, ids) if rows is None else rows)
        ids, present = (x.reshape(-1) for x in everyone)
    return updated if rows is None else scatter(updated, ids, present, rows)


class _Shared(NamedTuple):
    # what all clients of a round share
    algorithm: Algorithm
    packed: PackedClients
    key: Array
    broadcast: Any


def _train_some(work: LocalWork, shared: _Shared, ids: Array, present: Array, before: Any) -> Any:
    # what clients side by side make of a round, a leading axis (len(ids),)
    one, bound = partial(_train_one, work), work.max_steps
    if not work.in_step:
        bound = jnp.max(jnp.where(present, shared.packed.steps[ids], 0))
    if len(ids) == 1:
        alone = one(shared, bound, ids[0], present[0], _gather(before, 0))
        return jax.tree.map(lambda x: jnp.asarray(x)[None], alone)
    return _side_by_side(one, (shared, bound), (ids, present, before))


def _train_one(
    work: LocalWork, shared: _Shared, bound: Scalar, slot: Scalar, present: Scalar, before: Any
) -> tuple[Any, Any, Scalar, Scalar, Array]:
    # one client's message, state, weight, whether it is used (absent and non-finite ones are not), variant
    algorithm, packed, key, broadcast = shared
    number = packed.number(slot)
    oracle: Any = client_oracle(work, packed, key, number, bound, slot)
    if (loop := getattr(work.loss, "training_loop", None)) is not None:
        # a client whose local work is a training loop of its own
        oracle = TrainedRound(None, number, oracle.key)
        start, buffers = beginning_of(algorithm.train, broadcast, before, oracle)  # pyright: ignore
        method: Any = algorithm  # of a wrapper `local` is the inner method's
        outcome = loop(start, buffers, method.local, (number, round_of(broadcast), present))
        oracle = replace(oracle, outcome=outcome)
    sent, after = algorithm.train(broadcast, before, oracle)
    sent = jax.tree.map(partial(_zero_if_absent, present), sent)
    message, _ = algorithm.receive(broadcast, sent, before)
    # an absent client trains too, on whatever its place holds: its results are masked, its state stays
    used = present & algorithm.is_finite(sent, after)
    dtype = trees.dtype_of(message)
    weight = jnp.where(
        used, oracle.num_examples if algorithm.traits.weighting == "examples" else 1, 0
    ).astype(dtype)
    variant = wire.variants(sent).which
    return message, trees.where(used, after, before), weight, used, variant


def _zero_if_absent(present: Scalar, x: Any) -> Any:
    # of a large array alone, for speed: XLA fuses a difference with the choice and computes it where it is read, so
    # that no message as large as the model is written. One operation alone on a kernel (out, c, 3, 3) takes four
    # times as long on a CPU (JAX 0.10.2)
    large = jnp.size(x) >= 2**16 and jnp.issubdtype(jnp.result_type(x), jnp.inexact)
    return jnp.where(present, x, 0) if large else x


def _side_by_side(one: Callable[..., Any], common: Any, own: Any) -> Any:
    # `one(*common, *own)` for each client, `own` with a leading axis
    # vmapped again, over the trials of a sweep, clients stay the outer axis: all trials' weights of one client
    # then lie side by side and meet its examples in one matrix product, without a copy that turns the axes
    def each(common: Any, own: Any) -> Any:
        return one(*common, *own)

    if common[0].algorithm.traits.mutates_buffers:  # JAX (0.10) takes no mutable array inside a custom_vmap
        return jax.vmap(each, in_axes=(None, 0))(common, own)

    @custom_vmap
    def clients(common: Any, own: Any) -> Any:
        return with_client_products(jax.vmap(each, in_axes=(None, 0)))(common, own)

    @clients.def_vmap
    def _(trials: int, batched: Any, common: Any, own: Any) -> tuple[Any, Any]:
        over_trials = jax.vmap(
            each, in_axes=jax.tree.map(lambda b: 0 if b else None, tuple(batched)), axis_size=trials
        )
        turned = jax.tree.map(lambda b, x: jnp.moveaxis(x, 0, 1) if b else x, batched[1], own)
        results = with_client_products(jax.vmap(over_trials, in_axes=(None, 0)), common=2)(common, turned)
        results = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), results)
        return results, jax.tree.map(lambda x: True, results)

    return clients(common, own)


def _merge_sharded_states(before: Any, own: Any, ids: Array, present: Array) -> Any:
    # all clients' states where those of each device's clients are its own: sums, which leave arrays in parts
    def leaf(x: Array, y: Array) -> Array:
        mine = jnp.zeros(len(x), bool).at[jnp.where(present, ids, len(x))].set(True, mode="drop")
        rows = (-1,) + (1,) * (x.ndim - 1)
        new = lax.psum(jnp.where(mine.reshape(rows), y, 0), CLIENT_AXIS).astype(x.dtype)
        return jnp.where((lax.psum(mine.astype(jnp.int32), CLIENT_AXIS) > 0).reshape(rows), new, x)

    return jax.tree.map(leaf, before, own)


def _gather(clients: Any, ids: Any) -> Any:
    return jax.tree.map(lambda x: x[ids], clients)
