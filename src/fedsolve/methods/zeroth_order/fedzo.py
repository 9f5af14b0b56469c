"""FedZO (Fang et al. 2022): FedAvg whose clients estimate gradients from losses."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any

import jax.numpy as jnp
from jax import lax

from fedsolve.core import trees
from fedsolve.core.building import by_name
from fedsolve.core.errors import check_integer, check_range
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import Params, Scalar, Weighting, module, static
from fedsolve.methods.client.solver import LocalSolver, Solution, local_loop, mean_loss
from fedsolve.methods.server.fedopt import FedOpt
from fedsolve.methods.server.sgd import ServerSGD
from fedsolve.methods.zeroth_order.directions import gaussian, key_of


@module
class ZerothOrderSGD(LocalSolver):
    """Local steps along gradients that are estimated from losses, in P random directions v of length 1.

        y <- y - lr (d / P) sum_v ((f(y + mu v) - f(y)) / mu) v

    Directions follow from the number of the round, of the client and of the step.

    Attributes:
        lr: client learning rate, a number or a schedule by round; > 0.
        directions: P, at least 1.
        mu: smoothing, > 0, in units of the parameters.

    Raises:
        InvalidInput: one of them out of its range.
    """

    lr: Rate
    _: KW_ONLY
    directions: int = static(default=1)
    mu: Scalar = 1e-3

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", as_rate("client_lr", self.lr))
        check_integer("directions", self.directions, 1, bits=31)
        check_range("mu", self.mu, above=0)

    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        """Run `oracle.steps` steps from `params`."""
        rate = rate_at(self.lr, round) * trees.size(params) / self.directions
        number, mu = jnp.asarray(oracle.client, jnp.uint32), self.mu

        def step(k: Scalar, carry: Any) -> Any:
            y, total = carry
            here = oracle.loss(y, k)

            def along(p: Any, estimate: Params) -> Params:
                z = gaussian(key_of(3, round, number, k, p), y)
                v = trees.scale(1 / trees.norm(z), z)
                slope = (oracle.loss(trees.axpy(mu, v, y), k) - here) / mu
                return trees.axpy(slope, v, estimate)

            estimate = lax.fori_loop(0, self.directions, along, trees.zeros_like(y))
            return trees.axpy(-rate, estimate, y), total + here

        start = (params, jnp.zeros((), trees.dtype_of(params)))
        last, total = local_loop(oracle, step, start)
        return Solution(last, mean_loss(total, oracle))


@by_name("FedZO")
def FedZO(
    client_lr: Rate = 1e-3,
    *,
    directions: int = 1,
    mu: Scalar = 1e-3,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
) -> FedOpt:
    """FedZO (Fang et al. 2022): FedAvg whose clients estimate gradients from losses in P random directions v.

        client:  y <- y - eta_l (d / P) sum_v ((f_i(y + mu v) - f_i(y)) / mu) v,   K times from w
        server:  w <- w + eta_g mean (y - w)

    v is uniform on the sphere of radius 1. Up: y - w (d numbers) and the mean local loss: the paper's messages are
    dense, whatever their steps were. `DeComFL` and `FedKSeed` send scalars. Down: w. Only losses are evaluated, P + 1
    for each local step. As P grows and mu falls it is `FedAvg`. The paper's sum of messages over the air is left out.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.001 is where to begin: a step is as long as sqrt(d / P)
            times the gradient's, where FedAvg's is as long as the gradient.
        directions: P, at least 1; 1 is the cheapest.
        mu: smoothing, > 0, in units of the parameters; 0.001 is where to begin.
        server_lr: eta_g > 0, a number or a schedule by round (1, the paper's average).
        weighting: `uniform` (the paper's) or by `examples`.

    Returns:
        `FedOpt` with such local steps and `server.ServerSGD`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Fang, Yu, Jiang, Shi, Jones and Zhou, "Communication-Efficient Stochastic Zeroth-Order Optimization for
    Federated Learning", IEEE Transactions on Signal Processing 2022.
    """
    local = ZerothOrderSGD(client_lr, directions=directions, mu=mu)
    return FedOpt(local, ServerSGD(server_lr), weighting=weighting, name="FedZO")
