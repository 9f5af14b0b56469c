"""Proximal clients with control variates at a centre, in two exchanges of messages: for gradients, and for work."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.errors import InvalidInput, check_range, shown
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Scalar, Traced, Weighting, check_weighting, module, replace, static
from fedsolve.methods.client.solver import LocalSolver, Solution, refuse_stateful
from fedsolve.methods.wrappers.corrected_oracle import CorrectedOracle
from fedsolve.methods.wrappers.proximal import ProximalOracle


@module
class CenterServer:
    """The model x, S-DANE's centre v, the cohort's mean gradient at the centre (all of the model's shapes), whether it
    is known (0 or 1), and S-DANE's sums A and B; `()` for what a method has not.
    """

    params: Params
    center: Params
    gradient: Params
    known: Traced
    sums: Any = ()


@module
class CenterBroadcast:
    """The centre, the mean gradient there, the number of the round, and whether the gradient is known."""

    params: Params
    gradient: Params
    round: Scalar
    known: Traced


@module
class CenterMessage:
    """The gradient of f_i at the centre, or x_i minus the centre where the mean gradient is known; of S-DANE also the
    gradient at x_i (0 in the first exchange); and the local loss.
    """

    vector: Params
    gradient: Params
    loss: Traced


@module
class ControlledProximal(Algorithm):
    """Base class: proximal clients whose control variates are exact at a centre, which takes two rounds of a run.

        round 1, client:  sends grad f_i(c)                           server:  g = sum_i p_i grad f_i(c)
        round 2, client:  h_i = grad f_i(c) - g
                          x_i ~ argmin_y f_i(y) - <h_i, y> + (lam / 2) |y - c|^2,   sends x_i - c

    Args:
        local: the clients' solver of local problems, such as `client.SGD(0.1)`.
        lam: weight of the proximal term, at least 0, in units of the loss per squared parameter.
        weighting: p_i, `uniform` or by `examples`.

    Raises:
        InvalidInput: no local solver or one that keeps a state, a negative lam, an unknown weighting.
    """

    sends_client_update: ClassVar[bool] = False

    local: LocalSolver
    _: KW_ONLY
    lam: Scalar = 1.0
    weighting: Weighting = static(default="uniform")

    def __post_init__(self) -> None:
        if not isinstance(self.local, LocalSolver):
            raise InvalidInput(f"local = {shown(self.local)} must be a local solver such as client.SGD(0.1)")
        refuse_stateful(self.traits.name, self.local)
        check_range("lam", self.lam, at_least=0)
        check_weighting(self.weighting)

    @abstractmethod
    def move(self, server: CenterServer, message: CenterMessage) -> CenterServer:
        """The server after the second exchange: the next model and centre."""

    def center_of(self, server: CenterServer) -> Params:
        """The centre of the next proximal problems."""
        return server.params

    def init(self, params: Params) -> CenterServer:
        """The initial model, whose gradient is not known."""
        return CenterServer(params, (), trees.zeros_like(params), jnp.int32(0))

    def broadcast(self, server: CenterServer, cohort: Cohort) -> CenterBroadcast:
        """The centre, and the mean gradient there once it is known."""
        return CenterBroadcast(self.center_of(server), server.gradient, cohort.round, server.known)

    def init_client(self, broadcast: CenterBroadcast) -> tuple[()]:
        """Nothing."""
        return ()

    def train(self, broadcast: CenterBroadcast, client: Any, oracle: Oracle) -> tuple[CenterMessage, Any]:
        """The gradient at the centre, or local work with the control variate."""
        center = broadcast.params
        loss, own = oracle.full(center)

        def measure() -> CenterMessage:
            return CenterMessage(own, self.gradient_at(None, center, oracle), loss)

        def work() -> CenterMessage:
            proximal = ProximalOracle(oracle, center, self.lam)
            problem = CorrectedOracle(proximal, trees.sub(broadcast.gradient, own), center)
            solution = self.solve(center, problem, broadcast.round)
            gradient = self.gradient_at(solution.params, center, oracle)
            return CenterMessage(
                trees.sub(solution.params, center),
                gradient,
                jnp.asarray(solution.loss, trees.dtype_of(center)),
            )

        return lax.cond(broadcast.known > 0, work, measure), client

    def solve(self, center: Params, problem: Oracle, round: Scalar) -> Solution:
        """Local work on a client's problem."""
        return self.local.solve(center, problem, round)

    def gradient_at(self, params: Params | None, center: Params, oracle: Oracle) -> Params:
        """The gradient that is sent beside x_i, of the same shapes before there is an x_i (None); `()` for none."""
        return ()

    def update(self, server: CenterServer, message: CenterMessage, cohort: Cohort) -> CenterServer:
        """Note the mean gradient after the first exchange, move after the second."""
        noted = replace(server, gradient=message.vector, known=jnp.int32(1))
        moved = replace(self.move(server, message), known=jnp.int32(0))
        return trees.where(server.known > 0, moved, noted)

    def export(self, server: CenterServer) -> Params:
        """The model x."""
        return server.params
