"""Any local solver with any server optimiser (Reddi et al. 2021, Algorithm 1)."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Weighting, check_weighting, module, static
from fedsolve.methods.client.sgd import ClientOptions, local_sgd
from fedsolve.methods.client.solver import LocalSolver, Search, SearchLog, check_local
from fedsolve.methods.server.server_optimizer import ServerOptimizer


@module
class FedOptServer:
    """The model, the server optimiser's state, what line searches of the last round did (`()` without them)."""

    params: Params
    server_optimizer: Any
    search: SearchLog | tuple[()] = ()


@module
class FedOptBroadcast:
    """The model w and the number of the round (for schedules)."""

    params: Params
    round: Scalar


@module
class FedOptMessage:
    """Client update D_i = w_i - w (shapes of the model), mean local loss, what the server optimiser asks of a client
    (`ServerOptimizer.client_stats`), and what a line search did.
    """

    delta: Params
    loss: Scalar
    measured: Any
    search: Search | tuple[()] = ()


@module
class FedOpt(Algorithm):
    """Any local solver on the clients with any optimiser on the server.

        client:  w_i = local(w),   D_i = w_i - w
        server:  D = sum_i p_i D_i,   w <- step(w, D),   p_i = 1/|S| or n_i / sum of n

    Up: D_i (shapes of the model), the mean local loss, and what the server optimiser or a line search adds. Down: w
    and the number of the round. Kept: the server optimiser's state; on clients what `local` keeps, most keep nothing.

    Args:
        local: the clients' solver, such as `client.SGD(0.1)`.
        server_optimizer: how the server steps along D, such as `server.ServerSGD()`.
        weighting: p_i, `uniform` (1/|S|) or by `examples` (n_i / sum of n). None is the server optimiser's, which is
            that of the methods named after it: `uniform` for DoublyAdaptive, MirrorDescent, GradientDiversity,
            EnvelopePolyak, LargestStep and DeepFrankWolfe, by `examples` for all others, optax's among them. FedLiLS,
            FedExpSLS, DiLoCo, FedExProx with an alpha and the `code` presets have their paper's or code's, whatever
            they step by.
        name: what tables call it.

    Raises:
        InvalidInput: an unknown weighting, or a server optimiser that can make nothing of what `local` does.

    >>> from fedsolve import client, server
    >>> FedOpt(client.SGD(0.1), server.ServerSGD()).weighting
    'examples'
    >>> FedOpt(client.SGD(0.1), server.DoublyAdaptive()).weighting
    'uniform'

    Reference: Reddi et al., "Adaptive Federated Optimization", ICLR 2021.
    """

    local: LocalSolver
    server_optimizer: ServerOptimizer
    _: KW_ONLY
    weighting: Weighting | None = static(default=None)
    name: str = static(default="FedOpt")

    def __post_init__(self) -> None:
        check_local(self.local)
        if not isinstance(self.server_optimizer, ServerOptimizer):
            raise InvalidInput(
                f"server_optimizer = {shown(self.server_optimizer)} must be one such as server.ServerSGD()"
            )
        if not isinstance(self.name, str):
            raise InvalidInput(f"name = {shown(self.name)} must be text")
        if self.weighting is None:
            object.__setattr__(self, "weighting", self.server_optimizer.weighting)
        check_weighting(self.weighting)
        self.server_optimizer.check(self.local)

    def init(self, params: Params) -> FedOptServer:
        zero = jnp.zeros((), trees.dtype_of(params))
        search = SearchLog(zero, zero) if self.local.searches else ()
        return FedOptServer(params, self.server_optimizer.init(params), search)

    def broadcast(self, server: FedOptServer, cohort: Cohort) -> FedOptBroadcast:
        return FedOptBroadcast(server.params, cohort.round)

    def init_client(self, broadcast: FedOptBroadcast) -> Any:
        return self.local.init_state(broadcast.params)

    def train(self, broadcast: FedOptBroadcast, client: Any, oracle: Oracle) -> tuple[FedOptMessage, Any]:
        solution, client = self.local.go_on(client, broadcast.params, oracle, broadcast.round)
        delta = solution.update
        if delta is None:
            delta = trees.sub(solution.params, broadcast.params)
        stats = self.server_optimizer.client_stats(delta, solution, broadcast.params, oracle)
        sent = self.server_optimizer.direction(delta, solution)
        return FedOptMessage(sent, solution.loss, stats, solution.search), client

    def update(self, server: FedOptServer, message: FedOptMessage, cohort: Cohort) -> FedOptServer:
        params, state = self.server_optimizer.step(
            server.params, server.server_optimizer, message.delta, message.measured, cohort
        )
        search = message.search
        return FedOptServer(params, state, search and SearchLog(search.step, search.evaluations))

    def export(self, server: FedOptServer) -> Params:
        return self.server_optimizer.evaluation_point(server.params, server.server_optimizer)


def compose(
    name: str,
    client_lr: Rate,
    server_optimizer: ServerOptimizer,
    weighting: Weighting,
    options: ClientOptions,
) -> FedOpt:
    """`FedOpt` with local SGD: what the named methods are."""
    return FedOpt(local_sgd(client_lr, options), server_optimizer, weighting=weighting, name=name)
