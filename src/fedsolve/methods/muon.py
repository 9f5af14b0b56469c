"""FedMuon (Liu et al. 2025) and its bias-corrected form (Takezawa et al. 2026): Muon on the clients."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import by_name, checked, class_by_name, integer, number
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, reduced, replace
from fedsolve.methods.adaptive_local import AggregatedMoments, MomentBroadcast
from fedsolve.methods.client.muon import MuonRule, MuonState, paths_of, polar_of
from fedsolve.methods.client.solver import local_loop, mean_loss


@module
class MomentumMessage:
    """The client update, its momentum of each matrix, K_i, and the mean local loss."""

    delta: Params
    moment: Any
    steps: Traced = reduced("average")
    loss: Traced = reduced("mean")


@module
class AlignedMuon(MuonRule, AggregatedMoments):
    """FedMuon: see `FedMuon`, also for what each argument is."""

    name: ClassVar[str] = "FedMuon"
    message: ClassVar[Any] = MomentumMessage

    alpha: Scalar = number(default=0.5, at_least=0, at_most=1)

    def first_moment(self, params: Params) -> tuple[Array, ...]:
        return self._of_matrices(trees.zeros_like(params))

    def start(self, broadcast: MomentBroadcast) -> MuonState:
        # the mean momentum of each matrix; no moments of the other leaves
        first, means = self.first_state(broadcast.params), iter(broadcast.moment)
        leaves, structure = jax.tree.flatten(first.momentum)
        chosen = self.matrices(broadcast.params)
        momenta = [next(means) if is_matrix else x for x, is_matrix in zip(leaves, chosen, strict=True)]
        return replace(first, momentum=structure.unflatten(momenta))

    def step(
        self, k: Scalar, y: Params, moments: MuonState, g: Params, broadcast: MomentBroadcast
    ) -> tuple[Params, MuonState]:
        lr: Any = rate_at(self.lr, broadcast.round)
        along, moments = self.muon_step(y, g, moments)

        def descend(y: Array, u: Array, d: Array) -> Array:
            return (y - lr * ((1 - self.alpha) * u - self.alpha * d)).astype(y.dtype)

        return jax.tree.map(descend, y, along, broadcast.direction), moments

    def sent(self, moments: MuonState) -> tuple[Array, ...]:
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


# FedMuon with a bias-corrected oracle (Takezawa et al. 2026): polar factors of momenta with control variates.


@module
class CorrectedServer:
    """x and c (shapes of the model)."""

    params: Params
    control: Params


@module
class CorrectedBroadcast:
    """x and c (shapes of the model), and the number of the round."""

    params: Params
    control: Params
    round: Scalar


@module
class CorrectedMessage:
    """D_i and c_i+ - c_i (shapes of the model), and the mean local loss."""

    delta: Params
    control_delta: Params
    loss: Traced


@class_by_name("BiasCorrectedMuon")
@module
class BiasCorrectedMuon(Algorithm):
    """FedMuon with a bias-corrected oracle (Takezawa et al. 2026): Muon on clients, with control variates inside.

        client i in S:  y = x,   m = c_i;   K times:   m <- beta m + (1 - beta) g,   y <- y - eta polar(m - c_i + c)
                        c_i+ = m,   D_i = y - x
        server:         x <- x + (1/N) sum over S of D_i,   c <- c + (1/N) sum over S of (c_i+ - c_i)

    polar(G) = U V' for G = U S V', and -polar is the linear minimisation oracle of the spectral ball. It is not linear:
    the mean of polar(m_i) is not along that of m_i, and FedAvg with Muon may stay where the mean gradient is not 0.
    m - c_i + c estimates that of all clients instead. The paper allows any norm. As in a public reproduction, kernels
    of convolutions are flattened, vectors and scalars are scaled to length 1 (matrices of one column), and no leaf
    steps by another optimiser. Where S is less than N, x moves by S/N of the mean D_i. If all clients are alike and
    take part, c_i = c: with momentum = 0 it is then FedAvg with `client.Muon`, for matrices no longer than wide.

    Up: D_i and c_i+ - c_i (2 d numbers), and the mean local loss. Down: x and c (2 d). Kept: c_i on each client, which
    is its momentum too, c on the server; all start at 0.

    Args:
        client_lr: eta > 0, in units of the spectral norm of a step, a number or a schedule by round: steps do not
            shorten by themselves near a minimum. 0.02 is where to begin, Muon's.
        momentum: beta in [0, 1), the paper's 1 - alpha; 0.1 (a public reproduction).
        newton_schulz: iterations, 5 (Muon's); 0 is exact, by a singular value decomposition, for small matrices.

    Raises:
        InvalidInput: a number out of its range.

    >>> BiasCorrectedMuon(0.01).newton_schulz
    5

    Reference: Takezawa, Koloskova, Jiang and Stich, "FedMuon: Federated Learning with Bias-corrected LMO-based
    Optimization", ICLR 2026 (arXiv:2509.26337), Algorithm 1.
    """

    weighting: ClassVar[Weighting] = "uniform"
    name: ClassVar[str] = "BiasCorrectedMuon"
    only_mean: ClassVar[str] = "c must stay the mean of all clients' c_i"

    client_lr: Rate = checked(as_rate, default=0.02)
    _: KW_ONLY
    momentum: Scalar = number(default=0.1, at_least=0, below=1)
    newton_schulz: int = integer(at_least=0, default=5)

    def on_leaves(self, params: Params) -> str:
        """Which leaves are no matrices, and what becomes of them; "" if all are.

        Args:
            params: the initial model.

        Returns:
            A note of the run.
        """
        others = [i for i, x in enumerate(jax.tree.leaves(params)) if jnp.ndim(x) < 2]
        named = paths_of(params, others)
        return f"Muon is for matrices: of {named} the momentum is scaled to length 1" if others else ""

    def init(self, params: Params) -> CorrectedServer:
        return CorrectedServer(params, trees.zeros_like(params))

    def broadcast(self, server: CorrectedServer, cohort: Cohort) -> CorrectedBroadcast:
        return CorrectedBroadcast(server.params, server.control, cohort.round)

    def init_client(self, broadcast: CorrectedBroadcast) -> Params:
        return trees.zeros_like(broadcast.params)

    def train(
        self, broadcast: CorrectedBroadcast, client: Params, oracle: Oracle
    ) -> tuple[CorrectedMessage, Params]:
        # steps along the polar factors of corrected momenta; the last momentum is the next c_i
        lr: Any = rate_at(self.client_lr, broadcast.round)
        correction = trees.sub(broadcast.control, client)

        def step(k: Scalar, carry: tuple[Params, Params, Scalar]) -> tuple[Params, Params, Scalar]:
            y, m, losses = carry
            loss, g = oracle(y, k)
            m = trees.axpy(1 - self.momentum, trees.sub(g, m), m)
            along = jax.tree.map(lambda x: polar_of(x, self.newton_schulz), trees.add(m, correction))
            return trees.axpy(-lr, along, y), m, losses + loss

        start = (broadcast.params, client, jnp.zeros((), trees.dtype_of(client)))
        y, m, losses = local_loop(oracle, step, start)
        delta, change = trees.sub(y, broadcast.params), trees.sub(m, client)
        return CorrectedMessage(delta, change, mean_loss(losses, oracle)), m

    def update(self, server: CorrectedServer, message: CorrectedMessage, cohort: Cohort) -> CorrectedServer:
        share = cohort.size / cohort.population
        params = trees.axpy(share, message.delta, server.params)
        return CorrectedServer(params, trees.axpy(share, message.control_delta, server.control))

    def export(self, server: CorrectedServer) -> Params:
        return server.params
