"""Total variation of a matrix (an image), whose prox is iterative."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_range
from fedsolve.core.types import Scalar, module, static
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

    weight: Scalar
    tolerance: Scalar = 1e-6
    max_iterations: int = static(default=2000)

    def __post_init__(self) -> None:
        check_range("weight of TotalVariation2D", self.weight, at_least=0)
        check_range("tolerance of TotalVariation2D", self.tolerance, above=0)
        check_range("max_iterations of TotalVariation2D", self.max_iterations, at_least=1)

    def check(self, shape: tuple[int, ...], where: str) -> None:
        """Raise `InvalidInput` unless it is a matrix.

        Raises:
            InvalidInput: any other number.
        """
        if len(shape) != 2:
            raise InvalidInput(
                f"TotalVariation2D needs a matrix, {where} has shape {shape}: put it on matrices, such as "
                "TotalVariation2D(0.1).on('weight'); TotalVariation is for vectors"
            )

    def value(self, w: Array) -> Scalar:
        """weight sum |D w|."""
        return self.weight * sum(jnp.sum(jnp.abs(d)) for d in _differences(w))

    def subgradient(self, w: Array) -> Array:
        """weight D' sign(D w)."""
        down, right = _differences(w)  # jax.grad would take the derivative of |.| at 0 for 1
        return (self.weight * _adjoint((jnp.sign(down), jnp.sign(right)))).astype(w.dtype)

    def prox(self, w: Array, step: Scalar) -> Array:
        """w - D'u with u from accelerated projected gradient on the dual, to `tolerance`; w itself at step 0.

        Minimises (1/2) |w - D'u|^2 over |u| <= step weight (Chambolle 2004; Beck and Teboulle 2009) with
        steps 1/8, as |D|^2 <= 8, and restarts where the momentum goes uphill (O'Donoghue and Candes 2015).
        """
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
    """D w: downwards, shape (m - 1, n), and to the right, shape (m, n - 1)."""
    return w[1:] - w[:-1], w[:, 1:] - w[:, :-1]


def _adjoint(u: Pair) -> Array:
    """D' u, shape (m, n)."""
    down, right = u
    rows = jnp.pad(down, ((1, 0), (0, 0))) - jnp.pad(down, ((0, 1), (0, 0)))
    return rows + jnp.pad(right, ((0, 0), (1, 0))) - jnp.pad(right, ((0, 0), (0, 1)))
