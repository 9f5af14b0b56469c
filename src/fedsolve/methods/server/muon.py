"""Muon as a server optimiser: the server steps along the polar factor of a momentum of the mean client update."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.schedules import rate_at
from fedsolve.core.types import Params, Traced, Weighting, module, reported
from fedsolve.methods.client.muon import MuonRule, MuonState
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
