"""FedMuon with a bias-corrected oracle (Takezawa et al. 2026): polar factors of momenta with control variates."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import class_by_name
from fedsolve.core.errors import check_integer, check_range
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, static
from fedsolve.methods.client.solver import local_loop, mean_loss
from fedsolve.methods.muon.rule import paths_of, polar_of


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

    client_lr: Rate = 0.02
    _: KW_ONLY
    momentum: Scalar = 0.1
    newton_schulz: int = static(default=5)

    def __post_init__(self) -> None:
        object.__setattr__(self, "client_lr", as_rate("client_lr", self.client_lr))
        check_range("momentum", self.momentum, at_least=0, below=1)
        check_integer("newton_schulz", self.newton_schulz, 0, bits=31)

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
        """The initial model, and c = 0."""
        return CorrectedServer(params, trees.zeros_like(params))

    def broadcast(self, server: CorrectedServer, cohort: Cohort) -> CorrectedBroadcast:
        """x and c."""
        return CorrectedBroadcast(server.params, server.control, cohort.round)

    def init_client(self, broadcast: CorrectedBroadcast) -> Params:
        """c_i = 0."""
        return trees.zeros_like(broadcast.params)

    def train(
        self, broadcast: CorrectedBroadcast, client: Params, oracle: Oracle
    ) -> tuple[CorrectedMessage, Params]:
        """Steps along the polar factors of corrected momenta; the last momentum is the next c_i."""
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
        """x and c after the round."""
        share = cohort.size / cohort.population
        params = trees.axpy(share, message.delta, server.params)
        return CorrectedServer(params, trees.axpy(share, message.control_delta, server.control))

    def export(self, server: CorrectedServer) -> Params:
        """x."""
        return server.params
