"""FedDR: randomised Douglas-Rachford splitting for F + psi (Tran Dinh, Pham, Phan and Nguyen 2021, Algorithm 1)."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, Unpack

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import by_name, number
from fedsolve.core.errors import check_known
from fedsolve.core.oracle import Oracle, ProximalOracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Weighting, converted, module
from fedsolve.geometry.blocks import as_blocks
from fedsolve.geometry.diagnostics import measures_of
from fedsolve.geometry.regularizer import WithProx, require, with_prox
from fedsolve.methods.client.line_search import ConjugateGradient
from fedsolve.methods.client.sgd import ClientOptions, local_sgd
from fedsolve.methods.client.solver import LocalSolver, refuse_stateful
from fedsolve.methods.server.fedopt import FedOptBroadcast


@module
class FedDRServer:
    """xbar, and xtilde, the mean of all clients' xhat_i."""

    params: Params
    mean: Params


@module
class FedDRClient:
    """x_i, y_i and xhat_i (all shapes of the model)."""

    params: Params
    anchor: Params
    reflected: Params


@module
class FedDRMessage:
    """xhat_i+ - xhat_i (shapes of the model)."""

    delta: Params


@module
class DouglasRachford(Algorithm):
    """FedDR with any local solver: proximal steps on the clients, reflected, averaged, and one prox of psi.

        client i in S:  y_i <- y_i + alpha (xbar - x_i),   x_i ~ prox_{eta f_i}(y_i),   xhat_i <- 2 x_i - y_i
        server:         xtilde <- xtilde + (1/n) sum over S of (xhat_i+ - xhat_i),   xbar = prox_{eta psi}(xtilde)

    Down: xbar. Up: the change of xhat_i. Kept: x_i, y_i, xhat_i; all start at the initial model x^0.
    xtilde stays the mean of all xhat_i, whoever takes part, and is not overwritten by xbar. F weighs clients
    alike, F = (1/n) sum f_i; psi may be a penalty or a set (its projection).
    """

    weighting: ClassVar[Weighting] = "uniform"
    name: ClassVar[str] = "FedDR"
    only_mean: ClassVar[str] = "xtilde must stay the mean of all clients' xhat_i"

    psi: Any = converted(converter=with_prox)
    local: LocalSolver
    _: KW_ONLY
    eta: Scalar = number(default=1.0, above=0)
    alpha: Scalar = number(default=1.0, above=0, below=2)

    def __post_init__(self) -> None:
        instead = "one with a prox, such as L1(0.1) or L1Ball(10.0)"
        object.__setattr__(self, "psi", require("FedDR", as_blocks(self.psi), "prox", instead))
        refuse_stateful(self.name, self.local)

    def init(self, params: Params) -> FedDRServer:
        self.psi.check(params)
        return FedDRServer(params, params)

    def broadcast(self, server: FedDRServer, cohort: Cohort) -> FedOptBroadcast:
        return FedOptBroadcast(server.params, cohort.round)

    def init_client(self, broadcast: FedOptBroadcast) -> FedDRClient:
        return FedDRClient(broadcast.params, broadcast.params, broadcast.params)

    def train(
        self, broadcast: FedOptBroadcast, client: FedDRClient, oracle: Oracle
    ) -> tuple[FedDRMessage, FedDRClient]:
        # the anchor moved, the proximal problem solved, the reflection
        # y_i <- y_i + alpha (xbar - x_i)
        y = trees.axpy(self.alpha, trees.sub(broadcast.params, client.params), client.anchor)
        # x_i ~ prox_{eta f_i}(y_i), warm-started at the last x_i
        problem = ProximalOracle(oracle, y, 1 / self.eta)
        x = self.local.solve(client.params, problem, broadcast.round).params
        # xhat_i = 2 x_i - y_i; what is sent is its change, so that xtilde stays the mean over all clients
        reflected = trees.sub(trees.scale(2, x), y)
        message = FedDRMessage(trees.sub(reflected, client.reflected))
        return message, FedDRClient(x, y, reflected)

    def update(self, server: FedDRServer, message: FedDRMessage, cohort: Cohort) -> FedDRServer:
        # the mean of the reflections, and its prox
        mean = trees.axpy(cohort.size / cohort.population, message.delta, server.mean)
        return FedDRServer(self.psi.prox(mean, self.eta), mean)

    def export(self, server: FedDRServer) -> Params:
        return server.params

    def diagnostics(self) -> tuple[Any, ...]:
        return measures_of(self.psi)


@by_name("FedDR")
def FedDR(
    psi: WithProx,
    client_lr: Rate = 0.1,
    *,
    eta: Scalar = 1.0,
    alpha: Scalar = 1.0,
    solver: Literal["sgd", "exact"] = "sgd",
    **client: Unpack[ClientOptions],
) -> DouglasRachford:
    """FedDR (Tran Dinh et al. 2021): randomised Douglas-Rachford splitting for F + psi, with equal client weights.

        client i in S:  y_i <- y_i + alpha (xbar - x_i),   x_i ~ prox_{eta f_i}(y_i),   xhat_i <- 2 x_i - y_i
        server:         xtilde <- xtilde + (1/n) sum over S of (xhat_i+ - xhat_i),   xbar = prox_{eta psi}(xtilde)

    Up: the change of xhat_i (d numbers). Down: xbar. Kept: x_i, y_i and xhat_i on each client (3 d), xtilde on the
    server. The authors' code averages over all clients by examples and starts xhat_i at 0; see `docs/composite.md`.

    Args:
        psi: penalty or set of `fedsolve.geometry` with a prox (its projection).
        client_lr: > 0, of the SGD steps on the proximal objective, a number or a schedule by round; not used by
            `exact`. 0.1 is where to begin.
        eta: step of both proximal operators, > 0 (1; the authors' experiments take 100 to 1000).
        alpha: relaxation in (0, 2); 1 is stable, the authors' experiments take 1.95.
        solver: the run's local steps of SGD, or `exact`, conjugate gradients, where losses are quadratic.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        The splitting with every client's own states, whose local solver is `client.SGD` or, for `exact`,
        `client.ConjugateGradient`.

    Raises:
        InvalidInput: psi has no prox; a number out of its range; an unknown solver.

    Reference: Tran Dinh, Pham, Phan and Nguyen, "FedDR: Randomized Douglas-Rachford Splitting Algorithms for Nonconvex
    Federated Composite Optimization", NeurIPS 2021, Algorithm 1.
    """
    check_known("solver", solver, ("sgd", "exact"))
    local = local_sgd(client_lr, client) if solver == "sgd" else ConjugateGradient()
    return DouglasRachford(psi, local, eta=eta, alpha=alpha)
