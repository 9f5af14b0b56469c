"""The simplex and polytopes given by their vertices; and the projection that the l1-like balls share."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput, check_range
from fedsolve.core.types import Scalar, module
from fedsolve.core.wire import Index
from fedsolve.geometry.regularizer import ConvexSet, ProjectableSet

_ROW = 1024
_MAX_STEPS = 5000


def first_largest(x: Array) -> Int[Array, ""]:
    """The place of the largest entry of a vector, the first in a tie, the first NaN if there is one.

    Maxima of rows come first, then one row is searched: a maximum is vectorised on a CPU, an argmax is not,
    and what computes x is done once, not stored.
    """
    if x.size <= _ROW:
        return jnp.argmax(x).astype(jnp.int32)
    rows, rest = divmod(x.size, _ROW)
    tops = jnp.max(x[: rows * _ROW].reshape(rows, _ROW), axis=1)
    if rest:
        tops = jnp.append(tops, jnp.max(x[rows * _ROW :]))
    start = jnp.minimum(jnp.argmax(tops) * _ROW, x.size - _ROW)  # the last row overlaps the one before
    return (start + jnp.argmax(lax.dynamic_slice_in_dim(x, start, _ROW))).astype(jnp.int32)


def unit_entry(place: Scalar, value: Scalar, like: Array) -> Array:
    """`value` at a place of the ravelled array, 0 elsewhere; NaN everywhere if the place is `like.size`."""
    rest = jnp.where(place < like.size, 0, jnp.nan).astype(like.dtype)
    # a comparison instead of a scatter: it melts into what uses the point, which is then never stored
    here = jnp.arange(like.size, dtype=jnp.int32) == place
    return jnp.where(here, jnp.asarray(value, like.dtype), rest).reshape(like.shape)


def onto_simplex(a: Array, radius: Scalar) -> Array:
    """The point of {u >= 0, sum u = radius} nearest to a vector: max(a - t, 0) for the right t.

    Newton's method on sum (s - b)+ = radius for s = max a - t and b = max a - a (Michelot 1986, Condat
    2016): the sum is convex and piecewise linear, so the steps fall to the root and reach it exactly after
    finitely many, some ten. Counting from the maximum keeps a small radius exact beside large entries.
    """
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

    radius: Scalar = 1.0
    spreads_nan: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range("radius of Simplex", self.radius, above=0)

    def violation(self, w: Array) -> Scalar:
        """max(-min w, |sum w - radius|, 0)."""
        return jnp.maximum(jnp.maximum(-jnp.min(w), 0), jnp.abs(jnp.sum(w) - self.radius)).astype(w.dtype)

    def vertex(self, g: Array, warm: Any = None) -> Index:
        """The place of the smallest entry, the first in a tie."""
        flat = g.ravel()
        index = first_largest(-flat)
        return Index(jnp.where(jnp.isnan(flat[index]), flat.size, index), flat.size)

    def point(self, code: Index, like: Array) -> Array:
        """radius e_j; NaN everywhere for no valid vertex."""
        return unit_entry(code.value, self.radius, like)

    def project(self, w: Array) -> Array:
        """max(w - t, 0) with the t that makes the sum right; see `onto_simplex`."""
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
        """Raise `InvalidInput` unless the vertices have the leaf's shape."""
        if jnp.shape(self.vertices)[1:] != tuple(shape):
            raise InvalidInput(
                f"Polytope has vertices of shape {jnp.shape(self.vertices)[1:]}, {where} {shape}"
            )

    def violation(self, w: Array) -> Scalar:
        """The distance to the polytope, by a hyperplane that separates w from it: never above the distance.

        max(min_i <V_i - w, x>, 0) / |x| for x near the least-norm point of the hull of V - w, found by
        accelerated projected gradient steps on the convex weights with restarts (Nesterov; O'Donoghue and
        Candes 2015). They stop once |x| is within 1e-9 (or 8 roundings) of it, relative to the farthest
        vertex; 5000 steps at most, after which the value may be too small, never too large.
        """
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
        """The number of the vertex with the smallest <g, V_i>, the first in a tie."""
        scores = self._rows(g) @ g.ravel()
        index = first_largest(-scores)
        return Index(jnp.where(jnp.isnan(scores[index]), scores.size, index), scores.size)

    def point(self, code: Index, like: Array) -> Array:
        """V_i; NaN everywhere for no valid vertex."""
        rows = self._rows(like)
        vertex = rows[jnp.minimum(code.value, rows.shape[0] - 1)].reshape(like.shape)
        return jnp.where(code.value < code.below, vertex, jnp.nan)

    def _rows(self, like: Array) -> Array:
        return jnp.asarray(self.vertices, like.dtype).reshape(-1, math.prod(like.shape))
