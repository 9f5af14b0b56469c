"""Local SGD with momentum, weight decay and clipping: the client optimiser of most papers."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import ClassVar, TypedDict

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.building import checked, number
from fedsolve.core.errors import unknown
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import Params, Scalar, module
from fedsolve.methods.client.solver import LocalSolver, Solution, local_loop, mean_loss


@module
class SGD(LocalSolver):
    """Local SGD with optional momentum, weight decay and gradient clipping.

        g <- clip(g + weight_decay y),   b <- momentum b + g,   y <- y - lr b        (b starts at 0)

    Attributes:
        lr: client learning rate eta_l, a number or a schedule by round; > 0.
        momentum: in [0, 1), None for none; the buffer starts anew each round.
        weight_decay: added to the gradient as weight_decay y, None for none; at least 0.
        clip_norm: largest norm of the whole gradient (decay included), None for none; > 0.

    Raises:
        InvalidInput: a rate that is not positive, momentum outside [0, 1), a negative decay or norm.
    """

    sums_gradients: ClassVar[bool] = True

    lr: Rate = checked(as_rate, name="client_lr")
    _: KW_ONLY
    momentum: Scalar | None = number(default=None, at_least=0, below=1, name="client_momentum")
    weight_decay: Scalar | None = number(default=None, at_least=0)
    clip_norm: Scalar | None = number(default=None, above=0)

    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        lr = rate_at(self.lr, round)
        oracle = decayed_and_clipped(oracle, self.weight_decay, self.clip_norm)

        def step(k: Scalar, carry: tuple[Params, Params, Scalar]) -> tuple[Params, Params, Scalar]:
            y, buffer, total = carry
            loss, g = oracle(y, k)
            if self.momentum is not None:
                # heavy ball, without dampening: b <- beta b + g
                g = buffer = trees.axpy(self.momentum, buffer, g)
            return trees.axpy(-lr, g, y), buffer, total + loss

        # no buffer is carried through the loop where there is no momentum
        buffer = () if self.momentum is None else trees.zeros_like(params)
        start = (params, buffer, jnp.zeros((), trees.dtype_of(params)))
        last, _, total = local_loop(oracle, step, start)
        return Solution(last, mean_loss(total, oracle), self.rate_sum(oracle.steps, round))

    def rate_sum(self, steps: Scalar, round: Scalar) -> Scalar:
        # the sum over the steps of lr (1 + momentum + ... ): the distance that a constant unit gradient moves
        lr = rate_at(self.lr, round)
        if self.momentum is None:
            return lr * steps
        beta = self.momentum
        return lr / (1 - beta) * (steps - beta * (1 - beta**steps) / (1 - beta))


def decayed_and_clipped(oracle: Oracle, decay: Scalar | None, bound: Scalar | None) -> Oracle:
    """The oracle whose minibatch gradients are clip(g + decay y); None for none of it."""
    # decay before clipping: the bound is of the whole gradient that is stepped along
    if decay is not None:
        oracle = oracle.map_gradient(lambda y, g: trees.axpy(decay, y, g))
    if bound is not None:
        oracle = oracle.map_gradient(lambda y, g: clip(g, bound))
    return oracle


def clip(g: Params, bound: Scalar) -> Params:
    """g scaled down to norm `bound` if it is longer."""
    return trees.scale(jnp.minimum(1.0, bound / jnp.maximum(trees.norm(g), 1e-30)), g)


@module
class Gradient(LocalSolver):
    """The gradient in place of local steps: D_i = -(mean of the gradients of the client's K minibatches at w).

    With a server optimiser it is data-parallel training: K microbatches of each client are accumulated, and the
    optimiser steps along their mean. `FedOpt(client.Gradient(), server.Optax(optax.adamw, learning_rate=1e-3),
    weighting="uniform")` is AdamW on the joint batch, where all take part.
    """

    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        def add(k: Scalar, carry: tuple[Params, Scalar]) -> tuple[Params, Scalar]:
            loss, g = oracle(params, k)
            return trees.add(carry[0], g), carry[1] + loss

        start = (trees.zeros_like(params), jnp.zeros((), trees.dtype_of(params)))
        summed, total = local_loop(oracle, add, start)
        update = jax.tree.map(lambda g: (-g / jnp.maximum(oracle.steps, 1)).astype(g.dtype), summed)
        return Solution(trees.add(params, update), mean_loss(total, oracle), update=update)


_Carry = tuple[Params, Params, Scalar, Scalar, Scalar, Scalar]


@module
class DeltaSGD(LocalSolver):
    """Local SGD whose step is at most the inverse of the curvature along the last one (Kim et al. 2024).

        eta_k = min(gamma |y^k - y^(k-1)| / (2 |g_k - g_(k-1)|),  sqrt(1 + delta theta_(k-1)) eta_(k-1)),
        theta_k = eta_k / eta_(k-1),   y^(k+1) = y^k - eta_k g_k;   eta_0 = first and theta_0 = 1 in every round

    g_k is the gradient on the minibatch of step k, so that a step costs one gradient, and the minibatches' differences
    count as curvature. Where g_k = g_(k-1), or the last step moved nothing, the second term stands alone. With one
    local step it is SGD at `first`.

    Attributes:
        first: eta_0, > 0.
        gamma: > 0; a step on a quadratic of curvature L is at most gamma / (2 L).
        delta: at least 0; a step is at most sqrt(1 + delta theta) times the one before.

    Raises:
        InvalidInput: a number out of its range.

    Reference: Kim, Toghani, Uribe and Kyrillidis, "Adaptive Federated Learning with Auto-Tuned Clients", ICLR 2024,
    arXiv:2306.11201, as two independent codes have it; its text was not available.
    """

    sums_gradients: ClassVar[bool] = True

    first: Scalar = number(default=0.2, above=0)
    gamma: Scalar = number(default=2.0, above=0)
    delta: Scalar = number(default=0.1, at_least=0)

    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        dtype = trees.dtype_of(params)
        one, smallest = jnp.ones((), dtype), jnp.finfo(dtype).tiny

        def step(k: Scalar, carry: _Carry) -> _Carry:
            y, before, eta, theta, total, rates = carry
            loss, g = oracle(y, k)
            # |y_k - y_{k-1}| = eta |g_{k-1}|: no earlier model is kept
            moved, changed = eta * trees.norm(before), trees.norm(trees.sub(g, before))
            known = (moved > 0) & (changed > 0)
            by_curvature = self.gamma * moved / (2 * jnp.where(known, changed, 1))
            grown = jnp.sqrt(1 + self.delta * theta) * eta
            chosen = jnp.where(known, jnp.minimum(by_curvature, grown), grown)
            # no earlier gradient at the first step: the given rate, and theta as it is
            chosen = jnp.where(k == 0, eta, chosen).astype(dtype)
            theta = jnp.where(k == 0, theta, chosen / jnp.maximum(eta, smallest))
            return trees.axpy(-chosen, g, y), g, chosen, theta, total + loss, rates + chosen

        start = (params, trees.zeros_like(params), self.first * one, one, 0 * one, 0 * one)
        last, *_, total, rates = local_loop(oracle, step, start)
        return Solution(last, mean_loss(total, oracle), rates)


class ClientOptions(TypedDict, total=False):
    """Options of the clients' SGD that every method with local SGD takes, None (the default) for without.

    client_momentum: `SGD.momentum`, in [0, 1).
    weight_decay: `SGD.weight_decay`, at least 0.
    clip_norm: `SGD.clip_norm`, > 0.
    """

    client_momentum: Scalar | None
    weight_decay: Scalar | None
    clip_norm: Scalar | None


CLIENT_OPTIONS = tuple(ClientOptions.__annotations__)


def local_sgd(client_lr: Rate, options: ClientOptions) -> SGD:
    """The clients' SGD with its options."""
    for option in options:
        if option not in CLIENT_OPTIONS:
            raise unknown("argument", option, (*CLIENT_OPTIONS, "client_lr", "server_lr", "weighting"))
    return SGD(
        client_lr,
        momentum=options.get("client_momentum"),
        weight_decay=options.get("weight_decay"),
        clip_norm=options.get("clip_norm"),
    )
