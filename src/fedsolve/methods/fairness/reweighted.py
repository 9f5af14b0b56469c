"""What fair methods share: clients send weighted updates, and the server divides by what the weights amount to."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Scalar, Traced, Weighting, check_weighting, module, static
from fedsolve.methods.client.solver import LocalSolver, Solution, refuse_stateful
from fedsolve.methods.server.server_optimizer import ServerOptimizer
from fedsolve.methods.server.sgd import ServerSGD


@module
class ReweightedServer:
    """The model, the server optimiser's state, the logarithm by which weights are scaled, and DRFA's last snapshot (the
    shapes of the model); `()` for what a method has not.
    """

    params: Params
    server_optimizer: Any
    log_scale: Any
    snapshot: Any = ()


@module
class ReweightedBroadcast:
    """The model w, the number of the round, the logarithm of the scale, N / |S|, and DRFA's last snapshot."""

    params: Params
    round: Scalar
    log_scale: Any
    inverse_share: Traced
    snapshot: Any = ()


@module
class ReweightedMessage:
    """u_i D_i (shapes of the model), the mean local loss, what the server normalises by, and u_i (y - w) of DRFA's
    snapshot y.
    """

    delta: Params
    loss: Traced
    weight: Traced
    snapshot: Any = ()


@module
class Reweighted(Algorithm):
    """Base class: any local solver, whose updates clients weight, and a server optimiser that steps along their mean.

        client:  D_i = local(w) - w,   sends u_i D_i and one number s_i
        server:  D = c sum_i p_i u_i D_i,   w <- step(w, D),   c follows from sum_i p_i s_i

    Args:
        local: the clients' solver, such as `client.SGD(0.1)`.
        server_optimizer: steps along D; one that asks clients for nothing else.
        weighting: p_i, `uniform` or by `examples`.

    Raises:
        InvalidInput: no local solver or one that keeps a state, a server optimiser that asks clients for more, an
            unknown weighting.
    """

    sends_client_update: ClassVar[bool] = False
    only_mean: ClassVar[str] = "weighted updates are divided by the sum of their weights"

    local: LocalSolver
    _: KW_ONLY
    server_optimizer: ServerOptimizer = ServerSGD()
    weighting: Weighting = static(default="uniform")

    def __post_init__(self) -> None:
        if not isinstance(self.local, LocalSolver):
            raise InvalidInput(f"local = {shown(self.local)} must be a local solver such as client.SGD(0.1)")
        refuse_stateful(self.traits.name, self.local)
        check_weighting(self.weighting)
        rule = type(self.server_optimizer)
        asks = [
            getattr(rule, x, None) is not getattr(ServerOptimizer, x) for x in ("client_stats", "direction")
        ]
        if any(asks) or self.server_optimizer.needs is not None:
            raise InvalidInput(
                f"{self.traits.name} weights client updates, and {shown(self.server_optimizer)} needs more of "
                "clients than these: take server.ServerSGD(), server.Adaptive() or server.Optax(...)"
            )

    @abstractmethod
    def weigh(self, loss: Traced, delta: Params, broadcast: Any, client: Any) -> tuple[Traced, Traced, Any]:
        """u_i, s_i and the client's next state, from its loss f_i(w) and its update."""

    @abstractmethod
    def normalize(self, log_scale: Any, weight: Traced, cohort: Cohort) -> tuple[Traced, Any]:
        """c and the next logarithm of the scale, from the mean of s_i."""

    def first_scale(self, zero: Traced) -> Any:
        """The first logarithm of the scale, `()` for none."""
        return zero

    def init(self, params: Params) -> ReweightedServer:
        """The initial model; all weights are alike."""
        zero = jnp.zeros((), trees.dtype_of(params))
        return ReweightedServer(params, self.server_optimizer.init(params), self.first_scale(zero))

    def broadcast(self, server: ReweightedServer, cohort: Cohort) -> ReweightedBroadcast:
        """The model, and the scale of the weights."""
        share = jnp.asarray(cohort.population / jnp.maximum(cohort.size, 1), trees.dtype_of(server.params))
        return ReweightedBroadcast(server.params, cohort.round, server.log_scale, share, server.snapshot)

    def init_client(self, broadcast: Any) -> Any:
        """Nothing."""
        return ()

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """Run the local solver, then weight the update by the loss at w."""
        solution, delta = self._solve(broadcast, oracle)
        weight, sent, client = self.weigh(oracle.full(broadcast.params)[0], delta, broadcast, client)
        return ReweightedMessage(trees.scale(weight, delta), solution.loss, sent), client

    def update(self, server: Any, message: Any, cohort: Cohort) -> Any:
        """Normalise the mean of weighted updates, and step along it."""
        factor, log_scale = self.normalize(server.log_scale, message.weight, cohort)
        mean = trees.scale(factor, message.delta)
        params, state = self.server_optimizer.step(server.params, server.server_optimizer, mean, (), cohort)
        return ReweightedServer(params, state, log_scale, server.snapshot)

    def export(self, server: Any) -> Params:
        """The model, where the server optimiser evaluates it."""
        return self.server_optimizer.evaluation_point(server.params, server.server_optimizer)

    def _solve(self, broadcast: Any, oracle: Oracle) -> tuple[Solution, Params]:
        solution = self.local.solve(broadcast.params, oracle, broadcast.round)
        return solution, trees.sub(solution.params, broadcast.params)
