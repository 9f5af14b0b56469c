"""Robust reductions that choose or weigh whole vectors: geometric median, Krum, norm clipping.

They work on the client update as one vector; everything else in a message is reduced by its median (see
`fedsolve.methods.robust.reduction.OfVectors`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_integer, check_range
from fedsolve.core.types import Scalar, module, static
from fedsolve.methods.robust.reduction import OfVectors, first, middle


def combination(weight: Array, vectors: Array) -> Array:
    """The sum of w_i v_i over the sum of w_i; zeros if no weight is left."""
    total = jnp.sum(weight)
    share = weight / jnp.where(total > 0, total, 1)
    return jnp.matmul(share.astype(vectors.dtype), vectors, precision=lax.Precision.HIGHEST)


def lengths(vectors: Array) -> Array:
    """|v_i|, shape (clients,); infinite where its square is."""
    return jnp.sqrt(jnp.sum(vectors * vectors, axis=1))


@module
class GeometricMedian(OfVectors):
    """Geometric median, by the smoothed Weiszfeld algorithm (RFA; Pillutla et al. 2022, Algorithm 2).

        v minimises  sum_i p_i |D_i - v|:      v <- sum_i b_i D_i / sum_i b_i,   b_i = p_i / max(nu, |D_i - v|)

    Weights are used: p_i is uniform or by examples, as the method says. It starts at the coordinate-wise median,
    where RFA's code starts at the mean, which one client can put as far away as it likes: from there a few
    iterations would not come back. Clients of less than half the weight, and fewer than half of all, cannot carry
    it off (breakdown point 1/2; Lopuhaä and Rousseeuw 1991): n >= 3 clients are needed, or no client is fewer than
    half.

    Attributes:
        iterations: of Weiszfeld, a fixed number (the paper does with 3); at least 1.
        smoothing: nu, > 0, in units of the client update (1e-6 in the paper).

    Raises:
        InvalidInput: a number out of its range.
    """

    uses_weights: ClassVar[bool] = True
    condition: ClassVar[str] = "n >= 3"
    iterations: int = static(default=8)
    smoothing: Scalar = 1e-6

    def __post_init__(self) -> None:
        check_integer("iterations", self.iterations, 1, bits=31)
        check_range("smoothing", self.smoothing, above=0)

    @property
    def fewest(self) -> Scalar:
        """At least 3 messages: one of two is not a minority."""
        return 3

    def combine(self, vectors: Array, weight: Array, used: Array) -> Array:
        """The smoothed geometric median."""

        def closer(_: Any, v: Array) -> Array:
            near = weight / jnp.maximum(lengths(vectors - v), self.smoothing)
            return jnp.where(jnp.sum(near) > 0, combination(near, vectors), v)

        start = jnp.where(jnp.any(used), middle(vectors, used), 0)
        return lax.fori_loop(0, self.iterations, closer, start)


@module
class MultiKrum(OfVectors):
    """Multi-Krum (Blanchard et al. 2017): the mean of the `keep` vectors closest to their neighbours.

        score(i) = sum of |D_i - D_j|^2 over the n - f - 2 vectors D_j closest to D_i,   n clients used

    Weights are ignored: a client could choose its own. Needed are 2f + 2 < n (their condition) and keep <= n - f:
    then no vector that is averaged lies farther from one of the honest ones than sqrt(n - f - 2) times the largest
    distance of two of these; of more vectors one is an attacker's, whatever it sends. Two clients that are
    each other's one neighbour have equal scores: the shorter vector comes first, so that no order of clients
    matters. Distances are taken one client at a time: n^2 d work, n d memory.

    Attributes:
        attackers: f, how many clients of a cohort may attack, at least 0; below (n - 2) / 2.
        keep: how many are averaged, at least 1, at most n - f.

    Raises:
        InvalidInput: a number that is not whole or out of its range.
    """

    condition: ClassVar[str] = "2 attackers + 2 < n and keep <= n - attackers"
    attackers: Scalar
    keep: Scalar

    def __post_init__(self) -> None:
        check_range("attackers", self.attackers, at_least=0, whole=True)
        check_range("keep", self.keep, at_least=1, whole=True)

    @property
    def fewest(self) -> Scalar:
        """At least max(2f + 3, keep + f) messages."""
        return jnp.maximum(2 * self.attackers + 3, self.keep + self.attackers)

    def combine(self, vectors: Array, weight: Array, used: Array) -> Array:
        """The mean of the vectors with the smallest scores."""
        chosen = first(self.keep, krum_scores(vectors, used, self.attackers), lengths(vectors), used)
        return combination(chosen.astype(vectors.dtype), vectors)


@module
class Krum(OfVectors):
    """Krum (Blanchard et al. 2017): the vector closest to its neighbours; `MultiKrum` with keep = 1.

    Needed is 2f + 2 < n (their condition): see `MultiKrum` for what then holds.

    Attributes:
        attackers: f, how many clients of a cohort may attack, at least 0; below (n - 2) / 2.

    Raises:
        InvalidInput: a number that is not whole or out of its range.
    """

    condition: ClassVar[str] = "2 attackers + 2 < n"
    attackers: Scalar

    def __post_init__(self) -> None:
        check_range("attackers", self.attackers, at_least=0, whole=True)

    @property
    def fewest(self) -> Scalar:
        """At least 2f + 3 messages."""
        return 2 * self.attackers + 3

    def combine(self, vectors: Array, weight: Array, used: Array) -> Array:
        """The vector with the smallest score."""
        return MultiKrum(self.attackers, 1).combine(vectors, weight, used)


def krum_scores(vectors: Array, used: Array, attackers: Scalar) -> Array:
    """Sums of squared distances to the n - f - 2 nearest others, shape (clients,); those not used do not count."""
    count, numbers = jnp.sum(used), jnp.arange(len(used))

    def to_others(i: Array) -> Array:  # differences, not products: no digit cancels
        squares = jnp.sum((vectors - vectors[i]) ** 2, axis=1)
        return jnp.sort(jnp.where(used & (numbers != i), squares, jnp.inf))

    nearest = lax.map(to_others, numbers)
    neighbours = jnp.maximum(count - attackers - 2, 1)
    return jnp.sum(jnp.where(numbers < neighbours, nearest, 0), axis=1)


@module
class NormClipping(OfVectors):
    """Norm clipping: the mean of updates clipped to a norm, sum_i p_i D_i min(1, bound / |D_i|).

    Weights are used, as the method says. The bound limits how far a client can pull, p_i bound, not where to: many
    attackers still carry the mean off, slowly. Of a number given as bound that is true of every n; the median length
    is the others' where fewer than half attack, so n >= 3 clients are needed.

    Attributes:
        bound: the largest length, > 0, in units of the client update; None (or "median") is the median length of
            the cohort, which needs no tuning.

    Raises:
        InvalidInput: a bound that is not positive.
    """

    uses_weights: ClassVar[bool] = True
    condition: ClassVar[str] = "n >= 3, or a number as bound"
    bound: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.bound, str):
            if self.bound != "median":
                raise InvalidInput(f"bound = {self.bound!r} must be a number or 'median'")
            object.__setattr__(self, "bound", None)
        check_range("bound", self.bound, above=0, optional=True)

    @property
    def fewest(self) -> Scalar:
        """At least 3 messages if the bound is the median norm, 1 if it is a number."""
        return 3 if self.bound is None else 1

    def combine(self, vectors: Array, weight: Array, used: Array) -> Array:
        """The mean of the clipped vectors."""
        length = lengths(vectors)
        bound = middle(length, used) if self.bound is None else self.bound
        factor = jnp.minimum(1, bound / jnp.where(length > 0, length, 1))
        factor = jnp.where(length > 0, factor, 1).astype(vectors.dtype)
        return combination(weight, vectors * factor[:, None])
