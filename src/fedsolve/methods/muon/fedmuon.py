"""FedMuon (Liu et al. 2025): Muon on the clients, which begin with the last cohort's mean momentum."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.building import by_name
from fedsolve.core.errors import check_range
from fedsolve.core.schedules import Rate, rate_at
from fedsolve.core.types import Params, Scalar, Traced, module, reduced, replace
from fedsolve.methods.adaptive_local.moments import AggregatedMoments, MomentBroadcast
from fedsolve.methods.muon.rule import MuonRule, MuonState


@module
class MomentumMessage:
    """The client update, its momentum of each matrix, K_i, and the mean local loss."""

    delta: Params
    moment: Any
    steps: Traced = reduced("average")
    loss: Traced = reduced("mean")


@module
class AlignedMuon(MuonRule, AggregatedMoments):
    """FedMuon: see `FedMuon`, also for what each argument is.

    Raises:
        InvalidInput: a number out of its range, patterns that are none. When a run begins: one that matches no leaf, a
            model without a matrix.
    """

    name: ClassVar[str] = "FedMuon"
    message: ClassVar[Any] = MomentumMessage

    alpha: Scalar = 0.5

    def __post_init__(self) -> None:
        AggregatedMoments.__post_init__(self)
        MuonRule.__post_init__(self)
        check_range("alpha", self.alpha, at_least=0, at_most=1)

    def first_moment(self, params: Params) -> tuple[Array, ...]:
        """No momentum."""
        return self._of_matrices(trees.zeros_like(params))

    def start(self, broadcast: MomentBroadcast) -> MuonState:
        """The mean momentum of each matrix; no moments of the other leaves."""
        first, means = self.first_state(broadcast.params), iter(broadcast.moment)
        leaves, structure = jax.tree.flatten(first.momentum)
        chosen = self.matrices(broadcast.params)
        momenta = [next(means) if is_matrix else x for x, is_matrix in zip(leaves, chosen, strict=True)]
        return replace(first, momentum=structure.unflatten(momenta))

    def step(
        self, k: Scalar, y: Params, moments: MuonState, g: Params, broadcast: MomentBroadcast
    ) -> tuple[Params, MuonState]:
        """A step of Muon, and along d."""
        lr: Any = rate_at(self.lr, broadcast.round)
        along, moments = self.muon_step(y, g, moments)

        def descend(y: Array, u: Array, d: Array) -> Array:
            return (y - lr * ((1 - self.alpha) * u - self.alpha * d)).astype(y.dtype)

        return jax.tree.map(descend, y, along, broadcast.direction), moments

    def sent(self, moments: MuonState) -> tuple[Array, ...]:
        """The momentum of each matrix."""
        return self._of_matrices(moments.momentum)

    def _of_matrices(self, tree: Params) -> tuple[Array, ...]:
        pairs = zip(jax.tree.leaves(tree), self.matrices(tree), strict=True)
        return tuple(x for x, is_matrix in pairs if is_matrix)


@by_name("FedMuon")
def FedMuon(
    client_lr: Rate = 0.02,
    *,
    alpha: Scalar = 0.5,
    momentum: Scalar = 0.98,
    weight_decay: Scalar = 0.01,
    vector_scale: Scalar = 0.1,
    newton_schulz: int = 5,
    vectors: str | tuple[str, ...] = (),
) -> AlignedMuon:
    """FedMuon (Liu et al. 2025): Muon on the clients, with an averaged momentum and steps along the last mean update.

        client i in S:  y = x,   m_i = m;   K times:   m_i <- beta m_i + (1 - beta) g
                        u = s polar(beta m_i + (1 - beta) g) + weight_decay y,   polar(G) = U V' for G = U S V'
                        y <- y - eta_l ((1 - alpha) u - alpha d)
        server:         D = mean over S of (y - x),   x <- x + D,   d <- D / (K eta_l),   m <- mean over S of m_i

    d is the paper's global update with the sign of a step. As in the authors' code, u is Muon's with Nesterov's
    momentum and the factor s = sqrt(max(1, rows / columns)) (`client.Muon`), and leaves that are no matrices have
    u = vector_scale (AdamW's direction + weight_decay y) and no averaged momentum: AdamW begins anew in each round. The
    code clips gradients to norm 10 as well, which is not done here; K is the cohort's mean where clients differ.
    alpha = 0 and momentum = 0 is FedAvg with `client.Muon`. Another method of the same name is `BiasCorrectedMuon`.

    Up: y - x (d numbers), m_i of the matrices, K and the mean local loss. Down: x, d and m (3 d at most). Kept: those
    on the server; d and m start at 0.

    Args:
        client_lr: eta_l > 0, in units of the spectral norm of a step, a number or a schedule by round. 0.02 is Muon's;
            the authors' 0.003 is for vision transformers.
        alpha: weight of d, in [0, 1]; 0.5 (the paper).
        momentum: beta in [0, 1); 0.98 (the authors' code).
        weight_decay: at least 0, decoupled; 0.01 (the authors' code).
        vector_scale: rate of the leaves that are no matrices, in units of eta_l, > 0; 0.1 (the authors' code).
        newton_schulz: iterations, 5 (the authors' code); 0 is exact, by a singular value decomposition, for small
            matrices.
        vectors: further leaves that step by AdamW, by patterns of their paths; none in the authors' code.

    Returns:
        The method; its clients keep nothing between rounds.

    Raises:
        InvalidInput: a number out of its range, patterns that are none. When a run begins: one that matches no leaf, a
            model without a matrix.

    >>> FedMuon(0.01, alpha=0.25).alpha
    0.25

    Reference: Liu, Shang, Zhou, Liu, Liu and Liu, "FedMuon: Accelerating Federated Learning with Matrix
    Orthogonalization", arXiv:2510.27403, 2025.
    """
    return AlignedMuon(
        client_lr,
        alpha=alpha,
        momentum=momentum,
        weight_decay=weight_decay,
        vector_scale=vector_scale,
        newton_schulz=newton_schulz,
        vectors=vectors,
    )
