"""FedLiLU's server step: Deep Frank-Wolfe (Berrada et al. 2019) on client updates and reported losses."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import checked, choice, number
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, reduced, reported
from fedsolve.methods.client.solver import Solution
from fedsolve.methods.server.server_optimizer import ServerOptimizer

LossPoint = Literal["start", "end", "last", "mean"]
LossWeights = Literal["same", "plain", "examples"]


@module
class Objective:
    """What a client adds to its update: its loss, averaged as D is."""

    f: Traced


@module
class PlainObjective:
    """The same, every participant counted alike."""

    f: Traced = reduced("average")


@module
class WeightedObjective:
    """n_i f_i and n_i, every participant counted alike: their quotient is the mean by examples, whatever D's is."""

    f: Traced = reduced("average")
    examples: Traced = reduced("average")


@module
class DeepFrankWolfeState:
    """Nesterov momentum z (shapes of the model, `()` if none), gamma, f, and the last rate eta gamma."""

    z: Params
    gamma: Traced = reported()
    f: Traced = reported()
    server_lr: Traced = reported()


@module
class DeepFrankWolfe(ServerOptimizer):
    """Deep Frank-Wolfe server step: the clients' losses determine its length.

    With Delta = -D = mean of (w - w_i), r = lam w and f the mean of the clients' losses:

        gamma = clip((f - eta <Delta, r>) / (eta |Delta|^2 + eps), 0, 1)
        w <- w - eta (r + gamma Delta)
        momentum:  z <- momentum z - eta gamma (Delta + r),   w <- w + momentum z     (r as before the step)

    gamma maximises  gamma f - (eta/2) |r + gamma Delta|^2 - (eps/2) gamma^2  over [0, 1]: the dual of a proximal
    step on  lam/2 |w|^2 + max(0, F linearised), so that no step overshoots a loss of 0. Delta = 0 sets gamma = 1.

    gamma = 1 wherever f >= eta (<Delta, r> + |Delta|^2) + eps. Delta is a client update, about K eta_l times a
    gradient, so this is nearly always so unless eta is large or losses are near 0; the step is then FedAvg's
    with server rate eta and decoupled weight decay lam. With lam = 0 and gamma < 1 it is a Polyak step,
    eta gamma |Delta|^2 = f. A negative f makes gamma 0 (only decay acts) for lam = 0.

    Attributes:
        eta: proximal coefficient, a number or a schedule by round, > 0.
        lam: weight decay, at least 0.
        momentum: mu in [0, 1), None for none.
        eps: added to the denominator, at least 0.
        f: the loss a client reports: of all its examples at the `start` of local training (the point that D refers
            to) or at its `end`, of its `last` minibatch at the end, or the `mean` over local steps as it went,
            which alone costs no evaluation.
        loss_weights: f averaged with the `same` weights as D, `plain`, by 1/|S|, or by `examples`, for which a
            client sends one number more.

    Raises:
        InvalidInput: a number out of its range, an unknown f or loss_weights.
    """

    weighting: ClassVar[Weighting] = "uniform"

    eta: Rate = checked(as_rate, default=1.0, name="server_lr")
    _: KW_ONLY
    lam: Scalar = number(default=1e-3, at_least=0)
    momentum: Scalar | None = number(default=None, at_least=0, below=1)
    eps: Scalar = number(default=1e-5, at_least=0)
    f: LossPoint = choice("start", "end", "last", "mean", default="end", kind="f")
    loss_weights: LossWeights = choice("same", "plain", "examples", default="same", kind="loss_weights")

    def init(self, params: Params) -> DeepFrankWolfeState:
        zero = jnp.zeros((), trees.dtype_of(params))
        z = () if self.momentum is None else trees.zeros_like(params)
        return DeepFrankWolfeState(z, zero, zero, zero)

    def client_stats(
        self, delta: Params, solution: Solution, start: Params, oracle: Oracle
    ) -> Objective | PlainObjective | WeightedObjective:
        # the client's loss f_i, with the terms that wrappers add (0 at `start`, except for a penalty)
        if self.f == "start":
            f = oracle.full(start)[0]
        elif self.f == "end":
            f = oracle.full(solution.params)[0]
        elif self.f == "last":
            f = oracle.loss(solution.params, oracle.steps - 1)
        else:
            f = solution.loss
        if self.loss_weights == "examples":
            count = jnp.asarray(oracle.num_examples).astype(jnp.asarray(f).dtype)
            return WeightedObjective(count * f, count)
        return Objective(f) if self.loss_weights == "same" else PlainObjective(f)

    def step(
        self,
        params: Params,
        state: DeepFrankWolfeState,
        delta: Params,
        measured: Objective | PlainObjective | WeightedObjective,
        cohort: Cohort,
    ) -> tuple[Params, DeepFrankWolfeState]:
        # apply one server step (Algorithm 2 of FedLi, read as Deep Frank-Wolfe's code)
        eta, lam, square = rate_at(self.eta, cohort.round), self.lam, trees.squared_norm(delta)
        # Delta = -D: signs of the paper's <Delta, r> turn below
        below, f = eta * square + self.eps, measured.f
        if isinstance(measured, WeightedObjective):
            f = f / jnp.where(measured.examples > 0, measured.examples, 1)
        ratio = (f + eta * lam * trees.dot(delta, params)) / jnp.where(below > 0, below, 1)
        # D = 0 has no direction to search along; 1 leaves decay alone to act
        gamma = jnp.where(square > 0, jnp.clip(ratio, 0, 1), 1)
        new = jax.tree.map(lambda w, d: (w - eta * (lam * w - gamma * d)).astype(w.dtype), params, delta)
        z = ()
        if self.momentum is not None:
            mu = self.momentum
            # from the model before the step, as Deep Frank-Wolfe's code
            z = jax.tree.map(
                lambda z, w, d: (mu * z - eta * gamma * (lam * w - d)).astype(z.dtype), state.z, params, delta
            )
            new = trees.axpy(mu, z, new)
        scalars = [jnp.asarray(x, state.gamma.dtype) for x in (gamma, f, eta * gamma)]
        return new, DeepFrankWolfeState(z, *scalars)
