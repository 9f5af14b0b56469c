"""Balls of the vector norms: l1, l2 (Frobenius), l-infinity and boxes, lp."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.errors import check_range
from fedsolve.geometry.regularizer import ProjectableSet
from fedsolve.types import Scalar, module
from fedsolve.wire import Index


@module
class L1Ball(ProjectableSet):
    """|w|_1 <= radius. Extreme points are signed unit vectors: a vertex travels as one small integer."""

    radius: Scalar

    def __post_init__(self) -> None:
        check_range("radius of L1Ball", self.radius, above=0)

    def violation(self, w: Array) -> Scalar:
        """max(|w|_1 - radius, 0)."""
        return jnp.maximum(jnp.sum(jnp.abs(w)) - self.radius, 0)

    def vertex(self, g: Array, warm: Any = None) -> Index:
        """2 j + (g_j > 0) for the largest |g_j|, the first of them in a tie."""
        flat = g.ravel()
        size = jnp.abs(flat)
        top = jnp.max(size)
        # a maximum and a minimum are vectorised on a CPU, argmax is not
        place = jnp.min(jnp.where(size == top, jnp.arange(flat.size, dtype=jnp.int32), flat.size))
        code = jnp.where(place < flat.size, 2 * place + (flat[place % flat.size] > 0), 2 * flat.size)
        return Index(code.astype(jnp.int32), 2 * flat.size)

    def point(self, code: Index, like: Array) -> Array:
        """-radius sign(g_j) e_j; NaN everywhere for no valid vertex."""
        sign = jnp.where(code.value < code.below, 1 - 2 * (code.value % 2), jnp.nan).astype(like.dtype)
        where = jnp.arange(like.size, dtype=jnp.int32) == code.value // 2
        return jnp.where(where, sign * self.radius, 0 * sign).reshape(like.shape).astype(like.dtype)

    def project(self, w: Array) -> Array:
        """Soft threshold by the amount that makes |w|_1 = radius (Duchi et al. 2008); w itself inside."""
        size = jnp.abs(w).ravel()
        ordered = jnp.sort(size)[::-1]
        excess = jnp.cumsum(ordered) - self.radius
        active = jnp.sum(ordered * jnp.arange(1, size.size + 1) > excess)
        threshold = jnp.maximum(excess[active - 1] / active, 0)
        return (jnp.sign(w) * jnp.maximum(jnp.abs(w) - threshold, 0)).astype(w.dtype)


@module
class L2Ball(ProjectableSet):
    """|w|_2 <= radius (Frobenius for matrices). Its extreme points are dense."""

    radius: Scalar

    def __post_init__(self) -> None:
        check_range("radius of L2Ball", self.radius, above=0)

    def violation(self, w: Array) -> Scalar:
        """max(|w|_2 - radius, 0)."""
        return jnp.maximum(jnp.linalg.norm(w.ravel()) - self.radius, 0)

    def vertex(self, g: Array, warm: Any = None) -> Array:
        """-radius g / |g|; 0 if g is 0, where every point is a minimiser."""
        norm = jnp.linalg.norm(g.ravel())
        return (-self.radius * g / jnp.where(norm > 0, norm, 1)).astype(g.dtype)

    def project(self, w: Array) -> Array:
        """w scaled down to the radius if it is longer."""
        norm = jnp.linalg.norm(w.ravel())
        return (w * jnp.minimum(1, self.radius / jnp.where(norm > 0, norm, 1))).astype(w.dtype)
