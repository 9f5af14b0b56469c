"""Muon as the clients' solver, started anew each round or kept."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.errors import check_flag
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import rate_at
from fedsolve.core.types import Params, Scalar, module, static
from fedsolve.methods.client.solver import LocalSolver, Solution, local_loop, mean_loss
from fedsolve.methods.muon.rule import MuonRule, MuonState


@module
class Muon(MuonRule, LocalSolver):
    """Local solver that steps along the polar factor of a momentum (Jordan et al. 2024).

        matrix:  m <- beta m + (1 - beta) g,   y <- y - lr (s polar(beta m + (1 - beta) g) + weight_decay y)
        others:  y <- y - lr vector_scale (AdamW's direction + weight_decay y)

    polar(G) = U V' for G = U S V'; -lr polar(G) is the linear minimisation oracle of `geometry.SpectralBall(lr)`.
    Leaves of two axes and more are matrices (kernels of convolutions are flattened), but for those of `vectors`;
    vectors, scalars and these step by AdamW. `FedOpt(client.Muon(0.02), server.ServerSGD(), weighting="uniform")` is
    FedAvg with Muon, which need not converge where clients differ: the mean of polar factors is not that of the mean.
    `FedMuon` and `BiasCorrectedMuon` amend that. `MuLoCo` is of optax's Muon, whose momenta are corrected for their
    start at 0.

    Args:
        lr: > 0, in units of the spectral norm of a step, a number or a schedule by round; the public code has 0.02.
        momentum: beta in [0, 1); 0.95 (the public code).
        weight_decay: at least 0, decoupled; 0 (the public code).
        vector_scale: rate of the leaves that are no matrices, in units of lr, > 0; 0.1 (the authors of FedMuon).
        newton_schulz: iterations, 5 (the public code); 0 is exact, by a singular value decomposition, for small
            matrices.
        vectors: further leaves that step by AdamW, by patterns of their paths: embeddings and heads in the public code,
            such as `("embedding", "output.weight")`.
        keep: whether the moments are the client's, kept from round to round, or start anew in each.

    Raises:
        InvalidInput: a number out of its range, patterns that are none. When a run begins: one that matches no leaf, a
            model without a matrix.

    >>> Muon(0.02).newton_schulz
    5

    Reference: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024,
    https://kellerjordan.github.io/posts/muon/.
    """

    keep: bool = static(default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("keep", self.keep)

    @property
    def keeps_state(self) -> bool:
        """The option `keep`."""
        return self.keep

    def init_state(self, params: Params) -> Any:
        """No moments, or `()` if they are not kept."""
        return self.first_state(params) if self.keep else ()

    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        """Run `oracle.steps` steps from `params`."""
        return self._run(self.first_state(params), params, oracle, round)[0]

    def go_on(self, state: Any, params: Params, oracle: Oracle, round: Scalar) -> tuple[Solution, Any]:
        """Run the steps from the stored moments; also return the final ones."""
        if not self.keep:
            return self.solve(params, oracle, round), state
        return self._run(state, params, oracle, round)

    def _run(
        self, state: MuonState, params: Params, oracle: Oracle, round: Scalar
    ) -> tuple[Solution, MuonState]:
        lr: Any = rate_at(self.lr, round)

        def step(k: Scalar, carry: tuple[Params, MuonState, Scalar]) -> tuple[Params, MuonState, Scalar]:
            y, state, total = carry
            loss, g = oracle(y, k)
            along, state = self.muon_step(y, g, state)
            return trees.axpy(-lr, along, y), state, total + loss

        start = (params, state, jnp.zeros((), trees.dtype_of(params)))
        last, state, total = local_loop(oracle, step, start)
        return Solution(last, mean_loss(total, oracle)), state
