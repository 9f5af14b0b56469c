"""The stateless family: any local solver with any server rule (Reddi et al. 2021, Algorithm 1)."""

from __future__ import annotations

from typing import Any

from fedsolve import trees
from fedsolve.algorithm import Algorithm, Cohort, Weighting, check_weighting
from fedsolve.local.solver import LocalSolver
from fedsolve.oracle import Oracle
from fedsolve.rules.rule import Rule
from fedsolve.types import Params, Scalar, module, static


@module
class FedOptServer:
    """The model and the rule's state."""

    params: Params
    rule: Any


@module
class FedOptBroadcast:
    """The model w and the number of the round (for schedules)."""

    params: Params
    round: Scalar


@module
class FedOptMessage:
    """Displacement D_i = w_i - w (shapes of the model), mean local loss, and what the rule measures."""

    delta: Params
    loss: Scalar
    measured: Any


@module
class FedOpt(Algorithm):
    """Clients run `local` from w and send D_i = w_i - w; the server moves w by `rule`.

        client:  w_i = local(w),   D_i = w_i - w
        server:  D = sum_i p_i D_i,   w <- rule(w, D),   p_i = 1/|S| or n_i / sum of n

    Attributes:
        local: the client's solver.
        rule: the server's rule.
        weighting: p_i `uniform` or by `examples`.
        name: what tables call it.

    >>> from fedsolve import local, rules
    >>> FedOpt(local.SGD(0.1), rules.ServerSGD()).weighting
    'uniform'
    """

    local: LocalSolver
    rule: Rule
    weighting: Weighting = static(default="uniform")
    name: str = static(default="FedOpt")

    def __post_init__(self) -> None:
        check_weighting(self.weighting)

    def init(self, params: Params) -> FedOptServer:
        """The initial model and the rule's initial state."""
        return FedOptServer(params, self.rule.init(params))

    def broadcast(self, server: FedOptServer, cohort: Cohort) -> FedOptBroadcast:
        """The model."""
        return FedOptBroadcast(server.params, cohort.round)

    def enroll(self, broadcast: FedOptBroadcast) -> tuple[()]:
        """Clients keep nothing."""
        return ()

    def train(
        self, broadcast: FedOptBroadcast, client: tuple[()], oracle: Oracle
    ) -> tuple[FedOptMessage, tuple[()]]:
        """Local work from the model."""
        solution = self.local.solve(broadcast.params, oracle, broadcast.round)
        delta = trees.sub(solution.params, broadcast.params)
        return FedOptMessage(delta, solution.loss, self.rule.measure(delta)), client

    def update(self, server: FedOptServer, message: FedOptMessage, cohort: Cohort) -> FedOptServer:
        """The rule's step along the mean displacement."""
        step = self.rule.step(server.params, server.rule, message.delta, message.measured, cohort)
        return FedOptServer(*step)

    def export(self, server: FedOptServer) -> Params:
        """The model."""
        return server.params
