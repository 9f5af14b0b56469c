"""Total variation of a matrix (an image), whose prox is iterative."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core.building import number
from fedsolve.core.errors import InvalidInput, check_range
from fedsolve.core.types import Scalar, module, static
from fedsolve.geometry.penalties import check_matrix
from fedsolve.geometry.regularizer import Penalty

_BETWEEN = 5  # steps between two looks at the gap, which costs about half a step


@module
class TotalVariation2D(Penalty):
    """Anisotropic total variation of a matrix, weight (sum |w_{i+1,j} - w_ij| + sum |w_{i,j+1} - w_ij|).

    The prox is not exact. It stops once its duality gap is at most tolerance (1/2) |w - mean(w)|^2, and as
    the problem is strongly convex the result p is then within sqrt(tolerance) |w - mean(w)| of the exact one
    (and its objective within the gap). If the iterations run out first the result is less exact, silently.
    In float32 a tolerance below about 1e-6 is not reached. The prox has forward derivatives only.

    Attributes:
        weight: lambda >= 0.
        tolerance: relative duality gap, > 0.
        max_iterations: bound on the steps of the prox, >= 1.

    Raises:
        InvalidInput: a weight, tolerance or max_iterations out of its range.

    >>> TotalVariation2D(1.0).value(jnp.array([[0.0, 1.0], [0.0, 3.0]])).item()
    6.0
    """

    weight: Scalar = number(at_least=0, name="weight of TotalVariation2D")
    tolerance: Scalar = number(default=1e-6, above=0, name="tolerance of TotalVariation2D")
    max_iterations: int = static(default=2000)

    def __post_init__(self) -> None:
        check_range("max_iterations of TotalVariation2D", self.max_iterations, at_least=1)

    def check(self, shape: tuple[int, ...], where: str) -> None:
        check_matrix("TotalVariation2D(0.1)", shape, where, "; TotalVariation is for vectors")

    def value(self, w: Array) -> Scalar:
        return self.weight * sum(jnp.sum(jnp.abs(d)) for d in _differences(w))

    def subgradient(self, w: Array) -> Array:
        down, right = _differences(w)  # jax.grad would take the derivative of |.| at 0 for 1
        return (self.weight * _adjoint((jnp.sign(down), jnp.sign(right)))).astype(w.dtype)

    def prox(self, w: Array, step: Scalar) -> Array:
        # w - D'u with u from accelerated projected gradient on the dual, to `tolerance`; w itself at step 0.
        # Minimises (1/2) |w - D'u|^2 over |u| <= step weight (Chambolle 2004; Beck and Teboulle 2009) with
        # steps 1/8, as |D|^2 <= 8, and restarts where the momentum goes uphill (O'Donoghue and Candes 2015).
        bound = jnp.asarray(step * self.weight).astype(w.dtype)
        mean = jnp.mean(w)
        w0 = w - mean  # differences do not see the mean; sums are more exact without it
        enough = 0.5 * self.tolerance * jnp.sum(w0 * w0)

        def advance(_: int, s: Any) -> Any:
            u, ahead, t = s
            slope = _differences(w0 - _adjoint(ahead))
            new = tuple(jnp.clip(a + d / 8, -bound, bound) for a, d in zip(ahead, slope, strict=True))
            uphill = sum(jnp.sum((a - b) * (b - c)) for a, b, c in zip(ahead, new, u, strict=True)) > 0
            t = jnp.where(uphill, 1, t)
            t_new = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
            momentum = jnp.where(uphill, 0, (t - 1) / t_new)
            ahead = tuple(b + momentum * (b - c) for b, c in zip(new, u, strict=True))
            return new, ahead, t_new

        def several(s: Any) -> Any:
            dual = lax.fori_loop(0, _BETWEEN, advance, s[0])
            slope = _differences(w0 - _adjoint(dual[0]))
            # primal minus dual value is sum (bound |d| - u d), every term >= 0
            gap = sum(jnp.sum(bound * jnp.abs(d) - u * d) for u, d in zip(dual[0], slope, strict=True))
            return dual, gap, s[2] + _BETWEEN

        zero = tuple(jnp.zeros_like(d) for d in _differences(w0))
        dual, _, _ = lax.while_loop(
            lambda s: (s[1] > enough) & (s[2] < self.max_iterations),
            several,
            (
                (zero, zero, jnp.ones((), w.dtype)),
                jnp.where(bound > 0, jnp.inf, 0).astype(w.dtype),
                jnp.int32(0),
            ),
        )
        return jnp.where(bound > 0, w0 - _adjoint(dual[0]) + mean, w).astype(w.dtype)


Pair = tuple[Array, Array]


def _differences(w: Array) -> Pair:
    return w[1:] - w[:-1], w[:, 1:] - w[:, :-1]


def _adjoint(u: Pair) -> Array:
    down, right = u
    rows = jnp.pad(down, ((1, 0), (0, 0))) - jnp.pad(down, ((0, 1), (0, 0)))
    return rows + jnp.pad(right, ((0, 0), (1, 0))) - jnp.pad(right, ((0, 0), (0, 1)))


# Total variation of a sequence, with an exact prox: piecewise constant solutions.


@module
class TotalVariation(Penalty):
    """Total variation of a vector, weight sum_j |w_{j+1} - w_j| (the fused lasso, Tibshirani et al. 2005).

    Attributes:
        weight: lambda >= 0, in units of the loss per unit of variation.

    Raises:
        InvalidInput: a weight that is negative or not finite.

    >>> TotalVariation(1.0).prox(jnp.array([0.0, 0.0, 4.0, 4.0]), 1.0).tolist()
    [0.5, 0.5, 3.5, 3.5]
    """

    weight: Scalar = number(at_least=0, name="weight of TotalVariation")

    def check(self, shape: tuple[int, ...], where: str) -> None:
        if len(shape) != 1:
            raise InvalidInput(
                f"TotalVariation needs a vector, {where} has shape {shape}: put it on vectors, such as "
                "TotalVariation(0.1).on('bias'); TotalVariation2D is for matrices"
            )

    def value(self, w: Array) -> Scalar:
        return self.weight * jnp.sum(jnp.abs(jnp.diff(w)))

    def subgradient(self, w: Array) -> Array:
        # weight (sign(w_j - w_{j-1}) - sign(w_{j+1} - w_j)), without the terms beyond the ends
        left, right = _edges(jnp.sign(jnp.diff(w)))  # jax.grad would take the derivative of |.| at 0 for 1
        return (self.weight * (left - right)).astype(w.dtype)

    def prox(self, w: Array, step: Scalar) -> Array:
        # the exact minimiser, to rounding; w itself at step 0. Its derivatives are those of the pieces'
        # means.
        strength = jnp.asarray(step * self.weight).astype(w.dtype)
        if w.size < 2:
            return w
        rise, level = lax.stop_gradient(_pieces(lax.stop_gradient(w), lax.stop_gradient(strength)))
        return jnp.where(strength > 0, _levels(w, rise, level, strength), w)


def _pieces(w: Array, strength: Array) -> tuple[Array, Array]:
    """Where the prox p jumps and which way (+1 up, -1 down, 0 not; shape (n - 1,)), and p to rounding."""
    # Cuts at levels (Darbon and Sigelle 2006; Hochbaum 2001): whatever theta, where p lies above it is the minimiser
    # over x in {0, 1}^n of sum (theta - w_j) x_j + strength sum |x_{j+1} - x_j|, which one sweep forward and one back
    # find exactly. All pieces are cut at once, each at the best constant on it; one that does not fall apart is
    # constant in p. Rounds are about as many as halvings: 5 to 30 were seen for 300000 entries, at worst one for each
    # piece.
    position = jnp.arange(w.size, dtype=jnp.int32)

    def cut(s: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        rise, level, _ = s
        level = _levels(w, rise, level, strength)
        left, right = _edges(rise)
        cost = level - w + strength * (left - right)
        first, last = (left != 0) | (position == 0), (right != 0) | (position == w.size - 1)
        # least cost of x_j = 1 minus that of x_j = 0 up to j: cost_j + clip(that of j - 1, +- strength)
        least = _clipped_sums(
            cost, jnp.where(first, cost, cost - strength), jnp.where(first, cost, cost + strength)
        )
        # backwards, x_j copies x_{j+1} unless the difference outweighs a jump
        decided = last | (jnp.abs(least) > strength)
        above = (least < 0)[lax.cummin(jnp.where(decided, position, w.size), reverse=True)]
        new = jnp.where(rise == 0, above[1:].astype(w.dtype) - above[:-1].astype(w.dtype), 0)
        return rise + new, level, jnp.any(new != 0)

    start = jnp.zeros(w.size - 1, w.dtype), jnp.full_like(w, jnp.mean(w)), strength > 0
    return lax.while_loop(lambda s: s[2], cut, start)[:2]


def _edges(rise: Array) -> tuple[Array, Array]:
    return jnp.pad(rise, (1, 0)), jnp.pad(rise, (0, 1))


def _levels(w: Array, rise: Array, level: Array, strength: Array) -> Array:
    """The best constant on each piece, shape (n,), given the jumps; sums are taken relative to `level`."""
    left, right = _edges(rise)
    piece = jnp.cumsum(left != 0, dtype=jnp.int32)
    force = jnp.stack([w - level - strength * (left - right), jnp.ones_like(w)], axis=-1)
    total = jax.ops.segment_sum(force, piece, w.size, indices_are_sorted=True)
    return level + (total[:, 0] / jnp.maximum(total[:, 1], 1))[piece]


def _clipped_sums(a: Array, low: Array, high: Array) -> Array:
    """y_j = clip(y_{j-1} + a_j, low_j, high_j), shape (n,)."""
    # Such maps compose to such maps, so that sqrt(n) blocks are swept side by side and then joined.
    width = max(1, round(a.size**0.5))
    steps = -(-a.size // width)
    blocks = [
        jnp.pad(x, (0, steps * width - a.size), constant_values=fill).reshape(width, steps).T
        for x, fill in ((a, 0), (low, -jnp.inf), (high, jnp.inf))
    ]

    # f = (a, low, high) is y -> clip(y + a, low, high); this is g after f
    def after(f: tuple[Array, ...], g: tuple[Array, ...]) -> tuple[Array, ...]:
        return f[0] + g[0], jnp.clip(f[1] + g[0], g[1], g[2]), jnp.clip(f[2] + g[0], g[1], g[2])

    def compose(f: tuple[Array, ...], g: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        both = after(f, g)
        return both, both

    # the identity: a = 0 within no bounds
    nothing = tuple(jnp.full_like(blocks[0][0], fill) for fill in (0, -jnp.inf, jnp.inf))
    # inside each block from its start, all blocks side by side; then from block to block
    whole, inside = lax.scan(compose, nothing, tuple(blocks))
    zero = jnp.zeros((), a.dtype)
    _, entry = lax.scan(lambda y, f: (jnp.clip(y + f[0], f[1], f[2]), y), zero, whole)
    return jnp.clip(entry + inside[0], inside[1], inside[2]).T.ravel()[: a.size]
