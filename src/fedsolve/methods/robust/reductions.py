"""Robust reductions by coordinate (Yin et al. 2018), by centred clipping, and by norm."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from fedsolve.core.building import integer, number
from fedsolve.core.types import Scalar, is_module, module, reductions
from fedsolve.methods.robust.vectors import (
    OfVectors,
    Reduction,
    column,
    combination,
    lengths,
    middle,
    of_rank,
    trimmed_means,
)


@module
class CentredClipping(OfVectors):
    """Centred clipping (Karimireddy, He and Jaggi 2021, Section 4): a centre moved by the mean of clipped differences.

        v <- v + sum_i p_i (D_i - v) min(1, radius / |D_i - v|)

    Weights are used, as the method says. The paper starts v at the last round's reduction; a reduction here keeps
    nothing between rounds, so v starts at the coordinate-wise median. From zero, one iteration would be
    `NormClipping`. The paper's guarantee also asks for momentum on the clients, which is the method's business,
    and that at most a tenth attack. What holds here: a client moves v by at most p_i radius an iteration, from a
    median that fewer than half cannot carry off; so n >= 3 clients are needed.

    Attributes:
        radius: the largest length of a difference, > 0, in units of the client update; None is the cohort's median
            |D_i - v| of each iteration, which needs no tuning.
        iterations: at least 1.

    Raises:
        InvalidInput: a number out of its range.
    """

    uses_weights: ClassVar[bool] = True
    condition: ClassVar[str] = "n >= 3"
    radius: Scalar | None = number(default=None, above=0)
    iterations: int = integer(default=3)

    @property
    def fewest(self) -> Scalar:
        # at least 3 messages: the median of two is their mean
        return 3

    def combine(self, vectors: Array, weight: Array, used: Array) -> Array:
        def closer(_: Any, v: Array) -> Array:
            length = lengths(vectors - v)
            radius = middle(length, used) if self.radius is None else self.radius
            factor = jnp.minimum(1, radius / jnp.where(length > 0, length, 1))
            step = jnp.where(used & (length > 0), factor, 1).astype(v.dtype)
            return v + combination(weight, step[:, None] * (vectors - v))

        start = jnp.where(jnp.any(used), middle(vectors, used), 0)
        return lax.fori_loop(0, self.iterations, closer, start)


# Robust reductions of one coordinate at a time: median and trimmed mean (Yin et al. 2018).


@module
class Median(Reduction):
    """Coordinate-wise median of the cohort's messages (Yin et al. 2018, Definition 1).

    Every leaf alike, scalars and maxima included: an attacker must not set a maximum. Of an even number of
    clients it is the mean of the middle two. Weights are ignored. Fewer than half of the clients cannot move
    a coordinate beyond the values of the others: n >= 3 clients are needed, or no client is fewer than half.
    """

    condition: ClassVar[str] = "n >= 3"

    @property
    def fewest(self) -> Scalar:
        # at least 3 messages: the median of two is their mean
        return 3

    def reduce(self, messages: Any, weight: Array, used: Array) -> Any:
        return jax.tree.map(lambda x: middle(x, used), messages)


def _floor(product: Scalar) -> Array:
    """The whole number below a product of two: 0.29 of 100 is 29 but for the rounding of 0.29 and of the product."""
    product = 1.0 * jnp.asarray(product)
    return jnp.floor(product * _above(product.dtype))


def _above(dtype: Any) -> float:
    """Beyond the rounding of a number and of its product with a count, relative to them."""
    return 1 + 4 * float(jnp.finfo(dtype).eps)


@module
class TrimmedMean(Reduction):
    """Trimmed mean: the mean of each coordinate without its extreme values (Yin et al. 2018, Definition 2).

        k = floor(trim n):  the mean of the n - 2k values that are left,  n clients used

    Every leaf alike, scalars included; of a maximum the largest value that is left. Weights are ignored.
    Up to k clients cannot move a coordinate beyond the values of the others: k >= 1 is needed, so n >= 1 / trim.
    trim = 0 is the plain mean, of any n, and guarantees nothing.

    Attributes:
        trim: share cut at each end, at least 0 and below 1/2; at least one value is always left.

    Raises:
        InvalidInput: a share out of its range.
    """

    condition: ClassVar[str] = "floor(trim n) >= 1"
    trim: Scalar = number(default=0.1, at_least=0, below=0.5)

    @property
    def fewest(self) -> Scalar:
        # the smallest number of messages of which one value is cut at each end; 1 where trim is 0
        trim = 1.0 * jnp.asarray(self.trim)
        some = jnp.where(trim > 0, trim, 1)
        return jnp.where(trim > 0, jnp.ceil(1 / (some * _above(trim.dtype))), 1)

    def reduce(self, messages: Any, weight: Array, used: Array) -> Any:
        count = jnp.sum(used)
        cut = jnp.minimum(_floor(self.trim * count).astype(count.dtype), (count - 1) // 2)
        last = jnp.maximum(count - cut, 1) - 1

        def leaf(by: str, x: Array) -> Array:
            values = jnp.where(column(used, x), x, jnp.inf)
            return of_rank(values, last) if by == "max" else trimmed_means(values, cut, last)

        return jax.tree.map(leaf, reductions(messages), messages)


# The mean of all messages, and the mean without messages of an unusually large norm.
#
# Deployments apply the same rule by default, and carry what is usual from round to round
# (`deploy/server/coordinator.py`).


@module
class Mean(Reduction):
    """As each field of the message says: what a method without a reduction of its own does."""

    uses_weights: ClassVar[bool] = True

    def reduce(self, messages: Any, weight: Array, used: Array) -> Any:
        # means by weight, means of all alike, maxima
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
    """The arrays of a message by field, without what follows from the client update and is checked against it."""
    # A field's name begins with those of the fields that it lies in; `name` is that of the message itself.
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
    """The norm that is usual in a round: the larger of that of earlier rounds and of this round's median."""
    # The median is of the norms that are not 0 (0 is for who is not there), the smaller of the middle two. It counts
    # for at most `GROWTH` times what was usual `before`, so that honest clients, whose updates grow after an attack,
    # do not make room for the next one. It counts in full if it is itself beyond `FACTOR` times that, of three
    # clients or more: then the run has changed, and not a client. `xp` is the array library of the norms, NumPy or
    # JAX's.
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
        # at least 2 messages: of two, the smaller norm is the usual one
        return 2

    def reduce(self, messages: Any, weight: Array, used: Array) -> Any:
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
