"""The orthogonal polar factor U V' of a matrix G = U S V': exact, or by the iteration of Newton and Schulz.

-r U V' minimises <G, X> over the matrices of spectral norm at most r: Muon's step is the oracle of `SpectralBall`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedsolve.core.types import Scalar, module
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


# A safeguarded root of an increasing scalar function, inside a compiled program.

FOUND, UNBOUNDED, UNRESOLVED = 0, 1, 2
_MAX_DOUBLINGS = 200
_MAX_STEPS = 200
_TOLERANCE = 1e-12  # of |h(eta) - target|, relative to the target


@module
class Root:
    """A root and how it was reached: the root, or the best lower bound found; residual |h(value) - target| / target.

    Status 0: found; 1 unbounded: h stays below the target however far one goes; 2 unresolved: the bracket shrank to
    neighbouring floating-point numbers, or the steps ran out, above the tolerance.
    """

    value: Scalar
    residual: Scalar
    status: Scalar


def solve_increasing(h: Callable[[Scalar], Scalar], target: Scalar) -> Root:
    """The eta >= 0 with h(eta) = target, for increasing h with h(0) = 0 and target > 0.

    Newton's method kept inside a bracket, with bisection where Newton leaves it or slows down. In
    float32 the tolerance is four units of rounding instead.

    >>> float(solve_increasing(lambda x: x**3, jnp.asarray(8.0)).value)
    2.0
    """
    target = jnp.asarray(target)
    dtype = target.dtype
    tol = max(_TOLERANCE, 4 * float(jnp.finfo(dtype).eps))

    def gap(eta: Scalar) -> Scalar:
        value = h(eta) - target
        return jnp.where(jnp.isfinite(value), value, jnp.inf)  # overflow means: too far

    slope = jax.jvp(h, (jnp.zeros((), dtype),), (jnp.ones((), dtype),))[1]
    guess = target / slope  # 0 for an infinite slope, from which no doubling would lead away
    first = jnp.where((guess > 0) & jnp.isfinite(guess), guess, 1).astype(dtype)

    def widen(s: tuple[Scalar, Scalar, Scalar, Scalar]) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        _, high, _, k = s
        return high, 2 * high, gap(2 * high), k + 1

    # the gap is carried: evaluated anew outside the loop it may round to the other side of 0
    low, high, above, _ = lax.while_loop(
        lambda s: (s[2] < 0) & (s[3] < _MAX_DOUBLINGS) & jnp.isfinite(2 * s[1]),
        widen,
        (jnp.zeros((), dtype), first, gap(first), 0),
    )
    bounded = above >= 0

    # the bracket shrinks until the residual meets the tolerance or no number lies between
    def unfinished(s: tuple[Scalar, ...]) -> Scalar:
        low, high, _, value, k = s[:5]
        middle = low + (high - low) / 2
        room = (middle > low) & (middle < high)
        return (jnp.abs(value) > tol * target) & room & (k < _MAX_STEPS)

    def step(s: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        low, high, x, value, k, best, best_gap = s
        slope = jax.jvp(h, (x,), (jnp.ones_like(x),))[1]
        newton = x - value / slope
        middle = low + (high - low) / 2
        inside = (newton > low) & (newton < high) & jnp.isfinite(newton) & (k % 3 != 2)
        x = jnp.where(inside, newton, middle)  # every third step bisects, so the bracket always shrinks
        value = gap(x)
        low, high = jnp.where(value < 0, x, low), jnp.where(value < 0, high, x)
        better = jnp.abs(value) < best_gap
        return low, high, x, value, k + 1, jnp.where(better, x, best), jnp.minimum(jnp.abs(value), best_gap)

    start = jnp.where(jnp.isfinite(gap(high)), high, low)
    value = gap(start)
    out = lax.while_loop(unfinished, step, (low, high, start, value, 0, start, jnp.abs(value)))
    value, residual = out[5], out[6] / jnp.where(target > 0, target, 1)
    status = jnp.where(bounded, jnp.where(residual <= tol, FOUND, UNRESOLVED), UNBOUNDED)
    idle = target <= 0  # nothing to solve: no client moved
    value = jnp.where(idle, 0, jnp.where(bounded, value, low))
    return Root(value, jnp.where(idle, 0, residual), jnp.where(idle, FOUND, status))
