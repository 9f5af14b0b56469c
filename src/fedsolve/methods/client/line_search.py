"""SGD with a stochastic Armijo line search (Vaswani et al. 2019), as FedLiLS runs it on clients."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import lax

from fedsolve.core import trees
from fedsolve.core.building import integer, number
from fedsolve.core.errors import InvalidInput, is_integer
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Scalar, Traced, module, static
from fedsolve.methods.client.solver import LocalSolver, Search, Solution, local_loop, mean_loss

TRIES = 100
"""Trials of one search at most."""
FALLBACK = 1e-6
"""The step if all of them fail, as in the public code; or the last trial if that is shorter."""
STATIONARY = 1e-8
"""A gradient of smaller norm moves nothing."""

_Carry = tuple[Params, Scalar, Scalar, Scalar, Scalar]


@module
class Armijo(LocalSolver):
    """Local SGD with Armijo line search: each minibatch determines the length of its step.

    There is no learning rate to tune.

        eta <- the first of  s, beta s, beta^2 s, ...  with  f(y - eta g) <= f(y) - c eta |g|^2,   y <- y - eta g

    f, g and all trials are of the step's minibatch. s is eta_max in the first step of a round; later `reset` 0
    keeps the last accepted eta, 1 returns to eta_max, 2 grows it: min(eta delta^(b/n), eta_max), with b the
    minibatch size (at most n) and n the client's examples. After 100 trials without success eta is 1e-6.
    A gradient of norm below 1e-8 moves nothing and leaves eta alone. A step costs one loss evaluation per
    trial more than a step of SGD, at least one. It searches along the loss it is given: wrappers add their
    terms to losses and gradients alike, and there is neither momentum, nor clipping, nor weight decay.

    Attributes:
        eta_max: largest step, > 0 (1).
        c: share of the linear decrease that is asked for, in (0, 1) (0.1).
        beta: factor of a trial that failed, in (0, 1) (0.9).
        delta: growth over one pass of the data with reset 2, at least 1 (2).
        reset: where the next search begins, 0, 1 or 2 in the paper's order.

    Raises:
        InvalidInput: one of them out of its range.

    >>> from fedsolve import FedOpt, server
    >>> FedOpt(Armijo(), server.DoublyAdaptive()).local.reset
    1
    """

    sums_gradients: ClassVar[bool] = True
    searches: ClassVar[bool] = True

    eta_max: Scalar = number(default=1.0, above=0)
    _: KW_ONLY
    c: Scalar = number(default=0.1, above=0, below=1)
    beta: Scalar = number(default=0.9, above=0, below=1)
    delta: Scalar = number(default=2.0, at_least=1)
    reset: Literal[0, 1, 2] = static(default=1)

    def __post_init__(self) -> None:
        if not is_integer(self.reset) or self.reset not in (0, 1, 2):
            raise InvalidInput(f"reset = {self.reset!r} must be 0 (keep), 1 (back to eta_max) or 2 (grow)")

    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        dtype = trees.dtype_of(params)
        zero, highest = jnp.zeros((), dtype), jnp.asarray(self.eta_max, dtype)
        growth = 1.0
        if self.reset == 2:
            share = jnp.asarray(oracle.batch_size, dtype) / jnp.asarray(oracle.num_examples, dtype)
            growth = self.delta ** jnp.minimum(share, 1)

        def step(k: Scalar, carry: _Carry) -> _Carry:
            y, eta, total, rate_sum, evaluations = carry
            loss, g = oracle(y, k)
            start = highest if self.reset == 1 else jnp.minimum(growth * eta, highest).astype(dtype)
            moves = (trees.norm(g) >= STATIONARY) & (k < oracle.steps)
            found, tries = self.search(oracle, y, k, loss, g, start, moves)
            taken = jnp.where(moves, found, 0).astype(dtype)
            y = trees.axpy(-taken, g, y)
            return y, jnp.where(moves, found, eta), total + loss, rate_sum + taken, evaluations + tries

        start = (params, highest, zero, zero, zero)
        y, eta, total, rate_sum, evaluations = local_loop(oracle, step, start)
        return Solution(y, mean_loss(total, oracle), rate_sum, Search(eta, evaluations))

    def search(
        self, oracle: Oracle, y: Params, k: Scalar, loss: Scalar, g: Params, start: Traced, moves: Traced
    ) -> tuple[Scalar, Scalar]:
        """The accepted step from the first trial `start`, and the number of trials; none if it does not move.

        Args:
            oracle: the client's, which is asked for losses alone.
            y: the model that the step is from.
            k: number of the local step, whose minibatch all trials share.
            loss: that of the minibatch at y, shape ().
            g: its gradient at y.
            start: the first trial, > 0, shape ().
            moves: whether there is a step at all, bool ().

        Returns:
            Both of shape () and of the type of `start`.
        """
        # Armijo's condition: f(y - eta g) <= f(y) - c eta
        # g
        # ^2, on the minibatch that g is of
        slope = self.c * trees.squared_norm(g)

        def unfinished(carry: tuple[Scalar, Scalar, Traced]) -> Traced:
            return moves & ~carry[2] & (carry[1] < TRIES)

        def trial(carry: tuple[Traced, Traced, Traced]) -> tuple[Traced, Traced, Traced]:
            eta, tries, _ = carry
            # the first trial is `start` itself
            eta = jnp.where(tries > 0, self.beta * eta, eta).astype(start.dtype)
            reached = oracle.loss(trees.axpy(-eta, g, y), k)
            return eta, tries + 1, reached <= loss - eta * slope

        first = (start, jnp.zeros_like(start), jnp.array(False))
        eta, tries, accepted = lax.while_loop(unfinished, trial, first)
        return jnp.where(accepted, eta, jnp.minimum(eta, FALLBACK)).astype(start.dtype), tries


# Conjugate gradients as the client's solver: the exact minimiser of a quadratic loss (Hestenes and Stiefel 1952).

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

    iterations: int = integer(default=100)

    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        # minimise the loss from `params`; the reported loss is that at the start
        with jax.default_matmul_precision("highest"):
            return self._solve(params, oracle)

    def _solve(self, params: Params, oracle: Oracle) -> Solution:
        loss, gradient = oracle.full(params)
        residual = trees.scale(-1, gradient)
        first = trees.squared_norm(residual)
        eps = jnp.finfo(first.dtype).eps
        # relative to the first residual: the squared norm of rounding
        enough = first * (eps / 8) ** 2

        def unfinished(carry: tuple[Params, Params, Params, Scalar, Scalar]) -> Traced:
            return (carry[4] < self.iterations) & (carry[3] > enough)

        def step(
            carry: tuple[Params, Params, Params, Scalar, Scalar],
        ) -> tuple[Params, Params, Params, Scalar, Scalar]:
            x, r, p, rho, k = carry
            # A p as a difference of gradients: exact for quadratics, whatever the length of p
            curved = trees.sub(oracle.full(trees.add(params, p))[1], gradient)
            curvature = trees.dot(p, curved)
            curves = curvature > _ROUNDING * eps * jnp.sqrt(first * trees.squared_norm(p))
            alpha = jnp.where(curves, rho / jnp.where(curves, curvature, 1), 0)
            x, r = trees.axpy(alpha, p, x), trees.axpy(-alpha, curved, r)
            new = jnp.where(curves, trees.squared_norm(r), 0)  # no curvature left: done
            return x, r, trees.axpy(new / rho, p, r), new, k + 1

        start = (params, residual, residual, first, jnp.int32(0))
        return Solution(lax.while_loop(unfinished, step, start)[0], loss)
