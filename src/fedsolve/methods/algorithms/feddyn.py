"""FedDyn: a dynamic regulariser aligns each client's minimiser with the server's (Acar et al. 2021, Algorithm 1)."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import ClassVar, Unpack

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import by_name, number
from fedsolve.core.oracle import CorrectedOracle, Oracle, ProximalOracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Weighting, module
from fedsolve.methods.client.sgd import ClientOptions, local_sgd
from fedsolve.methods.client.solver import LocalSolver, refuse_stateful
from fedsolve.methods.server.fedopt import FedOptBroadcast


@module
class FedDynServer:
    """The model theta, and h, the mean of all clients' g_i (both shapes of the model)."""

    params: Params
    h: Params


@module
class FedDynClient:
    """g_i (shapes of the model): the client's estimate of its own gradient at its last theta_i."""

    gradient: Params


@module
class FedDynMessage:
    """theta_i - theta (shapes of the model)."""

    delta: Params


@module
class DynamicRegularization(Algorithm):
    """FedDyn with any local solver.

        client i in S:  theta_i ~ argmin_y f_i(y) - <g_i, y> + (alpha/2) |y - theta|^2
                        g_i <- g_i - alpha (theta_i - theta)
        server:         h <- h - alpha (1/N) sum over S of (theta_i - theta)
                        theta <- mean over S of theta_i - h / alpha

    Down: theta. Up: theta_i - theta. Kept: g_i; g_i and h start at 0, so that h stays the mean of all g_i. Where the
    local problems are solved, g_i is f_i's gradient at theta_i, and a fixed point minimises F = (1/N) sum f_i. Local
    work starts at theta. Clipping and weight decay act on the gradient of f_i and the quadratic, before g_i.
    """

    weighting: ClassVar[Weighting] = "uniform"
    name: ClassVar[str] = "FedDyn"
    only_mean: ClassVar[str] = "h must stay the mean of all clients' g_i"

    local: LocalSolver
    _: KW_ONLY
    alpha: Scalar = number(default=0.01, above=0)

    def __post_init__(self) -> None:
        refuse_stateful(self.name, self.local)

    def init(self, params: Params) -> FedDynServer:
        return FedDynServer(params, trees.zeros_like(params))

    def broadcast(self, server: FedDynServer, cohort: Cohort) -> FedOptBroadcast:
        return FedOptBroadcast(server.params, cohort.round)

    def init_client(self, broadcast: FedOptBroadcast) -> FedDynClient:
        return FedDynClient(trees.zeros_like(broadcast.params))

    def train(
        self, broadcast: FedOptBroadcast, client: FedDynClient, oracle: Oracle
    ) -> tuple[FedDynMessage, FedDynClient]:
        theta = broadcast.params
        # f_i(y) + (alpha/2) |y - theta|^2 - <g_i, y>: the quadratic first, then the linear term
        proximal = ProximalOracle(oracle, theta, self.alpha)
        problem = CorrectedOracle(proximal, trees.scale(-1, client.gradient), theta)
        delta = trees.sub(self.local.solve(theta, problem, broadcast.round).params, theta)
        # first-order condition of the local problem: g_i <- g_i - alpha (theta_i - theta)
        return FedDynMessage(delta), FedDynClient(trees.axpy(-self.alpha, delta, client.gradient))

    def update(self, server: FedDynServer, message: FedDynMessage, cohort: Cohort) -> FedDynServer:
        # h by the share of clients that took part, then theta
        share = cohort.size / cohort.population
        h = trees.axpy(-self.alpha * share, message.delta, server.h)
        # mean of theta_i - h / alpha: `params` + `delta` is the mean of theta_i
        theta = trees.axpy(-1 / self.alpha, h, trees.add(server.params, message.delta))
        return FedDynServer(theta, h)

    def export(self, server: FedDynServer) -> Params:
        return server.params


@by_name("FedDyn")
def FedDyn(
    client_lr: Rate = 0.1, *, alpha: Scalar = 0.01, **client: Unpack[ClientOptions]
) -> DynamicRegularization:
    """FedDyn (Acar et al. 2021): a dynamic regulariser aligns each client's minimiser with the server's.

        client i in S:  y <- y - eta_l (g_i'(y) - g_i + alpha (y - theta)), K times from theta;   theta_i = y
                        g_i <- g_i - alpha (theta_i - theta)
        server:         h <- h - alpha (1/N) sum over S of (theta_i - theta)
                        theta <- mean over S of theta_i - h / alpha

    g_i' is a minibatch gradient of f_i. Up: theta_i - theta (d numbers). Down: theta. Kept: g_i on each client (d), h
    on the server. The paper minimises each local problem; here, as in its experiments, it is the run's local steps of
    SGD: alpha too small for the distance that they go makes theta overshoot by h / alpha. All clients count alike.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin (the authors' experiments).
        alpha: > 0, in units of the loss per squared parameter; 0.01 is where to begin: the paper tunes it.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        The method with every client's g_i, whose local solver is `client.SGD`.

    Raises:
        InvalidInput: a number out of its range.

    >>> FedDyn(0.1, alpha=0.1).local.lr
    0.1

    Reference: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, Algorithm 1.
    """
    return DynamicRegularization(local_sgd(client_lr, client), alpha=alpha)
