"""Reducing a cohort's messages as each field says: sums while clients are trained, the mean at the end.

A method with a `reduction` of its own is another matter: its cohort's messages are kept side by side for it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.types import Scalar, Traced, module, reductions


@module
class Totals:
    """A cohort's messages summed so far: memory is one model, whatever the cohort.

    Attributes:
        message: each leaf a weighted sum, a plain sum (of integers modulo 2^32) or a maximum, as its field says.
        weight: sum of the weights.
        size: clients whose message was finite.
        sent: messages sent, counted by their variant, shape (variants,); most have one.
    """

    message: Any
    weight: Traced
    size: Traced
    sent: Int[Array, " variants"]

    def reduce(self) -> Any:
        """The reduced message; zeros for an empty cohort."""
        weight, size = jnp.where(self.size > 0, self.weight, 1), jnp.maximum(self.size, 1)
        divisors = {"mean": weight, "average": size, "max": 1}

        def finish(by: str, total: Array) -> Array:
            if by == "sum":
                return total
            value = (total / divisors[by]).astype(total.dtype)
            return jnp.where(self.size > 0, value, 0) if by == "max" else value

        return jax.tree.map(finish, reductions(self.message), self.message)


def sum_messages(message: Any, weight: Array, used: Array, variant: Array, present: Array) -> Totals:
    """Sums over the first axis; a message that is not used counts for nothing, even if it is not finite.

    `variant` is the one-hot form of each message, shape (clients, variants).
    """

    def total(by: str, x: Array) -> Array:
        keep = used.reshape(-1, *(1,) * (x.ndim - 1))
        if by == "max":
            return jnp.max(jnp.where(keep, x, -jnp.inf), axis=0)
        if by == "sum":
            return jnp.sum(jnp.where(keep, x, 0), axis=0, dtype=x.dtype)
        w = (weight if by == "mean" else used).astype(x.dtype)
        return jnp.tensordot(w, jnp.where(keep, x, 0), 1, precision=lax.Precision.HIGHEST)

    sent = jnp.sum(variant & present[:, None], axis=0, dtype=jnp.int32)
    return Totals(jax.tree.map(total, reductions(message), message), jnp.sum(weight), jnp.sum(used), sent)


def merge(a: Totals, b: Totals) -> Totals:
    """The totals of two disjoint groups of clients together."""
    join = {"mean": jnp.add, "average": jnp.add, "max": jnp.maximum, "sum": jnp.add}
    message = jax.tree.map(lambda by, x, y: join[by](x, y), reductions(a.message), a.message, b.message)
    return Totals(message, a.weight + b.weight, a.size + b.size, a.sent + b.sent)


def empty_totals(shapes: Totals) -> Totals:
    """The totals of no client."""
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
    """The sum over devices in their order; that of `lax.psum` depends on the processes that they are spread over."""
    devices = lax.axis_size(axis)
    parts = jnp.pad(flat, (0, -len(flat) % devices)).reshape(devices, -1)
    part = jnp.sum(lax.all_to_all(parts, axis, 0, 0), axis=0)  # each device adds up one
    return lax.all_gather(part, axis, tiled=True)[: len(flat)]


@module
class Stacked:
    """A cohort's messages side by side, for a reduction that is no sum: memory is the cohort's messages.

    Attributes:
        reduction: of the algorithm.
        message: leaves of shape (clients, ...).
        weight, used: of each message, shape (clients,); absent and non-finite ones are not used, their weight is 0.
        sent: messages sent, counted by their variant, shape (variants,).
    """

    reduction: Any
    message: Any
    weight: Array
    used: Array
    sent: Int[Array, " variants"]

    @property
    def size(self) -> Scalar:
        """Clients whose message is used."""
        return jnp.sum(self.used)

    def reduce(self) -> Any:
        """The reduced message."""
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
    """The messages of all devices on every device."""
    rows = (stacked.message, stacked.weight, stacked.used)
    message, weight, used = lax.all_gather(rows, axis, tiled=True)
    return Stacked(stacked.reduction, message, weight, used, lax.psum(stacked.sent, axis))


def reduce_stacked(algorithm: Algorithm, messages: Any, weight: Array, used: Array) -> Any:
    """The reduced message of a cohort whose messages, after `receive`, lie side by side.

    By the algorithm's own reduction, else as each field says: what the engine makes of one chunk, to the bit.

    Args:
        algorithm: whose messages they are.
        messages: leaves of shape (clients, ...).
        weight: of each in a mean, shape (clients,), in the messages' type; 0 where not used.
        used: booleans of shape (clients,); what a row holds that is not used does not matter.
    """
    one = jnp.ones((len(used), 1), bool)
    if algorithm.traits.reduction is None:
        return sum_messages(messages, weight, used, one, used).reduce()
    return stack_messages(algorithm.traits.reduction, messages, weight, used, one, used).reduce()
