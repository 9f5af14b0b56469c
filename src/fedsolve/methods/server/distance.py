"""Server steps whose rate is an estimated distance: D-Adaptation, DoG and Prodigy."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import by_name, number
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, replace, reported
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.server.fedopt import FedOpt, compose
from fedsolve.methods.server.server_optimizer import ServerOptimizer


@module
class EstimateState:
    """Moments m and v, the sum s of scaled gradients (shapes of the model), the numerator r of the estimate, the first
    model (`()` where it is not needed), and the estimate d, which is the server's rate.
    """

    m: Params
    v: Params
    s: Params
    r: Traced
    start: Params
    distance: Traced = reported()
    server_lr: Traced = reported()


@module
class AdamByDistance(ServerOptimizer):
    """Base class of Adam on the server with an estimated distance in the place of a rate."""

    _: KW_ONLY
    initial_distance: Scalar = number(default=1e-6, above=0)
    beta1: Scalar = number(default=0.9, at_least=0, below=1)
    beta2: Scalar = number(default=0.999, at_least=0, below=1)
    eps: Scalar = number(default=1e-8, at_least=0)

    def init(self, params: Params) -> EstimateState:
        zeros, zero = trees.zeros_like(params), jnp.zeros((), trees.dtype_of(params))
        distance = jnp.asarray(self.initial_distance, zero.dtype)
        return EstimateState(zeros, zeros, zeros, zero, (), distance, zero)

    def estimated(self, state: EstimateState, numerator: Traced, denominator: Traced) -> EstimateState:
        """The state with the larger of the old estimate and the new one; the old one is the rate of this round.

        The state has the moments and sums of this round; the new estimate's 0 / 0 counts as 0.
        """
        distance = jnp.maximum(state.distance, trees.quotient(numerator, denominator)).astype(state.r.dtype)
        return replace(state, distance=distance, server_lr=state.distance)


# D-Adaptation (Defazio and Mishchenko 2023) on the server.


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
        b1, b2, d, decay = self.beta1, self.beta2, state.distance, jnp.sqrt(self.beta2)
        # s / (sqrt(v) + eps) with the v of the round before, as the authors' code
        scaled = jax.tree.map(lambda s, v: trees.quotient(s, jnp.sqrt(v) + self.eps), state.s, state.v)
        m = jax.tree.map(lambda m, x: (b1 * m + (1 - b1) * d * x).astype(m.dtype), state.m, delta)
        v = jax.tree.map(lambda v, x: (b2 * v + (1 - b2) * x**2).astype(v.dtype), state.v, delta)
        s = jax.tree.map(lambda s, x: (decay * s + (1 - decay) * d * x).astype(s.dtype), state.s, delta)
        r = (decay * state.r + (1 - decay) * d * trees.dot(delta, scaled)).astype(state.r.dtype)
        length = jnp.asarray(sum(jnp.sum(jnp.abs(x)) for x in jax.tree.leaves(s)), r.dtype)
        after = self.estimated(EstimateState(m, v, s, r, (), d, d), r, (1 - decay) * length)
        move = jax.tree.map(lambda m, v: trees.quotient(m, jnp.sqrt(v) + self.eps), m, v)
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


# Distance over gradients (Ivgi, Hinder and Carmon 2023) on the server.


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
    initial_distance: Scalar = number(default=1e-6, above=0)

    def init(self, params: Params) -> DoGState:
        zero = jnp.zeros((), trees.dtype_of(params))
        distance = (self.initial_distance * (1 + trees.norm(params))).astype(zero.dtype)
        return DoGState(params, zero, distance, zero)

    def step(
        self, params: Params, state: DoGState, delta: Params, measured: Any, cohort: Cohort
    ) -> tuple[Params, DoGState]:
        distance = jnp.maximum(state.distance, trees.norm(trees.sub(params, state.start)))
        total = state.total + trees.squared_norm(delta)
        lr = trees.quotient(distance, jnp.sqrt(total))
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


# Prodigy (Mishchenko and Defazio 2024) on the server.


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
        return replace(super().init(params), start=params)

    def step(
        self, params: Params, state: EstimateState, delta: Params, measured: Any, cohort: Cohort
    ) -> tuple[Params, EstimateState]:
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
        move = jax.tree.map(lambda m, v: trees.quotient(m, jnp.sqrt(v) + after.distance * self.eps), m, v)
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
