"""Prodigy (Mishchenko and Defazio 2024) on the server."""

from __future__ import annotations

from typing import Any, Unpack

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import by_name
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Weighting, module, replace
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.server.adaptive import quotient
from fedsolve.methods.server.distance.estimates import AdamByDistance, EstimateState
from fedsolve.methods.server.fedopt import FedOpt, compose


@module
class Prodigy(AdamByDistance):
    """Prodigy's Adam on the server, with -D as the gradient and an estimated distance as the rate: see `FedProdigy`.

    Args:
        initial_distance: d before the first round, > 0, in units of a parameter (1e-6, the paper's).
        beta1: decay of m, in [0, 1) (0.9, the paper's).
        beta2: decay of v, in [0, 1) (0.999, the paper's); its square root is the decay of s and r.
        eps: at least 0, added to sqrt(v) in units of d (1e-8, the paper's).

    Raises:
        InvalidInput: a number out of its range.
    """

    def init(self, params: Params) -> EstimateState:
        """Moments and sums of zero, the first model, and the initial estimate."""
        return replace(super().init(params), start=params)

    def step(
        self, params: Params, state: EstimateState, delta: Params, measured: Any, cohort: Cohort
    ) -> tuple[Params, EstimateState]:
        """Apply one server step."""
        b1, b2, d, decay = self.beta1, self.beta2, state.distance, jnp.sqrt(self.beta2)
        ahead = trees.dot(delta, trees.sub(params, state.start))  # <g, w_0 - w> with g = -D
        m = jax.tree.map(lambda m, x: (b1 * m + (1 - b1) * d * x).astype(m.dtype), state.m, delta)
        v = jax.tree.map(lambda v, x: (b2 * v + (1 - b2) * (d * x) ** 2).astype(v.dtype), state.v, delta)
        # s and r in units of d_0: float32 has no 1e-40
        weight = (1 - decay) * d * (d / self.initial_distance)
        s = jax.tree.map(lambda s, x: (decay * s + weight * x).astype(s.dtype), state.s, delta)
        r = (decay * state.r + weight * ahead).astype(state.r.dtype)
        length = jnp.asarray(sum(jnp.sum(jnp.abs(x)) for x in jax.tree.leaves(s)), r.dtype)
        after = self.estimated(EstimateState(m, v, s, r, state.start, d, d), r, length)
        move = jax.tree.map(lambda m, v: quotient(m, jnp.sqrt(v) + after.distance * self.eps), m, v)
        return trees.axpy(d, move, params), after


@by_name("FedProdigy")
def FedProdigy(
    client_lr: Rate = 0.1,
    *,
    initial_distance: Scalar = 1e-6,
    beta1: Scalar = 0.9,
    beta2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    weighting: Weighting = "examples",
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """Prodigy (Mishchenko and Defazio 2024) on the server, with -D as the gradient: Adam without a rate.

        client:  D_i as in `FedAvg`
        server:  D = sum_i p_i D_i,   m <- b1 m + (1 - b1) d D,   v <- b2 v + (1 - b2) d^2 D^2
                 r <- c r + (1 - c) d^2 <D, w - w_0>,   s <- c s + (1 - c) d^2 D,   c = sqrt(b2)
                 w <- w + d m / (sqrt(v) + d eps),   d <- max(d, r / |s|_1)

    d begins at initial_distance. Up: D_i (d numbers) and the mean local loss. Down: w. Kept: m, v, s, w_0, r and d on
    the server. The run logs d as `distance`. The scale of D, and so of client_lr, has no effect on the server's step.
    The paper's method is for one machine. As in its code, there is no bias correction and eps is multiplied by the new
    d; `optax.contrib.prodigy` corrects bias.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin.
        initial_distance: > 0, in units of a parameter; below the distance to a solution. 1e-6 (the paper's).
        beta1: decay of m, in [0, 1) (0.9, the paper's).
        beta2: decay of v, in [0, 1) (0.999, the paper's).
        eps: at least 0 (1e-8, the paper's).
        weighting: p_i by `examples` or `uniform`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `FedOpt` of `client.SGD` and `server.Prodigy`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Mishchenko and Defazio, "Prodigy: An Expeditiously Adaptive Parameter-Free Learner", ICML 2024,
    Algorithm 4.
    """
    optimizer = Prodigy(initial_distance=initial_distance, beta1=beta1, beta2=beta2, eps=eps)
    return compose("FedProdigy", client_lr, optimizer, weighting, client)
