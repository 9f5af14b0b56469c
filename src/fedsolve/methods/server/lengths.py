"""Server steps along D whose length the clients determine: by their diversity, or by their line searches."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Claim, Params, Traced, Weighting, module, reduced, reported
from fedsolve.methods.client.solver import Search, Solution
from fedsolve.methods.server.adaptive import quotient
from fedsolve.methods.server.dua import Spread
from fedsolve.methods.server.server_optimizer import Needs, ServerOptimizer


@module
class LengthState:
    """The last rate."""

    server_lr: Traced = reported()


@module
class GradientDiversity(ServerOptimizer):
    """GraDS (Li et al. 2024): a server step along D whose size is the diversity of the client updates.

    alpha = mean |D_i|^2 / |D|^2,   w <- w + alpha D.

    FedExP's step without its factor 1/2, meant for proximal points; never below 1. D = 0 moves nothing.
    """

    weighting: ClassVar[Weighting] = "uniform"

    def init(self, params: Params) -> LengthState:
        """The initial state: zero."""
        return LengthState(jnp.zeros((), trees.dtype_of(params)))

    def client_stats(self, delta: Params, solution: Solution, start: Params, oracle: Oracle) -> Spread:
        """The client's |D_i|^2."""
        return Spread(trees.squared_norm(delta))

    def step(
        self, params: Params, state: LengthState, delta: Params, measured: Spread, cohort: Cohort
    ) -> tuple[Params, LengthState]:
        """Apply one server step."""
        alpha = quotient(measured.squared_norm, trees.squared_norm(delta)).astype(state.server_lr.dtype)
        return trees.axpy(alpha, delta, params), LengthState(alpha)


@module
class ClientStep:
    """What a client adds to its update: the last step that its line search accepted."""

    step: Traced = reduced("max", Claim(at_least=0))


@module
class LargestStep(ServerOptimizer):
    """FedLiLS's server step along D, with the largest last step of the clients' line searches.

    w <- w + eta D, eta the largest step in the cohort that a client's line search accepted last.

    FedLiLS's heuristic for losses that are not convex. As no step exceeds eta_max, with eta_max = 1 the server
    moves at most by D. Sends one number more.

    Raises:
        InvalidInput: clients without a line search.
    """

    needs: ClassVar[Needs] = "searches"
    weighting: ClassVar[Weighting] = "uniform"

    def init(self, params: Params) -> LengthState:
        """The initial state: zero."""
        return LengthState(jnp.zeros((), trees.dtype_of(params)))

    def client_stats(self, delta: Params, solution: Solution, start: Params, oracle: Oracle) -> ClientStep:
        """The last step of the client's line search."""
        assert isinstance(solution.search, Search)  # `needs` says so
        return ClientStep(solution.search.step)

    def step(
        self, params: Params, state: LengthState, delta: Params, measured: ClientStep, cohort: Cohort
    ) -> tuple[Params, LengthState]:
        """Apply one server step."""
        eta = measured.step.astype(state.server_lr.dtype)
        return trees.axpy(eta, delta, params), LengthState(eta)
