"""The simplex and polytopes given by their vertices; and the projection that the l1-like balls share."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from fedsolve.core import trees
from fedsolve.core.building import integer, number
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Scalar, module, static
from fedsolve.core.wire import Index
from fedsolve.geometry.regularizer import ConvexSet, ProjectableSet

_ROW = 1024
_MAX_STEPS = 5000


def first_largest(x: Array) -> Int[Array, ""]:
    """The place of the largest entry of a vector, the first in a tie, the first NaN if there is one."""
    # Maxima of rows come first, then one row is searched: a maximum is vectorised on a CPU, an argmax is not, and
    # what computes x is done once, not stored.
    if x.size <= _ROW:
        return jnp.argmax(x).astype(jnp.int32)
    rows, rest = divmod(x.size, _ROW)
    tops = jnp.max(x[: rows * _ROW].reshape(rows, _ROW), axis=1)
    if rest:
        tops = jnp.append(tops, jnp.max(x[rows * _ROW :]))
    start = jnp.minimum(jnp.argmax(tops) * _ROW, x.size - _ROW)  # the last row overlaps the one before
    return (start + jnp.argmax(lax.dynamic_slice_in_dim(x, start, _ROW))).astype(jnp.int32)


def onto_simplex(a: Array, radius: Scalar) -> Array:
    """The point of {u >= 0, sum u = radius} nearest to a vector: max(a - t, 0) for the right t."""
    # Newton's method on sum (s - b)+ = radius for s = max a - t and b = max a - a (Michelot 1986, Condat 2016): the
    # sum is convex and piecewise linear, so the steps fall to the root and reach it exactly after finitely many, some
    # ten. Counting from the maximum keeps a small radius exact beside large entries.
    radius = jnp.asarray(radius, a.dtype)
    b = jnp.max(a) - a

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        s, _ = state
        excess = jnp.sum(jnp.maximum(s - b, 0)) - radius
        return s - excess / jnp.sum((b < s).astype(a.dtype)), s

    start = jnp.minimum(radius, (radius + jnp.sum(b)) / a.size)  # both lie right of the root
    s, _ = lax.while_loop(lambda state: state[0] < state[1], step, step((start, start)))
    return jnp.maximum(s - b, 0)


@module
class Simplex(ProjectableSet):
    """Simplex, w >= 0 with sum w = radius. A vertex is a unit vector and is sent as one integer.

    Attributes:
        radius: the sum of the entries, above 0.

    Raises:
        InvalidInput: a radius that is not positive and finite.
    """

    radius: Scalar = number(default=1.0, above=0, name="radius of Simplex")
    spreads_nan: ClassVar[bool] = True

    def violation(self, w: Array) -> Scalar:
        return jnp.maximum(jnp.maximum(-jnp.min(w), 0), jnp.abs(jnp.sum(w) - self.radius)).astype(w.dtype)

    def vertex(self, g: Array, warm: Any = None) -> Index:
        # the place of the smallest entry, the first in a tie
        flat = g.ravel()
        index = first_largest(-flat)
        return Index(jnp.where(jnp.isnan(flat[index]), flat.size, index), flat.size)

    def point(self, code: Index, like: Array) -> Array:
        # radius e_j; NaN everywhere for no valid vertex
        rest = jnp.where(code.value < like.size, 0, jnp.nan).astype(like.dtype)
        # a comparison instead of a scatter: it melts into what uses the point, which is then never stored
        here = jnp.arange(like.size, dtype=jnp.int32) == code.value
        return jnp.where(here, jnp.asarray(self.radius, like.dtype), rest).reshape(like.shape)

    def project(self, w: Array) -> Array:
        # max(w - t, 0) with the t that makes the sum right; see `onto_simplex`
        return onto_simplex(w.ravel(), self.radius).reshape(w.shape)


@module
class Polytope(ConvexSet):
    """Polytope, the convex hull of `vertices` of shape (k, *shape). A vertex is sent as its number.

    Attributes:
        vertices: the points, shape (k, *shape of the leaf), finite.

    Raises:
        InvalidInput: no vertices, or one that is not finite.
    """

    vertices: Any
    spreads_nan: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.vertices, list | tuple):
            object.__setattr__(self, "vertices", np.asarray(self.vertices, float))  # one leaf, not many
        if not trees.is_not_traced(self.vertices):
            return
        vertices = np.asarray(self.vertices)
        if vertices.ndim < 2 or vertices.shape[0] == 0:
            raise InvalidInput(
                f"vertices of Polytope have shape {vertices.shape}: give (k, *shape of the leaf)"
            )
        if not np.isfinite(vertices).all():
            raise InvalidInput("vertices of Polytope must be finite")

    def check(self, shape: tuple[int, ...], where: str) -> None:
        if jnp.shape(self.vertices)[1:] != tuple(shape):
            raise InvalidInput(
                f"Polytope has vertices of shape {jnp.shape(self.vertices)[1:]}, {where} {shape}"
            )

    def violation(self, w: Array) -> Scalar:
        # the distance to the polytope, by a hyperplane that separates w from it: never above the distance.
        # max(min_i <V_i - w, x>, 0) / |x| for x near the least-norm point of the hull of V - w, found by
        # accelerated projected gradient steps on the convex weights with restarts (Nesterov; O'Donoghue and
        # Candes 2015). They stop once |x| is within 1e-9 (or 8 roundings) of it, relative to the farthest
        # vertex; 5000 steps at most, after which the value may be too small, never too large.
        rays = (self._rows(w) - w.ravel()).astype(w.dtype)
        reach = jnp.sqrt(jnp.max(jnp.sum(rays * rays, axis=1)))
        rays = rays / jnp.where(reach > 0, reach, 1)
        tolerance = max(1e-9, 8 * float(jnp.finfo(w.dtype).eps))
        step = 1 / jnp.maximum(jnp.linalg.norm(rays @ rays.T), tolerance)  # Frobenius bounds the largest

        def bound(x: Array) -> tuple[Array, Array]:
            length = jnp.linalg.norm(x)
            return length, jnp.min(rays @ x) / jnp.where(length > 0, length, 1)

        def unfinished(s: tuple[Array, ...]) -> Array:
            length, low = bound(s[0] @ rays)
            return (jnp.minimum(length - low, length) > tolerance) & (s[3] < _MAX_STEPS)

        def advance(s: tuple[Array, ...]) -> tuple[Array, ...]:
            weights, ahead, momentum, k = s
            new = onto_simplex(ahead - step * (rays @ (ahead @ rays)), 1.0)
            restart = jnp.sum((ahead - new) * (new - weights)) > 0
            momentum = jnp.where(restart, 1.0, momentum)
            grown = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
            push = jnp.where(restart, 0.0, (momentum - 1) / grown)
            return new, new + push * (new - weights), grown.astype(w.dtype), k + 1

        count = rays.shape[0]
        start = jnp.full(count, 1 / count, w.dtype)
        unit, zero = jnp.ones((), w.dtype), jnp.zeros((), jnp.int32)
        weights = lax.while_loop(unfinished, advance, (start, start, unit, zero))[0]
        return reach * jnp.maximum(bound(weights @ rays)[1], 0)

    def vertex(self, g: Array, warm: Any = None) -> Index:
        # the number of the vertex with the smallest <g, V_i>, the first in a tie
        scores = self._rows(g) @ g.ravel()
        index = first_largest(-scores)
        return Index(jnp.where(jnp.isnan(scores[index]), scores.size, index), scores.size)

    def point(self, code: Index, like: Array) -> Array:
        # V_i; NaN everywhere for no valid vertex
        rows = self._rows(like)
        vertex = rows[jnp.minimum(code.value, rows.shape[0] - 1)].reshape(like.shape)
        return jnp.where(code.value < code.below, vertex, jnp.nan)

    def _rows(self, like: Array) -> Array:
        return jnp.asarray(self.vertices, like.dtype).reshape(-1, math.prod(like.shape))


# Sets of structured sparsity: the group-l1 ball (few groups) and the k-support ball (few entries, bounded l2).


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

    radius: Scalar = number(above=0, name="radius of GroupL1Ball")
    axis: int = static(default=-1)

    def check(self, shape: tuple[int, ...], where: str) -> None:
        if not -len(shape) <= self.axis < len(shape):
            raise InvalidInput(
                f"GroupL1Ball along axis {self.axis}: {where} has shape {tuple(shape)}; put it on leaves with "
                f"that axis, such as GroupL1Ball({self.radius}).on('weight')"
            )

    def violation(self, w: Array) -> Scalar:
        return jnp.maximum(jnp.sum(jnp.linalg.norm(w, axis=self.axis)) - self.radius, 0)

    def vertex(self, g: Array, warm: Any = None) -> Group:
        # the group of largest norm, the first in a tie, and -g_group / |g_group|
        rows = jnp.moveaxis(g, self.axis, -1).reshape(-1, g.shape[self.axis])
        norms = jnp.linalg.norm(rows, axis=1)
        group = first_largest(norms)
        norm, count = norms[group], norms.size
        first = (jnp.arange(rows.shape[1]) == 0).astype(g.dtype)  # if g is 0, where any vertex will do
        direction = jnp.where(norm == 0, first, -rows[group] / jnp.where(norm == 0, 1, norm))
        return Group(Index(jnp.where(jnp.isnan(norm), count, group), count), direction)

    def point(self, code: Group, like: Array) -> Array:
        # radius times the direction in its group, 0 elsewhere; NaN everywhere for no valid group
        moved = jnp.moveaxis(like, self.axis, -1).shape
        count, group = code.index.below, code.index.value
        rest = jnp.where(group < count, 0, jnp.nan).astype(like.dtype)
        rows = jnp.full((count, moved[-1]), rest, like.dtype)
        row = jnp.where(group < count, self.radius * code.direction, jnp.nan).astype(like.dtype)
        rows = rows.at[jnp.minimum(group, count - 1)].set(row)
        return jnp.moveaxis(rows.reshape(moved), -1, self.axis)

    def project(self, w: Array) -> Array:
        # each group shortened, its norms projected on the simplex of that radius; w itself inside
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

    radius: Scalar = number(above=0, name="radius of KSupportBall")
    k: int = integer(bits=None, name="k of KSupportBall")

    def check(self, shape: tuple[int, ...], where: str) -> None:
        if self.k > (size := math.prod(shape)):
            raise InvalidInput(f"KSupportBall with k = {self.k}: {where} has only {size} entries: lower k")

    def violation(self, w: Array) -> Scalar:
        return jnp.maximum(k_support_norm(w.ravel(), self.k) - self.radius, 0)

    def vertex(self, g: Array, warm: Any = None) -> Sparse:
        # -radius g_I / |g_I| on the places I of the k largest |g_j|, the first ones in a tie; 0 if g is 0
        flat = g.ravel()
        _, indices = lax.top_k(jnp.abs(flat), self.k)
        selected = flat[indices]
        top = jnp.max(jnp.abs(selected))
        selected = selected / jnp.where(top == 0, 1, top)  # its square neither overflows nor vanishes
        norm = jnp.linalg.norm(selected)
        entries = selected * (-self.radius / jnp.where(norm == 0, 1, norm))
        return Sparse(Index(indices.astype(jnp.int32), flat.size), entries.astype(g.dtype))

    def point(self, code: Sparse, like: Array) -> Array:
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
