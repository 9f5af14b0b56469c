"""The Polyak step on the server, from the losses that clients report: for gradients, and for proximal points."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import number
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, reported
from fedsolve.methods.client.solver import Solution
from fedsolve.methods.server.server_optimizer import Needs, ServerOptimizer


@module
class Excess:
    """What a client adds to its update: its loss f_i, and tau_i (f_i - f_star)."""

    loss: Traced
    excess: Traced


@module
class PolyakState:
    """The last rate, and the mean of the losses it came from."""

    server_lr: Traced = reported()
    f: Traced = reported()


@module
class Polyak(ServerOptimizer):
    """Polyak's step on the server, from the losses that clients report.

    eta = max(0, mean of tau_i (f_i(w) - f_star)) / |D|^2,   w <- w + eta D.

    D is a client update and no gradient: D ~ -grad G(w) with G = mean of tau_i f_i and tau_i the sum of the rates
    that client i applied (K eta_l for K steps of SGD, the accepted steps of a line search). The step is Polyak's
    on G, whose value is at least the mean of tau_i f_star. If all tau_i are one tau, D ~ -tau grad F and

        eta = tau (F(w) - f_star) / |D|^2,     w <- w - (F(w) - f_star) / |grad F|^2 grad F:

    Polyak's step on F, which local rates only affect by how far D is from a gradient. With one local step on
    all examples it is exact. Each client evaluates f_i(w) on all of its examples (one evaluation a round) and
    sends two numbers more. D = 0 moves nothing, eta is then 0; a loss below f_star counts as f_star.

    Attributes:
        f_star: lower bound of the losses: the minimum of F if it is known, 0 for losses that cannot be negative;
            finite, in units of the loss.

    Raises:
        InvalidInput: f_star is not finite; clients whose update is not a sum of gradients.
    """

    needs: ClassVar[Needs] = "sums_gradients"

    f_star: Scalar = number(default=0.0)

    def init(self, params: Params) -> PolyakState:
        zero = jnp.zeros((), trees.dtype_of(params))
        return PolyakState(zero, zero)

    def client_stats(self, delta: Params, solution: Solution, start: Params, oracle: Oracle) -> Excess:
        # the client's loss f_i(w), and its excess in units of the client update
        loss = oracle.full(start)[0]
        return _excess(loss, solution.rate_sum, self.f_star)

    def step(
        self, params: Params, state: PolyakState, delta: Params, measured: Excess, cohort: Cohort
    ) -> tuple[Params, PolyakState]:
        eta = trees.quotient(jnp.maximum(measured.excess, 0), trees.squared_norm(delta))
        dtype = state.f.dtype
        return trees.axpy(eta, delta, params), PolyakState(eta.astype(dtype), measured.loss.astype(dtype))


@module
class EnvelopePolyak(Polyak):
    """StoPS (Li et al. 2024): Polyak's step on Moreau envelopes, for methods inside `Proximal(..., 1 / gamma)`.

        alpha = gamma max(0, mean of (M_i(w) - f_star)) / |D|^2,    M_i(w) = f_i(p_i) + |p_i - w|^2 / (2 gamma)

    D = mean of (p_i - w) is -gamma times the gradient of the mean envelope at w: the rate is gamma, the loss at
    p_i that of the proximal objective, which the wrapper provides. M_i is exact where the proximal problem is
    solved exactly, otherwise too large. One evaluation of f_i a round and two numbers more up.

    Attributes:
        f_star: lower bound of all f_i, which is one of all M_i; 0 for losses that cannot be negative; finite, in
            units of the loss.
        gamma: the proximal parameter, > 0.

    Raises:
        InvalidInput: f_star that is not finite, a gamma that is not positive and finite.
    """

    needs: ClassVar[Needs] = None
    weighting: ClassVar[Weighting] = "uniform"

    _: KW_ONLY
    gamma: Scalar = number(default=1.0, above=0)

    def client_stats(self, delta: Params, solution: Solution, start: Params, oracle: Oracle) -> Excess:
        # the client's Moreau envelope M_i(w), and gamma times its excess
        return _excess(oracle.full(solution.params)[0], self.gamma, self.f_star)


def _excess(loss: Any, rate: Any, f_star: Scalar) -> Excess:
    return Excess(loss, (rate * (loss - f_star)).astype(loss.dtype))
