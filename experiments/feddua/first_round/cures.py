"""FedDuAdagrad's first step is a sign step: candidates for another."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

import fedsolve as fs
from fedsolve import client, server
from fedsolve.studies.public import Params, Spread, Traced, module, quotient, reported, static, trees

Cure = Literal["none", "mean square", "relative eps", "plain round"]


@module
class FirstRoundState:
    """The sum of squares s, with the shapes of the model, and the last step."""

    s: Params
    server_lr: Traced = reported()


@module
class FirstRound(server.ServerOptimizer):
    """FedDuAdagrad with another first round.

        s <- s + D^2,   G = sqrt(s) + eps,   eta = mean |D_i|^2 / (2 <D, G^-1 D>),   w <- w + eta G^-1 D

    In the first round s = D^2, so that G^-1 D is the sign of D: each coordinate moves as far as each other.

    Attributes:
        cure: `mean square`: s begins at the mean square of the first D's coordinates; `relative eps`: eps is the root
            mean square of D's in each round; `plain round`: G = I in the first round.
        eps: added to sqrt(s).
    """

    weighting = "uniform"
    cure: Cure = static(default="none")
    eps: float = 1e-9

    def init(self, params: Params) -> FirstRoundState:
        """All zero."""
        return FirstRoundState(trees.zeros_like(params), jnp.zeros((), trees.dtype_of(params)))

    def client_stats(
        self, delta: Params, solution: fs.client.Solution, start: Params, oracle: fs.Oracle
    ) -> Spread:
        """|D_i|^2."""
        return Spread(trees.squared_norm(delta))

    def step(
        self, params: Params, state: FirstRoundState, delta: Params, measured: Spread, cohort: fs.Cohort
    ) -> tuple[Params, FirstRoundState]:
        """One step."""
        is_first = cohort.round == 0
        mean_square = trees.squared_norm(delta) / sum(d.size for d in jax.tree.leaves(delta))
        added = jnp.where(is_first, mean_square, 0) if self.cure == "mean square" else 0.0
        eps = jnp.sqrt(mean_square) if self.cure == "relative eps" else self.eps
        s = jax.tree.map(lambda s, d: (s + d * d + added).astype(s.dtype), state.s, delta)

        def scaled(d: Traced, s: Traced) -> Traced:
            own = quotient(d, jnp.sqrt(s) + eps)
            return jnp.where(is_first, d, own) if self.cure == "plain round" else own

        direction = jax.tree.map(scaled, delta, s)
        eta = quotient(measured.squared_norm / 2, trees.dot(delta, direction))
        return trees.axpy(eta, direction, params), FirstRoundState(s, eta.astype(state.server_lr.dtype))


def method(cure: Cure, eps: float, client_lr: float) -> fs.Algorithm:
    """FedDuAdagrad with a cure."""
    return fs.FedOpt(
        client.SGD(client_lr), FirstRound(cure=cure, eps=eps), weighting="uniform", name="FedDuAdagrad"
    )
