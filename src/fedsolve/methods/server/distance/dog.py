"""Distance over gradients (Ivgi, Hinder and Carmon 2023) on the server."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, Unpack

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import by_name
from fedsolve.core.errors import check_range
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, reported
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.server.adaptive import quotient
from fedsolve.methods.server.fedopt import FedOpt, compose
from fedsolve.methods.server.server_optimizer import ServerOptimizer


@module
class DoGState:
    """The first model (its shapes), the sum of |D|^2, the largest distance from the first model, and the last rate."""

    start: Params
    total: Traced
    distance: Traced = reported()
    server_lr: Traced = reported()


@module
class DoG(ServerOptimizer):
    """Server step along D with distance over gradients as its rate: see `FedDoG`.

    r <- max(r, |w - w_0|),   G <- G + |D|^2,   w <- w + r D / sqrt(G).

    Attributes:
        initial_distance: r before the first round, in units of 1 + |w_0|, > 0 (1e-6, the paper's).

    Raises:
        InvalidInput: an initial distance that is not positive.
    """

    _: KW_ONLY
    initial_distance: Scalar = 1e-6

    def __post_init__(self) -> None:
        check_range("initial_distance", self.initial_distance, above=0)

    def init(self, params: Params) -> DoGState:
        """The first model, and the initial distance."""
        zero = jnp.zeros((), trees.dtype_of(params))
        distance = (self.initial_distance * (1 + trees.norm(params))).astype(zero.dtype)
        return DoGState(params, zero, distance, zero)

    def step(
        self, params: Params, state: DoGState, delta: Params, measured: Any, cohort: Cohort
    ) -> tuple[Params, DoGState]:
        """Apply one server step."""
        distance = jnp.maximum(state.distance, trees.norm(trees.sub(params, state.start)))
        total = state.total + trees.squared_norm(delta)
        lr = quotient(distance, jnp.sqrt(total))
        return trees.axpy(lr, delta, params), DoGState(state.start, total, distance, lr)


@by_name("FedDoG")
def FedDoG(
    client_lr: Rate = 0.1,
    *,
    initial_distance: Scalar = 1e-6,
    weighting: Weighting = "examples",
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """DoG (Ivgi et al. 2023) on the server, with -D as the gradient: no rate of the server.

        client:  D_i as in `FedAvg`
        server:  D = sum_i p_i D_i,   r <- max(r, |w - w_0|),   G <- G + |D|^2,   w <- w + r D / sqrt(G)

    r begins at initial_distance (1 + |w_0|). Up: D_i (d numbers) and the mean local loss. Down: w. Kept: w_0, r and G
    on the server. The run logs r as `distance` and r / sqrt(G) as `server_lr`. The scale of D, and so of client_lr, has
    no effect on the server's step. From a small r it takes tens of rounds to go far: r grows by a factor of about
    exp(2 sqrt(t)) in t rounds. The paper's method is for one machine; it evaluates means of its iterates, here the
    model is the last. Its code adds 1e-8 to G.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin.
        initial_distance: > 0, in units of 1 + |w_0|; below the distance to a solution. 1e-6 (the paper's; 1e-4 with
            batch normalisation).
        weighting: p_i by `examples` or `uniform`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `FedOpt` of `client.SGD` and `server.DoG`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    >>> FedDoG(0.1).server_optimizer.initial_distance
    1e-06

    Reference: Ivgi, Hinder and Carmon, "DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size Schedule", ICML
    2023, Equations 1 and 2.
    """
    return compose("FedDoG", client_lr, DoG(initial_distance=initial_distance), weighting, client)
