"""What Prodigy and D-Adaptation share: Adam on the server whose rate is an estimate of a distance."""

from __future__ import annotations

from dataclasses import KW_ONLY

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.errors import check_range
from fedsolve.core.types import Params, Scalar, Traced, module, replace, reported
from fedsolve.methods.server.adaptive import quotient
from fedsolve.methods.server.server_optimizer import ServerOptimizer


@module
class EstimateState:
    """Moments m and v, the sum s of scaled gradients (shapes of the model), the numerator r of the estimate, the first
    model (`()` where it is not needed), and the estimate d, which is the server's rate.
    """

    m: Params
    v: Params
    s: Params
    r: Traced
    start: Params
    distance: Traced = reported()
    server_lr: Traced = reported()


@module
class AdamByDistance(ServerOptimizer):
    """Base class of Adam on the server with an estimated distance in the place of a rate.

    Attributes:
        initial_distance: the estimate before the first round, d_0 > 0, in units of a parameter (1e-6).
        beta1: decay of m, in [0, 1) (0.9).
        beta2: decay of v, in [0, 1) (0.999).
        eps: added to sqrt(v), at least 0 (1e-8).

    Raises:
        InvalidInput: a number out of its range.
    """

    _: KW_ONLY
    initial_distance: Scalar = 1e-6
    beta1: Scalar = 0.9
    beta2: Scalar = 0.999
    eps: Scalar = 1e-8

    def __post_init__(self) -> None:
        check_range("initial_distance", self.initial_distance, above=0)
        check_range("beta1", self.beta1, at_least=0, below=1)
        check_range("beta2", self.beta2, at_least=0, below=1)
        check_range("eps", self.eps, at_least=0)

    def init(self, params: Params) -> EstimateState:
        """Moments and sums of zero, and the initial estimate."""
        zeros, zero = trees.zeros_like(params), jnp.zeros((), trees.dtype_of(params))
        distance = jnp.asarray(self.initial_distance, zero.dtype)
        return EstimateState(zeros, zeros, zeros, zero, (), distance, zero)

    def estimated(self, state: EstimateState, numerator: Traced, denominator: Traced) -> EstimateState:
        """The state with the larger of the old estimate and the new one; the old one is the rate of this round.

        Args:
            state: with the moments and sums of this round.
            numerator, denominator: of the new estimate; 0 / 0 counts as 0.

        Returns:
            The state after the round.
        """
        distance = jnp.maximum(state.distance, quotient(numerator, denominator)).astype(state.r.dtype)
        return replace(state, distance=distance, server_lr=state.distance)
