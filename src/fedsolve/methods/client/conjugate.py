"""Conjugate gradients as the client's solver: the exact minimiser of a quadratic loss (Hestenes and Stiefel 1952)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fedsolve.core import trees
from fedsolve.core.errors import check_integer
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Scalar, Traced, module, static
from fedsolve.methods.client.solver import LocalSolver, Solution

_ROUNDING = 4  # units of rounding that a difference of two gradients may be off by


@module
class ConjugateGradient(LocalSolver):
    """Conjugate gradients on a client's quadratic loss over all of its examples.

    It has no learning rate and uses no minibatches.
    A matrix-vector product is a difference of two gradients, A v = grad f(x + v) - grad f(x), which is exact
    for quadratics alone. After as many iterations as there are distinct curvatures the minimiser is reached
    to rounding; iterations stop where a direction's curvature is no larger than the rounding of that difference.
    Products have all bits of their type, on a GPU too.

    Attributes:
        iterations: at most so many.

    Raises:
        InvalidInput: less than one iteration.
    """

    iterations: int = static(default=100)

    def __post_init__(self) -> None:
        check_integer("iterations", self.iterations, 1, bits=31)

    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        """Minimise the loss from `params`; the reported loss is that at the start."""
        with jax.default_matmul_precision("highest"):
            return self._solve(params, oracle)

    def _solve(self, params: Params, oracle: Oracle) -> Solution:
        loss, gradient = oracle.full(params)
        residual = trees.scale(-1, gradient)
        first = trees.squared_norm(residual)
        eps = jnp.finfo(first.dtype).eps
        enough = first * (eps / 8) ** 2

        def unfinished(carry: tuple[Params, Params, Params, Scalar, Scalar]) -> Traced:
            return (carry[4] < self.iterations) & (carry[3] > enough)

        def step(
            carry: tuple[Params, Params, Params, Scalar, Scalar],
        ) -> tuple[Params, Params, Params, Scalar, Scalar]:
            x, r, p, rho, k = carry
            curved = trees.sub(oracle.full(trees.add(params, p))[1], gradient)
            curvature = trees.dot(p, curved)
            curves = curvature > _ROUNDING * eps * jnp.sqrt(first * trees.squared_norm(p))
            alpha = jnp.where(curves, rho / jnp.where(curves, curvature, 1), 0)
            x, r = trees.axpy(alpha, p, x), trees.axpy(-alpha, curved, r)
            new = jnp.where(curves, trees.squared_norm(r), 0)  # no curvature left: done
            return x, r, trees.axpy(new / rho, p, r), new, k + 1

        start = (params, residual, residual, first, jnp.int32(0))
        return Solution(lax.while_loop(unfinished, step, start)[0], loss)
