"""The mean of all messages, and the mean without messages of an unusually large norm.

Deployments apply the same rule by default, and carry what is usual from round to round (`deploy/server/outliers.py`).
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from fedsolve.core.types import Scalar, is_module, module, reductions
from fedsolve.methods.robust.reduction import Reduction, column


@module
class Mean(Reduction):
    """As each field of the message says: what a method without a reduction of its own does."""

    uses_weights: ClassVar[bool] = True

    def reduce(self, messages: Any, weight: Array, used: Array) -> Any:
        """Means by weight, means of all alike, maxima."""

        def leaf(by: str, x: Array) -> Array:
            if by == "max":
                return jnp.max(jnp.where(column(used, x), x, -jnp.inf), axis=0)
            share = (weight if by == "mean" else used).astype(x.dtype)
            total = jnp.sum(share)
            return jnp.tensordot(
                share / jnp.where(total > 0, total, 1), x, 1, precision=lax.Precision.HIGHEST
            )

        return jax.tree.map(leaf, reductions(messages), messages)


FACTOR = 1e5
"""A norm that is more than so many times the usual one is far beyond it."""
GROWTH = 2.0
"""How many times larger the usual norm may become in one round, unless most clients of the round are beyond."""


def parts_of(message: Any, name: str = "") -> dict[str, list[Any]]:
    """The arrays of a message by field, without what follows from the client update and is checked against it.

    Args:
        message: a message, its leaves of any shape.
        name: the field that it is the value of.

    Returns:
        The leaves of each field that has some, by the field's name, with the names of those that it lies in before it.
    """
    if not is_module(message):
        leaves = jax.tree.leaves(message)
        return {name or "message": leaves} if leaves else {}
    parts: dict[str, list[Any]] = {}
    for f in dataclasses.fields(message):
        claim = f.metadata.get("claim")
        if not f.metadata.get("static") and (claim is None or claim.of_delta is None):
            parts |= parts_of(getattr(message, f.name), f"{name}.{f.name}".lstrip("."))
    return parts


def usual_norm(norms: Any, before: Any, xp: Any = jnp) -> Any:
    """The norm that is usual in a round: the larger of that of earlier rounds and of this round's median.

    The median is of the norms that are not 0, the smaller of the middle two. It counts for at most `GROWTH` times what
    was usual before, so that honest clients, whose updates grow after an attack, do not make room for the next one. It
    counts in full if it is itself beyond `FACTOR` times that, of three clients or more: then the run has changed, and
    not a client.

    Args:
        norms: of one field, of all clients of the round, shape (clients,), at least 0; 0 for who is not there.
        before: the same after the round before, a scalar; 0 before the first.
        xp: the array library of the norms, NumPy or JAX's.

    Returns:
        A scalar, 0 if all norms were 0 so far.
    """
    count = xp.sum(norms > 0)
    ordered = xp.sort(xp.where(norms > 0, norms, xp.inf))
    median = xp.where(count > 0, ordered[xp.maximum(count - 1, 0) // 2], 0)
    has_changed = (count > 2) & (median > FACTOR * before)
    slowly = xp.maximum(before, xp.minimum(median, GROWTH * before))
    return xp.where((before == 0) | has_changed, median, slowly)


@module
class WithoutOutliers(Reduction):
    """The method's own means, without messages whose norm is far above the round's median.

    A message is left out if the norm of one of its fields, or of all together, is more than `FACTOR` times the usual
    (see `usual_norm`; a reduction keeps nothing between rounds, so that each round is treated as a first one).
    It bounds how far a client can pull, as `NormClipping` does, but leaves the mean of honest clients as it is. What is
    not far beyond the others passes: it is no defence against attackers who want to be inconspicuous. At most half of
    the clients of a round may be beyond: a single one is compared with nobody.
    """

    uses_weights: ClassVar[bool] = True
    condition: ClassVar[str] = "n >= 2"

    @property
    def fewest(self) -> Scalar:
        """At least 2 messages: of two, the smaller norm is the usual one."""
        return 2

    def reduce(self, messages: Any, weight: Array, used: Array) -> Any:
        """Weighted means, plain means and maxima of the remaining messages."""
        left = used & ~_outliers(messages)
        return Mean()(messages, weight, left)


def _outliers(messages: Any) -> Bool[Array, " clients"]:
    """Which messages are far beyond the others; rows that are not used hold zeros."""
    parts = [sum(_squares(x) for x in leaves) for leaves in parts_of(messages).values()]
    norms = [jnp.sqrt(jnp.asarray(squares)) for squares in (*parts, sum(parts))]
    beyond = [norm > FACTOR * usual_norm(norm, jnp.zeros((), norm.dtype)) for norm in norms]
    return jnp.any(jnp.stack(beyond), axis=0)


def _squares(x: Array) -> Array:
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return jnp.sum(jnp.square(x).reshape(len(x), -1), axis=1)
