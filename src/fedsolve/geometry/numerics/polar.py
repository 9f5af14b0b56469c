"""The orthogonal polar factor U V' of a matrix G = U S V': exact, or by the iteration of Newton and Schulz.

-r U V' minimises <G, X> over the matrices of spectral norm at most r: Muon's step is the oracle of `SpectralBall`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedsolve.core.xla.products import svd

_A, _B, _C = 3.4445, -4.7750, 2.0315
"""Jordan's coefficients: steepest at 0, and then no nearer to 1 than 0.7 to 1.2."""
_EPS = 1e-7
_ROUNDING = 64  # units of rounding of the largest singular value, below which one may be rounding alone


def polar_factor(
    g: Float[Array, "m n"], newton_schulz: int = 0, *, complete: bool = False
) -> Float[Array, "m n"]:
    """U V' of a matrix, of any scale.

    Args:
        g: the matrix G = U S V', shape (m, n).
        newton_schulz: iterations, at least 0. 0 is exact, by a singular value decomposition, in which values of at most
            max(64, m, n) units of rounding of the largest are taken for 0: gradients of classes have one. 5 (Muon's)
            takes matrix products alone and leaves singular values between 0.7 and 1.2, or smaller where those of G are
            below some thousandths of its Frobenius norm.
        complete: whether directions in which G is 0 get a 1 too, so that the exact factor is an extreme point of the
            ball; otherwise they stay 0, as by the iteration.

    Returns:
        The factor, shape (m, n); 0 for G = 0 unless `complete`.
    """
    if newton_schulz == 0:
        u, s, v = svd(g)
        if not complete:
            u = jnp.where(s > jnp.finfo(g.dtype).eps * max(_ROUNDING, *g.shape) * jnp.max(s), u, 0)
        return u @ v
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / (jnp.sqrt(jnp.sum(x * x)) + _EPS)
    for _ in range(newton_schulz):
        a = x @ x.T
        x = _A * x + (_B * a + _C * (a @ a)) @ x
    return x.T if g.shape[0] > g.shape[1] else x
