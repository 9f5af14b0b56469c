"""The leading singular pair of a matrix from products with it alone: no decomposition, no copy.

Thick-restart Lanczos on G'G with full reorthogonalisation (Wu and Simon 2000; Baglama and Reichel 2005, with
the smaller side's basis only). A cycle extends the kept Ritz vectors by some products, solves the small
projected problem and keeps its best vectors. The cost of a cycle is that of its products, 4 m n each.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from fedsolve.core.types import Scalar, module
from fedsolve.core.xla.decompositions import eigh

_KEPT, _STEPS = 10, 6
_NUDGE = 0.03
"""How much of the fixed start is mixed into a warm one, so that a lower singular vector is left again."""


@module
class LeadingPair:
    """sigma_1 and its unit vectors, with what was spent on them.

    Attributes:
        u: shape (m,).
        v: shape (n,).
        sigma: u' G v.
        residual: |G'u - sigma v| / sigma (or |G v - sigma u| / sigma for a wide G), as Lanczos estimates it.
        products: how often G'G was applied.
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
    """The largest singular value of G and its vectors, until |G'u - sigma v| <= tolerance sigma.

    The tolerance is at least four units of rounding. The residual makes the error of sigma about
    tolerance^2 sigma / (relative gap), so clustered singular values cost nothing: any vector of the cluster
    does. A zero G gives sigma = 0 with some unit vectors, a NaN gives NaN.

    The start is fixed: a pseudo-random vector plus the longest row of G, or the `start` (u, v) with a little
    of them. No method that only multiplies can certify that it missed no larger value; to miss it here, the
    start has to be orthogonal to its vector.
    """
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

    def unfinished(s: tuple[Array, ...]) -> Array:
        return (s[3] > limit) & (s[4] < max_products)

    first = _start(g, wide, start)
    none = jnp.zeros((retained, n), g.dtype), jnp.zeros(retained, g.dtype)
    begin = (*none, first, jnp.asarray(jnp.inf, g.dtype), jnp.zeros((), jnp.int32))
    basis, _, _, residual, products = lax.while_loop(unfinished, cycle, begin)
    v, _ = _normalised(basis[-1], first)  # 0 if G is
    u = forward(v)
    u, size = _normalised(u, fixed_unit(u.size, g.dtype))
    u, v = (v, u) if wide else (u, v)
    return LeadingPair(u, v, size / scale, residual, products)


def _normalised(x: Array, instead: Array) -> tuple[Array, Array]:
    """x / |x|, or another unit vector where x is 0, and |x|."""
    length = jnp.linalg.norm(x)
    return jnp.where(length == 0, instead, x / jnp.where(length == 0, 1, length)), length


def _start(g: Array, wide: bool, start: tuple[Array, Array] | None) -> Array:
    """The first direction, a unit vector of the smaller side."""
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
