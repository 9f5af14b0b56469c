"""Balls of the matrix norms: the nuclear norm (sum of singular values) and the spectral norm (the largest)."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from fedsolve.core.building import number
from fedsolve.core.errors import check_range
from fedsolve.core.types import Scalar, module, static
from fedsolve.core.xla.products import eigh, singular_values, svd
from fedsolve.geometry.numerics import polar_factor
from fedsolve.geometry.penalties import check_matrix, quiet
from fedsolve.geometry.regularizer import ProjectableSet
from fedsolve.geometry.simplex import onto_simplex

_KEPT, _STEPS = 10, 6
_NUDGE = 0.03
"""How much of the fixed start is mixed into a warm one, so that a lower singular vector is left again."""


@module
class LeadingPair:
    """sigma_1 = u' G v and its unit vectors, with what was spent on them: how often G'G was applied.

    The residual is |G'u - sigma v| / sigma (or |G v - sigma u| / sigma for a wide G), as Lanczos estimates it.
    """

    u: Float[Array, " m"]
    v: Float[Array, " n"]
    sigma: Scalar
    residual: Scalar
    products: Int[Array, ""]


def fixed_unit(n: int, dtype: object) -> Array:
    """A pseudo-random unit vector, always the same."""
    x = np.random.default_rng(1).standard_normal(n)
    return jnp.asarray(x / np.linalg.norm(x), dtype)  # type: ignore[arg-type]


def leading_pair(
    g: Float[Array, "m n"],
    start: tuple[Array, Array] | None = None,
    tolerance: Scalar = 1e-6,
    max_products: int = 1000,
) -> LeadingPair:
    """The largest singular value of G and its vectors, until |G'u - sigma v| <= tolerance sigma."""
    # The tolerance is at least four units of rounding. The residual makes the error of sigma about tolerance^2 sigma
    # / (relative gap), so clustered singular values cost nothing: any vector of the cluster does. A zero G gives
    # sigma = 0 with some unit vectors, a NaN gives NaN.
    # The start is fixed: a pseudo-random vector plus the longest row of G, or the `start` (u, v) with a little of
    # them. No method that only multiplies can certify that it missed no larger value; to miss it here, the start has
    # to be orthogonal to its vector.
    wide = g.shape[0] < g.shape[1]
    n = min(g.shape)
    top = jnp.max(jnp.abs(g))
    scale = 1 / jnp.where(top == 0, 1, top)  # squares neither overflow nor vanish

    def forward(x: Array) -> Array:
        return (x @ g if wide else g @ x) * scale

    def back(y: Array) -> Array:
        return (g @ y if wide else y @ g) * scale

    retained, steps = min(_KEPT, n), min(_STEPS, n)
    floor = 4 * float(jnp.finfo(g.dtype).eps)
    limit = jnp.maximum(jnp.asarray(tolerance, g.dtype), floor)

    # one cycle: in the basis of the retained Ritz vectors G'G is diagonal, so `small` begins with their values; each
    # step adds a row to it and a vector to the basis, and the eigenvectors of `small` are the next Ritz vectors
    def cycle(s: tuple[Array, ...]) -> tuple[Array, ...]:
        basis, values, direction, _, count = s
        small = jnp.zeros((retained + steps, retained + steps), g.dtype)
        small = small.at[jnp.arange(retained), jnp.arange(retained)].set(values)
        basis = jnp.concatenate([basis, jnp.zeros((steps, n), g.dtype)])

        def extend(j: Array, s: tuple[Array, ...]) -> tuple[Array, ...]:
            basis, small, q, _ = s
            basis = basis.at[retained + j].set(q)
            z = back(forward(q))
            h = basis @ z
            small = small.at[retained + j].set(h).at[:, retained + j].set(h)
            z = z - h @ basis
            z = z - (basis @ z) @ basis  # once is not enough
            length = jnp.linalg.norm(z)
            exhausted = length <= floor * jnp.max(jnp.abs(h))  # what is left is rounding: a zero vector stays
            length = jnp.where(exhausted, 0, length)
            return basis, small, jnp.where(exhausted, 0, z / jnp.where(exhausted, 1, length)), length

        zero = jnp.zeros((), g.dtype)
        basis, small, q, length = lax.fori_loop(0, steps, extend, (basis, small, direction, zero))
        ritz_values, vectors = eigh(small)
        residual = length * jnp.abs(vectors[-1, -1]) / jnp.where(ritz_values[-1] == 0, 1, ritz_values[-1])
        return vectors[:, -retained:].T @ basis, ritz_values[-retained:], q, residual, count + steps

    first = _start(g, wide, start)
    none = jnp.zeros((retained, n), g.dtype), jnp.zeros(retained, g.dtype)
    begin = (*none, first, jnp.asarray(jnp.inf, g.dtype), jnp.zeros((), jnp.int32))
    found = lax.while_loop(lambda s: (s[3] > limit) & (s[4] < max_products), cycle, begin)
    basis, _, _, residual, products = found
    v, _ = _normalised(basis[-1], first)  # 0 if G is
    u = forward(v)
    u, size = _normalised(u, fixed_unit(u.size, g.dtype))
    u, v = (v, u) if wide else (u, v)
    return LeadingPair(u, v, size / scale, residual, products)


def _normalised(x: Array, instead: Array) -> tuple[Array, Array]:
    length = jnp.linalg.norm(x)
    return jnp.where(length == 0, instead, x / jnp.where(length == 0, 1, length)), length


def _start(g: Array, wide: bool, start: tuple[Array, Array] | None) -> Array:
    lengths = jnp.max(jnp.abs(g), axis=0 if wide else 1)
    longest = jnp.argmax(lengths)
    row = g[:, longest] if wide else g[longest]
    x = fixed_unit(row.size, g.dtype) + 2 * _unit(row)  # of unlike lengths, so that they cannot cancel
    if start is not None:
        x = _unit(start[0] if wide else start[1]).astype(g.dtype) + _NUDGE * x
    return _unit(x)


def _unit(x: Array) -> Array:
    top = jnp.max(jnp.abs(x))
    x = x / jnp.where(top == 0, 1, top)
    length = jnp.linalg.norm(x)
    return x / jnp.where(length == 0, 1, length)


@module
class RankOne:
    """Two unit vectors: the matrix -u v', up to the radius. 4 (m + n) bytes in float32 instead of 4 m n."""

    u: Float[Array, " m"]
    v: Float[Array, " n"]


@module
class NuclearBall(ProjectableSet):
    """Nuclear norm ball, sum of singular values <= radius: low-rank matrices. A vertex is -radius u v'.

    The vertex needs the leading singular pair only (`singular.leading_pair`): some tens of products with G
    and none of its decompositions; `project` and `violation` take all singular values.

    Attributes:
        radius: the bound, > 0.
        tolerance: the pair's residual |G'u - sigma v| / sigma, at least four roundings of the type (4.8e-7
            in float32). <G, vertex> is then within that share of its minimum -radius sigma_1, also where
            singular values cluster and the vectors themselves are undetermined.
        max_products: products with G'G after which the pair is taken as it is; at least 1.

    Raises:
        InvalidInput: a radius that is not positive, a tolerance outside (0, 1), max_products below 1.
    """

    radius: Scalar = number(above=0, name="radius of NuclearBall")
    tolerance: Scalar = number(default=1e-6, above=0, below=1, name="tolerance of NuclearBall")
    max_products: int = static(default=1000)
    warm: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range("max_products of NuclearBall", self.max_products, at_least=1)

    def check(self, shape: tuple[int, ...], where: str) -> None:
        check_matrix(f"NuclearBall({self.radius})", shape, where)

    def violation(self, w: Array) -> Scalar:
        return jnp.maximum(jnp.sum(singular_values(quiet(w))) - self.radius, 0)

    def vertex(self, g: Array, warm: RankOne | None = None) -> RankOne:
        # the leading singular pair of g, searched from an earlier one; some unit vectors if g is 0
        start = None if warm is None else (warm.u, warm.v)
        pair = leading_pair(g, start, self.tolerance, self.max_products)
        return RankOne(pair.u, pair.v)

    def point(self, code: RankOne, like: Array) -> Array:
        return (-self.radius * code.u[:, None] * code.v).astype(like.dtype)

    def project(self, w: Array) -> Array:
        # singular values projected on the simplex of that radius; w itself inside
        u, s, v = svd(quiet(w))
        outer = (u * onto_simplex(s, self.radius)) @ v
        return jnp.where(jnp.sum(s) <= self.radius, w, outer).astype(w.dtype)


@module
class SpectralBall(ProjectableSet):
    """Spectral norm ball, largest singular value <= radius. Its extreme points are scaled orthogonal matrices, dense.

    Attributes:
        radius: the bound on the largest singular value, above 0.

    Raises:
        InvalidInput: a radius that is not positive and finite.
    """

    radius: Scalar = number(above=0, name="radius of SpectralBall")

    def check(self, shape: tuple[int, ...], where: str) -> None:
        check_matrix(f"SpectralBall({self.radius})", shape, where)

    def violation(self, w: Array) -> Scalar:
        return jnp.maximum(jnp.max(singular_values(quiet(w))) - self.radius, 0)

    def vertex(self, g: Array, warm: Any = None) -> Array:
        # -radius U V' of the decomposition g = U S V'
        return (-self.radius * polar_factor(quiet(g), complete=True)).astype(g.dtype)

    def project(self, w: Array) -> Array:
        # singular values clipped at the radius; w itself inside
        u, s, v = svd(quiet(w))
        outer = (u * jnp.minimum(s, self.radius)) @ v
        return jnp.where(jnp.max(s) <= self.radius, w, outer).astype(w.dtype)
