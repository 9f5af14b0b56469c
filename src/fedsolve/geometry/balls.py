"""Balls of the vector norms: l1, l2 (Frobenius), l-infinity and boxes, lp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from fedsolve.core import trees
from fedsolve.core.building import number
from fedsolve.core.errors import InvalidInput, check_range
from fedsolve.core.types import Scalar, converted, module
from fedsolve.core.wire import Index
from fedsolve.geometry.regularizer import ConvexSet, ProjectableSet
from fedsolve.geometry.simplex import first_largest, onto_simplex


@module
class L1Ball(ProjectableSet):
    """L1 ball, |w|_1 <= radius. A vertex is a signed unit vector and is sent as one integer.

    Attributes:
        radius: the bound on |w|_1, above 0.

    Raises:
        InvalidInput: a radius that is not positive and finite.
    """

    radius: Scalar = number(above=0, name="radius of L1Ball")
    spreads_nan: ClassVar[bool] = True

    def violation(self, w: Array) -> Scalar:
        return jnp.maximum(jnp.sum(jnp.abs(w)) - self.radius, 0)

    def vertex(self, g: Array, warm: Any = None) -> Index:
        # 2 j + (g_j > 0) for the largest |g_j|, the first of them in a tie
        return self.vertex_of([g])

    def point(self, code: Index, like: Array) -> Array:
        # -radius sign(g_j) e_j; NaN everywhere for no valid vertex
        return self.point_of(code, [like])[0]

    def vertex_of(self, parts: Sequence[Array], warm: Any = None) -> Index:
        # the vertex of a vector in parts: the largest of each, then of those; nothing is copied
        largest = [first_largest(jnp.abs(part.ravel())) for part in parts]
        values = jnp.stack([part.ravel()[j] for part, j in zip(parts, largest, strict=True)])
        which = jnp.argmax(jnp.abs(values))  # the first of a tie, the first NaN
        starts = np.cumsum([0, *(part.size for part in parts)])
        index = jnp.asarray(starts[:-1], jnp.int32)[which] + jnp.stack(largest)[which]
        value, size = values[which], int(starts[-1])
        code = jnp.where(jnp.isnan(value), 2 * size, 2 * index + (value > 0))
        return Index(code.astype(jnp.int32), 2 * size)

    def point_of(self, code: Index, like: Sequence[Array]) -> list[Array]:
        starts = np.cumsum([0, *(part.size for part in like)])
        value = jnp.where(code.value < code.below, self.radius * (1 - 2 * (code.value % 2)), jnp.nan)
        rest = 0 * value  # NaN where there is no vertex
        leaves = []
        for start, part in zip(starts, like, strict=False):
            # a comparison instead of a scatter: it melts into what uses the point, which is never stored
            here = jnp.arange(part.size, dtype=jnp.int32) == code.value // 2 - int(start)
            leaves.append(jnp.where(here, value, rest).astype(part.dtype).reshape(part.shape))
        return leaves

    def project(self, w: Array) -> Array:
        # soft threshold by the amount that makes |w|_1 = radius (Duchi et al. 2008); w itself inside.
        size = jnp.abs(w)
        outer = onto_simplex(size.ravel(), self.radius).reshape(w.shape)
        return jnp.where(jnp.sum(size) <= self.radius, w, jnp.sign(w) * outer).astype(w.dtype)


@module
class L2Ball(ProjectableSet):
    """L2 ball, |w|_2 <= radius (Frobenius norm for matrices). Its extreme points are dense.

    Attributes:
        radius: the bound on |w|_2, above 0.

    Raises:
        InvalidInput: a radius that is not positive and finite.
    """

    radius: Scalar = number(above=0, name="radius of L2Ball")

    def violation(self, w: Array) -> Scalar:
        return jnp.maximum(jnp.linalg.norm(w.ravel()) - self.radius, 0)

    def vertex(self, g: Array, warm: Any = None) -> Array:
        # -radius g / |g|; 0 if g is 0, where every point is a minimiser
        norm = jnp.linalg.norm(g.ravel())
        return (g * (-self.radius / jnp.where(norm > 0, norm, 1))).astype(g.dtype)

    def vertex_of(self, parts: Sequence[Array], warm: Any = None) -> tuple[Array, ...]:
        # the vertex of a vector in parts, in the same parts: nothing is copied together
        norm = jnp.sqrt(sum((jnp.sum(part * part) for part in parts), jnp.zeros((), parts[0].dtype)))
        scale = -self.radius / jnp.where(norm > 0, norm, 1)
        return tuple((part * scale).astype(part.dtype) for part in parts)

    def point_of(self, code: Sequence[Array], like: Sequence[Array]) -> list[Array]:
        return list(code)

    def project(self, w: Array) -> Array:
        # w scaled down to the radius if it is longer
        norm = jnp.linalg.norm(w.ravel())
        return (w * jnp.minimum(1, self.radius / jnp.where(norm > 0, norm, 1))).astype(w.dtype)


@module
class LInfBall(ProjectableSet):
    """L-infinity ball, max |w_j| <= radius. A vertex is a corner and is sent as one bit per coordinate.

    Bits cannot say NaN: where g is NaN the corner is the one of g = 0.

    Attributes:
        radius: the bound on every |w_j|, above 0.

    Raises:
        InvalidInput: a radius that is not positive and finite.
    """

    radius: Scalar = number(above=0, name="radius of LInfBall")
    separable: ClassVar[bool] = True
    propagates_nan: ClassVar[bool] = False

    def violation(self, w: Array) -> Scalar:
        return jnp.maximum(jnp.max(jnp.abs(w)) - self.radius, 0)

    def vertex(self, g: Array, warm: Any = None) -> Bool[Array, " *shape"]:
        # the bits g_j > 0: the corner is -radius where the bit is set, +radius elsewhere
        return g > 0

    def point(self, code: Array, like: Array) -> Array:
        return jnp.where(code, -jnp.asarray(self.radius), self.radius).astype(like.dtype)

    def project(self, w: Array) -> Array:
        return jnp.clip(w, -self.radius, self.radius).astype(w.dtype)


def _bound(bound: Scalar | np.ndarray | Sequence[float]) -> Any:
    return bound


@module
class Box(ProjectableSet):
    """Box, lower <= w <= upper, with numbers or arrays of the leaf's shape. A vertex is sent as one bit per coordinate.

    Bits cannot say NaN: where g is NaN the corner is the one of g = 0.

    Attributes:
        lower: the lower bounds, finite: a number or an array of the leaf's shape.
        upper: the upper bounds, above `lower` everywhere, likewise.

    Raises:
        InvalidInput: a bound that is not finite, or lower not below upper.
    """

    lower: Any = converted(converter=_bound)
    upper: Any = converted(converter=_bound)
    separable: ClassVar[bool] = True
    propagates_nan: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            if isinstance(getattr(self, name), list | tuple):
                object.__setattr__(self, name, np.asarray(getattr(self, name), float))  # one leaf, not many
        if not (trees.is_not_traced(self.lower) and trees.is_not_traced(self.upper)):
            return
        low, high = np.asarray(self.lower), np.asarray(self.upper)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise InvalidInput("lower and upper of Box must be finite")
        if low.shape and high.shape and low.shape != high.shape:
            raise InvalidInput(f"lower and upper of Box have shapes {low.shape} and {high.shape}")
        if not (low < high).all():
            gap = float((high - low).min())
            raise InvalidInput(
                f"lower of Box must be below upper everywhere: upper - lower falls to {gap:.3g}"
            )

    def check(self, shape: tuple[int, ...], where: str) -> None:
        for name, bound in (("lower", self.lower), ("upper", self.upper)):
            if jnp.shape(bound) not in ((), tuple(shape)):
                raise InvalidInput(
                    f"{name} of Box has shape {jnp.shape(bound)}, {where} {shape}: give a number or that shape"
                )

    def violation(self, w: Array) -> Scalar:
        return jnp.maximum(jnp.max(jnp.maximum(self.lower - w, w - self.upper)), 0).astype(w.dtype)

    def vertex(self, g: Array, warm: Any = None) -> Bool[Array, " *shape"]:
        # the bits g_j > 0: the corner is at lower where the bit is set, at upper elsewhere
        return g > 0

    def point(self, code: Array, like: Array) -> Array:
        return jnp.where(code, self.lower, self.upper).astype(like.dtype)

    def project(self, w: Array) -> Array:
        return jnp.clip(w, self.lower, self.upper).astype(w.dtype)


@module
class LpBall(ConvexSet):
    """Lp ball, |w|_p <= radius for any real p > 1. Its extreme points are dense.

    Attributes:
        radius: the bound on |w|_p, above 0.
        p: above 1 and finite.

    Raises:
        InvalidInput: p = 1 or infinity, which have sets of their own; p < 1, where no norm is.
    """

    radius: Scalar = number(above=0, name="radius of LpBall")
    p: Scalar

    def __post_init__(self) -> None:
        if isinstance(self.p, Real) and float(self.p) in (1.0, math.inf):
            other = "L1Ball" if float(self.p) == 1.0 else "LInfBall"
            raise InvalidInput(f"p = {self.p} of LpBall: use {other}(radius), which is exact and sends less")
        check_range("p of LpBall", self.p, above=1)

    def violation(self, w: Array) -> Scalar:
        # max(|w|_p - radius, 0), scaled by the largest entry so that no power overflows
        size, top = _scaled(w)
        norm = top * jnp.sum(size**self.p) ** (1 / jnp.asarray(self.p))
        return jnp.maximum(norm - self.radius, 0).astype(w.dtype)

    def vertex(self, g: Array, warm: Any = None) -> Array:
        # -radius sign(g) |g|^(q-1) / | |g|^(q-1) |_p with q = p / (p - 1); 0 if g is 0. |g|^((q-1) p) = |g|^q
        # is the power times |g|: one power an entry.
        size, _ = _scaled(g)
        power = jnp.where(size > 0, jnp.where(size > 0, size, 1) ** (1 / (jnp.asarray(self.p) - 1)), size)
        total = jnp.sum(power * size)
        scale = self.radius * jnp.where(total > 0, total, 1) ** (-1 / jnp.asarray(self.p))
        return (-scale * jnp.sign(g) * power).astype(g.dtype)


def _scaled(x: Array) -> tuple[Array, Array]:
    top = jnp.max(jnp.abs(x))
    top = jnp.where(top == 0, 1, top)
    return jnp.abs(x) / top, top
