"""Federated mirror descent for F + psi (Yuan, Zaheer and Reddi 2021, Algorithms 2 and 4)."""

from __future__ import annotations

from typing import ClassVar

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import by_name, class_by_name
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, rate_at
from fedsolve.core.types import Claim, Params, Scalar, Traced, Weighting, claimed, module
from fedsolve.geometry.mirrors import Mirror
from fedsolve.geometry.regularizer import WithProx
from fedsolve.methods.algorithms.mirrored import EUCLIDEAN, MirroredMethod, sum_of_rates
from fedsolve.methods.client.solver import local_loop
from fedsolve.methods.server.fedopt import FedOptBroadcast


@module
class FedMiDServer:
    """The model."""

    params: Params


@module
class FedMiDMessage:
    """Client update w_K - w (shapes of the model), and the sum of the rates of its steps (K eta_c)."""

    delta: Params
    rate_sum: Traced = claimed(Claim(at_least=0))


@class_by_name("FedMiD")
@module
class FedMiD(MirroredMethod):
    """FedMiD (Yuan et al. 2021): proximal steps on the clients, averaged in the primal, then one on the server.

        client:  w <- grad(h + eta_c psi)*(grad h(w) - eta_c g_i(w))          OSP: without psi
        server:  D = sum_i p_i (w_i - w),   e = sum_i p_i K_i eta_c
                 w <- grad(h + eta_s e psi)*(grad h(w) + eta_s D)

    Down: w. Up: the client update and one number. Kept: nothing. With h = (1/2)|.|^2 the maps are proximal
    operators, with an indicator psi projections. The paper has one K; e is the clients' own sum of rates,
    so that unequal numbers of steps are right. psi = 0 is FedAvg. As psi acts on both sides, rates that fall
    to 0 lead to a minimiser of F + 2 psi; of F + psi in the OSP form and for an indicator.

    Args:
        psi: penalty or set of `fedsolve.geometry` with a prox, on the whole vector or, with `.on("weight")`, on
            chosen leaves.
        client_lr: eta_c > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        server_lr: eta_s > 0, a number or a schedule by round; 1 replaces w by the mean of the w_i.
        mirror: h, (1/2)|.|^2 in all of the paper's experiments.
        weighting: p_i, `uniform` (the paper's) or by `examples`.
        server_only: the OSP form, which `FedMiDOSP` names.

    Raises:
        InvalidInput: psi has no prox, or no closed form with the mirror map; a rate that is not positive;
            a start outside the mirror map's domain.

    Reference: Yuan, Zaheer and Reddi, "Federated Composite Optimization", ICML 2021, Algorithm 2.
    """

    title: ClassVar[str] = "FedMiD"

    def init(self, params: Params) -> FedMiDServer:
        """The server's first state: the initial model."""
        self.check_start(params)
        return FedMiDServer(params)

    def broadcast(self, server: FedMiDServer, cohort: Cohort) -> FedOptBroadcast:
        """The model."""
        return FedOptBroadcast(server.params, cohort.round)

    def train(
        self, broadcast: FedOptBroadcast, client: tuple[()], oracle: Oracle
    ) -> tuple[FedMiDMessage, tuple[()]]:
        """Run proximal gradient steps from the model."""
        lr = rate_at(self.client_lr, broadcast.round)

        def step(k: Scalar, w: Params) -> Params:
            theta = trees.axpy(-lr, oracle(w, k)[1], self.mirror.forward(w))
            return (
                self.mirror.inverse(theta) if self.server_only else self.mirror.composite(self.psi, theta, lr)
            )

        last = local_loop(oracle, step, broadcast.params)
        message = FedMiDMessage(trees.sub(last, broadcast.params), sum_of_rates(lr, oracle, last))
        return message, client

    def update(self, server: FedMiDServer, message: FedMiDMessage, cohort: Cohort) -> FedMiDServer:
        """Take a proximal step along the mean client update."""
        lr = rate_at(self.server_lr, cohort.round)
        theta = trees.axpy(lr, message.delta, self.mirror.forward(server.params))
        return FedMiDServer(self.mirror.composite(self.psi, theta, lr * message.rate_sum))

    def export(self, server: FedMiDServer) -> Params:
        """The model."""
        return server.params


@by_name("FedMiDOSP")
def FedMiDOSP(
    psi: WithProx,
    client_lr: Rate = 0.1,
    *,
    server_lr: Rate = 1.0,
    mirror: Mirror = EUCLIDEAN,
    weighting: Weighting = "uniform",
) -> FedMiD:
    """FedMiD with the proximal step on the server only (Yuan et al. 2021, Algorithm 4).

        client:  w <- grad h*(grad h(w) - eta_c g_i(w))
        server:  D = sum_i p_i (w_i - w),   e = sum_i p_i K_i eta_c,   w <- grad(h + eta_s e psi)*(grad h(w) + eta_s D)

    Travels, arguments and what is refused: as `FedMiD`. Its rates may fall to 0: it then minimises F + psi.

    Args:
        psi: penalty or set of `fedsolve.geometry` with a prox.
        client_lr: eta_c > 0, a number or a schedule by round (0.1).
        server_lr: eta_s > 0, a number or a schedule by round (1).
        mirror: h, (1/2)|.|^2 if it is not given.
        weighting: `uniform` (the paper's) or by `examples`.

    Returns:
        A `FedMiD` with `server_only=True`.

    Raises:
        InvalidInput: as `FedMiD`.

    Reference: Yuan, Zaheer and Reddi, "Federated Composite Optimization", ICML 2021, Algorithm 4.
    """
    return FedMiD(psi, client_lr, server_lr=server_lr, mirror=mirror, weighting=weighting, server_only=True)
