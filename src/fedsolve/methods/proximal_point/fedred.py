"""FedRed (Jiang, Rodomanov and Stich 2024): drift correction with two regularisers, and rounds of random length."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import ClassVar

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, check_range, shown
from fedsolve.core.oracle import MappedOracle, Oracle
from fedsolve.core.schedules import Rate, rate_at
from fedsolve.core.types import Params, Scalar, Weighting, module, replace
from fedsolve.methods.client.sgd import SGD
from fedsolve.methods.client.solver import Solution
from fedsolve.methods.client.some_steps import SomeSteps, tosses
from fedsolve.methods.proximal_point.centers import CenterMessage, CenterServer, ControlledProximal


@module
class DoublyRegularized(ControlledProximal):
    """FedRed with local SGD: see `FedRed`.

    Args:
        local: the clients' `client.SGD`, whose rate is 1 / eta.
        lam: weight of the proximal term, at least 0, in units of the loss per squared parameter.
        p: probability that a local step is the last, in (0, 1].
        weighting: p_i, `uniform` or by `examples`.

    Raises:
        InvalidInput: clients that do not run SGD, a number out of its range, an unknown weighting.
    """

    name: ClassVar[str] = "FedRed"

    _: KW_ONLY
    p: Scalar = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.local, SGD):
            raise InvalidInput(f"FedRed takes eta from the rate of local SGD, not from {shown(self.local)}")
        check_range("p", self.p, above=0, at_most=1)

    def solve(self, center: Params, problem: Oracle, round: Scalar) -> Solution:
        """Steps with both regularisers: SGD with the rate 1 / (eta + lam), as many as the coin allows."""
        lr = rate_at(self.local.lr, round)  # pyright: ignore[reportAttributeAccessIssue]
        shorter = MappedOracle(problem, lambda y, g: trees.scale(1 / (1 + self.lam * lr), g))
        steps, bound = (jnp.minimum(tosses(round, self.p), x) for x in (problem.steps, problem.bound))
        return self.local.solve(center, SomeSteps(shorter, 0, steps, bound), round)

    def move(self, server: CenterServer, message: CenterMessage) -> CenterServer:
        """x to the mean of x_i."""
        return replace(server, params=trees.add(server.params, message.vector))


@by_name("FedRed")
def FedRed(
    client_lr: Rate = 0.1,
    *,
    lam: Scalar = 1.0,
    p: Scalar = 0.25,
    weighting: Weighting = "uniform",
) -> DoublyRegularized:
    """FedRed (Jiang, Rodomanov and Stich 2024): local steps with two regularisers and exact control variates.

        round 1, client i in S:  sends grad f_i(x)
        round 2, all:            K = number of tosses up to the first success, each of probability p
                 client i in S:  h_i = grad f_i(x) - mean grad f_j(x),   y = x at first; K times
                                 y <- argmin_z <g_i(y) - h_i, z> + (lam / 2) |z - x|^2 + (eta / 2) |z - y|^2
                                    = y - (g_i(y) - h_i + lam (y - x)) / (eta + lam),   sends y
                 server:         x <- mean y

    Up: one vector. Down: x and the mean gradient (2 d numbers). Kept: both on the server. Each exchange of messages is
    a round of a run, so that a round of the paper takes two. Its clients are the same in both; here each round draws
    its own, the same if all take part or `sampling.Trace` says so. As in the authors' code, clients start at x, and
    control variates are new in every round (the first of the paper's two kinds). K follows from the number of the
    round: all clients have the same, but no more than the run's local steps. p = 1 on all examples is gradient
    descent, `FedAvg` with one local step of rate 1 / (eta + lam).

    Args:
        client_lr: 1 / eta > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        lam: at least 0, in units of the loss per squared parameter; 1 is where to begin: the paper tunes it, of the
            size of the differences between clients' Hessians.
        p: in (0, 1]; 0.25 (the authors' code).
        weighting: of clients in all means, `uniform` as in the paper or by `examples`.

    Returns:
        The method, whose local solver is `client.SGD`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Jiang, Rodomanov and Stich, "Federated Optimization with Doubly Regularized Drift Correction", ICML 2024.
    """
    return DoublyRegularized(SGD(client_lr), lam=lam, p=p, weighting=weighting)
