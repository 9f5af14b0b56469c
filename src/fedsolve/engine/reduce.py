"""Reducing a cohort's messages as each field says: sums while clients are trained, the mean at the end."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int

from fedsolve.types import Scalar, module, reductions


@module
class Totals:
    """A cohort's messages summed so far: memory is one model, whatever the cohort.

    Attributes:
        message: each leaf a weighted sum, a plain sum or a maximum, as its field says.
        weight: sum of the weights.
        size: clients whose message was finite.
        sent: messages sent, counted by their variant, shape (variants,); most have one.
    """

    message: Any
    weight: Scalar
    size: Scalar
    sent: Int[Array, " variants"]

    def reduce(self) -> Any:
        """The reduced message; zeros for an empty cohort."""
        weight, size = jnp.where(self.size > 0, self.weight, 1), jnp.maximum(self.size, 1)
        divisors = {"mean": weight, "average": size, "max": 1}

        def finish(by: str, total: Array) -> Array:
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
        w = (weight if by == "mean" else used).astype(x.dtype)
        return jnp.tensordot(w, jnp.where(keep, x, 0), 1, precision=lax.Precision.HIGHEST)

    sent = jnp.sum(variant & present[:, None], axis=0, dtype=jnp.int32)
    return Totals(jax.tree.map(total, reductions(message), message), jnp.sum(weight), jnp.sum(used), sent)


def merge(a: Totals, b: Totals) -> Totals:
    """The totals of two disjoint groups of clients together."""
    join = {"mean": jnp.add, "average": jnp.add, "max": jnp.maximum}
    message = jax.tree.map(lambda by, x, y: join[by](x, y), reductions(a.message), a.message, b.message)
    return Totals(message, a.weight + b.weight, a.size + b.size, a.sent + b.sent)


def nothing(shapes: Totals) -> Totals:
    """The totals of no client."""
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    lowest = jax.tree.map(
        lambda by, x: jnp.full_like(x, -jnp.inf) if by == "max" else x, reductions(zero.message), zero.message
    )
    return Totals(lowest, zero.weight, zero.size, zero.sent)


def across_devices(totals: Totals, axis: str) -> Totals:
    """The totals of all devices together: all sums meet as one vector, since every meeting costs a wait."""
    how = reductions(totals.message)
    sums = (
        jax.tree.map(lambda by, x: jnp.zeros(()) if by == "max" else x, how, totals.message),
        totals.weight,
        totals.size.astype(totals.weight.dtype),
        totals.sent.astype(totals.weight.dtype),
    )
    flat, unravel = ravel_pytree(sums)
    message, weight, size, sent = unravel(lax.psum(flat, axis))
    message = jax.tree.map(
        lambda by, total, x: lax.pmax(x, axis) if by == "max" else total, how, message, totals.message
    )
    return Totals(message, weight, size.astype(totals.size.dtype), sent.astype(totals.sent.dtype))
