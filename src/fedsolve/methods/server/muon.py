"""Servers that step along linear minimisation oracles: Muon, of a momentum of the mean update, or of it alone."""

from __future__ import annotations

from dataclasses import KW_ONLY
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import checked, choice, integer, number
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, reported
from fedsolve.methods.client.muon import MuonRule, MuonState, matrices_of, polar_of, shape_factor
from fedsolve.methods.server.server_optimizer import ServerOptimizer


@module
class MuonServerState:
    """Momenta, and the last rate."""

    muon: MuonState
    server_lr: Traced = reported()


@module
class ServerMuon(MuonRule, ServerOptimizer):
    """Muon's step on the server (Jordan et al. 2024), with the mean client update D in place of a negative gradient.

        matrix:  m <- beta m + (1 - beta) D,   w <- w + lr (s polar(beta m + (1 - beta) D) - weight_decay w)
        others:  w <- w + lr vector_scale (AdamW's direction along D - weight_decay w)

    The momentum is of a mean: the linear minimisation oracle is applied once a round, after averaging, so that it has
    no bias from clients that differ.

    Args:
        lr: > 0, in units of the spectral norm of a step, whatever the length of D; a number or a schedule by round.
        momentum, weight_decay, vector_scale, newton_schulz, vectors: as of `client.Muon`.

    Raises:
        InvalidInput: a number out of its range, patterns that are none. When a run begins: one that matches no leaf, a
            model without a matrix.

    >>> ServerMuon(0.02, momentum=0.9).momentum
    0.9

    Reference: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024,
    https://kellerjordan.github.io/posts/muon/.
    """

    weighting: ClassVar[Weighting] = "uniform"

    def init(self, params: Params) -> MuonServerState:
        zero = jnp.zeros((), trees.dtype_of(params))
        return MuonServerState(self.first_state(params), zero)

    def step(
        self, params: Params, state: MuonServerState, delta: Params, measured: Any, cohort: Cohort
    ) -> tuple[Params, MuonServerState]:
        lr: Any = rate_at(self.lr, cohort.round)
        along, muon = self.muon_step(params, trees.scale(-1, delta), state.muon)
        rate = jnp.asarray(lr, state.server_lr.dtype)
        return trees.axpy(-lr, along, params), MuonServerState(muon, rate)


@module
class LMOState:
    """The last rate."""

    server_lr: Traced = reported()


@module
class ServerLMO(ServerOptimizer):
    """Steps of one length: w <- w + lr Z, where Z maximises <D, Z> over a unit ball, and D is the mean client update.

        spectral:   matrices Z = s polar(D),  other leaves Z = vector_scale sign(D): a ball for each leaf
        euclidean:  Z = D / |D|: one ball for the model

    polar, s and which leaves are matrices are those of `client.Muon`. A D of zeros is no step.

    Args:
        lr: > 0, a number or a schedule by round.
        ball: `spectral` or `euclidean`.
        vector_scale: radius of the other leaves' balls (of the largest entry), in units of lr, > 0.
        newton_schulz, vectors: as of `client.Muon`.

    Raises:
        InvalidInput: a number out of its range, patterns that are none. When a run begins: one that matches no leaf.

    >>> ServerLMO(0.1, ball="euclidean").ball
    'euclidean'

    Reference: Gruntkowska, Gaponov, Tovmasyan and Richtarik, ICLR 2026 (arXiv:2510.00643).
    """

    weighting: ClassVar[Weighting] = "uniform"

    lr: Rate = checked(as_rate)
    _: KW_ONLY
    ball: Literal["spectral", "euclidean"] = choice("spectral", "euclidean", default="spectral")
    vector_scale: Scalar = number(default=0.1, above=0)
    newton_schulz: int = integer(at_least=0, default=5)
    vectors: str | tuple[str, ...] = checked(
        partial(trees.as_patterns, example="'output.*'", at_least=0), default=(), static=True
    )

    def init(self, params: Params) -> LMOState:
        return LMOState(jnp.zeros((), trees.dtype_of(params)))

    def step(
        self, params: Params, state: LMOState, delta: Params, measured: Any, cohort: Cohort
    ) -> tuple[Params, LMOState]:
        lr: Any = rate_at(self.lr, cohort.round)
        leaves, structure = jax.tree.flatten(delta)
        if self.ball == "euclidean":
            length = trees.norm(delta)
            along = trees.scale(1 / jnp.where(length > 0, length, 1), delta)
        else:
            along = structure.unflatten(map(self._leaf, leaves, matrices_of(params, self.vectors)))
        return trees.axpy(lr, along, params), LMOState(jnp.asarray(lr, state.server_lr.dtype))

    def _leaf(self, d: Array, is_matrix: bool) -> Array:
        if is_matrix:
            return shape_factor(d) * polar_of(d, self.newton_schulz)
        return (self.vector_scale * jnp.sign(d)).astype(d.dtype)
