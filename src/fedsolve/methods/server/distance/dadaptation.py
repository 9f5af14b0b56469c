"""D-Adaptation (Defazio and Mishchenko 2023) on the server."""

from __future__ import annotations

from typing import Any, Unpack

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import by_name
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Weighting, module
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.server.adaptive import quotient
from fedsolve.methods.server.distance.estimates import AdamByDistance, EstimateState
from fedsolve.methods.server.fedopt import FedOpt, compose


@module
class DAdaptation(AdamByDistance):
    """D-Adaptation's Adam on the server, with -D as the gradient: see `FedDAdaptation`.

    Args:
        initial_distance: d before the first round, > 0, in units of a parameter (1e-6, the paper's).
        beta1: decay of m, in [0, 1) (0.9, the paper's).
        beta2: decay of v, in [0, 1) (0.999, the paper's); its square root is the decay of s and r.
        eps: at least 0, in units of D, added to sqrt(v) (1e-8, the paper's).

    Raises:
        InvalidInput: a number out of its range.
    """

    def step(
        self, params: Params, state: EstimateState, delta: Params, measured: Any, cohort: Cohort
    ) -> tuple[Params, EstimateState]:
        """Apply one server step."""
        b1, b2, d, decay = self.beta1, self.beta2, state.distance, jnp.sqrt(self.beta2)
        scaled = jax.tree.map(lambda s, v: quotient(s, jnp.sqrt(v) + self.eps), state.s, state.v)
        m = jax.tree.map(lambda m, x: (b1 * m + (1 - b1) * d * x).astype(m.dtype), state.m, delta)
        v = jax.tree.map(lambda v, x: (b2 * v + (1 - b2) * x**2).astype(v.dtype), state.v, delta)
        s = jax.tree.map(lambda s, x: (decay * s + (1 - decay) * d * x).astype(s.dtype), state.s, delta)
        r = (decay * state.r + (1 - decay) * d * trees.dot(delta, scaled)).astype(state.r.dtype)
        length = jnp.asarray(sum(jnp.sum(jnp.abs(x)) for x in jax.tree.leaves(s)), r.dtype)
        after = self.estimated(EstimateState(m, v, s, r, (), d, d), r, (1 - decay) * length)
        move = jax.tree.map(lambda m, v: quotient(m, jnp.sqrt(v) + self.eps), m, v)
        return trees.add(params, move), after


@by_name("FedDAdaptation")
def FedDAdaptation(
    client_lr: Rate = 0.1,
    *,
    initial_distance: Scalar = 1e-6,
    beta1: Scalar = 0.9,
    beta2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    weighting: Weighting = "examples",
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """D-Adaptation (Defazio and Mishchenko 2023) on the server, with -D as the gradient: Adam without a rate.

        client:  D_i as in `FedAvg`
        server:  D = sum_i p_i D_i,   r <- c r + (1 - c) d <D, s / (sqrt(v) + eps)>,   c = sqrt(b2)
                 m <- b1 m + (1 - b1) d D,   v <- b2 v + (1 - b2) D^2,   s <- c s + (1 - c) d D
                 w <- w + m / (sqrt(v) + eps),   d <- max(d, r / ((1 - c) |s|_1))

    d begins at initial_distance. Up: D_i (d numbers) and the mean local loss. Down: w. Kept: m, v, s, r and d on the
    server. The run logs d as `distance`. The scale of D, and so of client_lr, has no effect on the server's step where
    D is much larger than eps. The paper's method is for one machine. As in its code, s is divided by the v of the
    round before, and there is no bias correction; `optax.contrib.dadapt_adamw` corrects bias.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin.
        initial_distance: > 0, in units of a parameter; below the distance to a solution. 1e-6 (the paper's).
        beta1: decay of m, in [0, 1) (0.9, the paper's).
        beta2: decay of v, in [0, 1) (0.999, the paper's).
        eps: at least 0, in units of D (1e-8, the paper's).
        weighting: p_i by `examples` or `uniform`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `FedOpt` of `client.SGD` and `server.DAdaptation`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Defazio and Mishchenko, "Learning-Rate-Free Learning by D-Adaptation", ICML 2023, the Adam variant.
    """
    optimizer = DAdaptation(initial_distance=initial_distance, beta1=beta1, beta2=beta2, eps=eps)
    return compose("FedDAdaptation", client_lr, optimizer, weighting, client)
