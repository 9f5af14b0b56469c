"""Sets of structured sparsity: the group-l1 ball (few groups) and the k-support ball (few entries, bounded l2)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedsolve.core.errors import InvalidInput, check_integer, check_range
from fedsolve.core.types import Scalar, module, static
from fedsolve.core.wire import Index
from fedsolve.geometry.regularizer import ConvexSet, ProjectableSet
from fedsolve.geometry.sets.simplex import first_largest, onto_simplex


@module
class Group:
    """One group and a unit vector in it."""

    index: Index
    direction: Float[Array, " n"]


@module
class GroupL1Ball(ProjectableSet):
    """Group lasso ball, sum over groups of |w_group|_2 <= radius; a group runs along `axis` (rows for -1).

    A vertex is one group's unit vector: its number and as many floats as a group has.

    Attributes:
        radius: the bound on the sum of the groups' norms, above 0.
        axis: the axis within a group; -1, the last, makes rows groups.

    Raises:
        InvalidInput: a radius that is not positive and finite.
    """

    radius: Scalar
    axis: int = static(default=-1)

    def __post_init__(self) -> None:
        check_range("radius of GroupL1Ball", self.radius, above=0)

    def check(self, shape: tuple[int, ...], where: str) -> None:
        """Raise `InvalidInput` unless there is such an axis."""
        if not -len(shape) <= self.axis < len(shape):
            raise InvalidInput(
                f"GroupL1Ball along axis {self.axis}: {where} has shape {tuple(shape)}; put it on leaves with "
                f"that axis, such as GroupL1Ball({self.radius}).on('weight')"
            )

    def violation(self, w: Array) -> Scalar:
        """max(sum of group norms - radius, 0)."""
        return jnp.maximum(jnp.sum(jnp.linalg.norm(w, axis=self.axis)) - self.radius, 0)

    def vertex(self, g: Array, warm: Any = None) -> Group:
        """The group of largest norm, the first in a tie, and -g_group / |g_group|."""
        rows = jnp.moveaxis(g, self.axis, -1).reshape(-1, g.shape[self.axis])
        norms = jnp.linalg.norm(rows, axis=1)
        group = first_largest(norms)
        norm, count = norms[group], norms.size
        first = (jnp.arange(rows.shape[1]) == 0).astype(g.dtype)  # if g is 0, where any vertex will do
        direction = jnp.where(norm == 0, first, -rows[group] / jnp.where(norm == 0, 1, norm))
        return Group(Index(jnp.where(jnp.isnan(norm), count, group), count), direction)

    def point(self, code: Group, like: Array) -> Array:
        """radius times the direction in its group, 0 elsewhere; NaN everywhere for no valid group."""
        moved = jnp.moveaxis(like, self.axis, -1).shape
        count, group = code.index.below, code.index.value
        rest = jnp.where(group < count, 0, jnp.nan).astype(like.dtype)
        rows = jnp.full((count, moved[-1]), rest, like.dtype)
        row = jnp.where(group < count, self.radius * code.direction, jnp.nan).astype(like.dtype)
        rows = rows.at[jnp.minimum(group, count - 1)].set(row)
        return jnp.moveaxis(rows.reshape(moved), -1, self.axis)

    def project(self, w: Array) -> Array:
        """Each group shortened, its norms projected on the simplex of that radius; w itself inside."""
        norms = jnp.linalg.norm(w, axis=self.axis, keepdims=True)
        short = onto_simplex(norms.ravel(), self.radius).reshape(norms.shape)
        outer = w * (short / jnp.where(norms == 0, 1, norms))
        return jnp.where(jnp.sum(norms) <= self.radius, w, outer).astype(w.dtype)


@module
class Sparse:
    """k places of the ravelled array and the entries there."""

    index: Index
    entries: Float[Array, " k"]


@module
class KSupportBall(ConvexSet):
    """k-support norm ball (Argyriou et al. 2012): convex hull of vectors with k non-zeros and l2 norm <= radius.

    Between the l1 ball (k = 1) and the l2 ball (k = d). A vertex is k places and k floats.

    Attributes:
        radius: the bound on the l2 norm of those vectors, above 0.
        k: non-zeros, 1 to the entries of the leaf.

    Raises:
        InvalidInput: a radius that is not positive and finite, a k that is no integer from 1.
    """

    radius: Scalar
    k: int = static()

    def __post_init__(self) -> None:
        check_range("radius of KSupportBall", self.radius, above=0)
        check_integer("k of KSupportBall", self.k, 1)

    def check(self, shape: tuple[int, ...], where: str) -> None:
        """Raise `InvalidInput` if there are fewer than k entries."""
        size = 1
        for n in shape:
            size *= n
        if self.k > size:
            raise InvalidInput(f"KSupportBall with k = {self.k}: {where} has only {size} entries: lower k")

    def violation(self, w: Array) -> Scalar:
        """max(k-support norm - radius, 0)."""
        return jnp.maximum(k_support_norm(w.ravel(), self.k) - self.radius, 0)

    def vertex(self, g: Array, warm: Any = None) -> Sparse:
        """-radius g_I / |g_I| on the places I of the k largest |g_j|, the first ones in a tie; 0 if g is 0."""
        flat = g.ravel()
        _, indices = lax.top_k(jnp.abs(flat), self.k)
        selected = flat[indices]
        top = jnp.max(jnp.abs(selected))
        selected = selected / jnp.where(top == 0, 1, top)  # its square neither overflows nor vanishes
        norm = jnp.linalg.norm(selected)
        entries = selected * (-self.radius / jnp.where(norm == 0, 1, norm))
        return Sparse(Index(indices.astype(jnp.int32), flat.size), entries.astype(g.dtype))

    def point(self, code: Sparse, like: Array) -> Array:
        """The entries at their places, 0 elsewhere."""
        flat = jnp.zeros(like.size, like.dtype).at[code.index.value].set(code.entries.astype(like.dtype))
        return flat.reshape(like.shape)


def k_support_norm(w: Float[Array, " d"], k: int) -> Scalar:
    """The norm whose unit ball is the hull of the k-sparse vectors of l2 norm 1 (Argyriou et al. 2012, 2.1).

    With |w| sorted downwards, norm^2 = sum_{i < k - r} |w|_i^2 + (sum_{i >= k - r} |w|_i)^2 / (r + 1) for one
    r in 0..k-1. Each r with |w|_{k-r} (r + 1) <= that tail gives a feasible value of the variational form
    min over 0 <= t <= 1, sum t <= k of sum w^2 / t, and the right r its minimum: so the least is taken,
    which rounding and ties cannot mislead.

    >>> float(k_support_norm(jnp.array([3.0, 4.0, 0.0]), 2)), float(k_support_norm(jnp.array([3.0, -4.0]), 1))
    (5.0, 7.0)
    """
    size = jnp.abs(w)
    scale = jnp.max(size)
    scale = jnp.where(scale == 0, 1, scale)
    size = size / scale
    top, _ = lax.top_k(size, k)
    last = top[-1]
    spare = jnp.sum((size >= last).astype(w.dtype)) - k  # entries that equal the k-th but are not among the k
    rest = jnp.sum(jnp.where(size < last, size, 0)) + spare * last
    tail = rest + jnp.cumsum(top[::-1])  # entry r: the sum from place k - r on
    square = jnp.cumsum(top**2)
    head = jnp.concatenate([square[-2::-1], jnp.zeros(1, w.dtype)])  # entry r: squares before place k - r
    r = jnp.arange(k)
    feasible = (top[::-1] * (r + 1) <= tail) | (r == 0)
    square_norm = jnp.min(jnp.where(feasible, head + tail**2 / (r + 1), jnp.inf))
    return scale * jnp.sqrt(square_norm)
