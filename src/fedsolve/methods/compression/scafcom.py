"""SCAFCOM (Huang et al. 2024): control variates with momentum that are sent through any compressor."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import ClassVar, Unpack

import jax

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.building import by_name, class_by_name
from fedsolve.core.errors import check_range
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, module, replace, static
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.compression.compressor import Compressor
from fedsolve.methods.compression.controlled import Controlled, ControlledClient
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.methods.wrappers.control_variates import ScaffoldBroadcast


@class_by_name("SCAFCOM")
@module
class Scafcom(Controlled):
    """SCAFCOM around any method with local SGD: SCAFFOLD with momentum, and one compressed vector up.

        client:  y <- y - eta_l (g_i(y) - c_i + c), K times from w;   h_i = c_i - c + (w - y) / (K eta_l)
                 v_i <- (1 - beta) v_i + beta h_i,   q_i = Q(v_i - c_i),   c_i <- c_i + q_i
        server:  q = mean over S of q_i,   inner update along  -K eta_l (c + q),   c <- c + (|S|/N) q

    Up: q_i and K eta_l. Down: the model and c. Kept: c_i and v_i; all start at 0. Without compression and with
    beta = 1 it is SCAFFOLD. An unbiased compressor is divided by 1 + omega, which makes it a contraction. All clients
    count alike; where they take different numbers of steps, the server's K eta_l is their mean.

    Args:
        inner: the method whose local steps are corrected, such as `FedAvg` or `FedAdam`.
        compressor: of `fedsolve.compression`, such as `TopK(0.01)` or `Sign()`.
        beta: in (0, 1], how far v_i moves. 0.2 is where to begin; it is not the paper's.
        smallest: leaves with fewer entries are sent as they are, such as biases.

    Raises:
        InvalidInput: no compressor, a number out of its range; an inner method that control variates cannot go around
            (`ControlVariates`, option II). When a run begins: no leaf is large enough.
    """

    title: ClassVar[str] = "SCAFCOM"
    shrinks: ClassVar[bool] = True

    inner: Algorithm
    compressor: Compressor
    _: KW_ONLY
    beta: Scalar = 0.2
    smallest: int = static(default=256)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("beta", self.beta, above=0, at_most=1)

    def init_client(self, broadcast: ScaffoldBroadcast) -> ControlledClient:
        """The inner client's state, c_i = 0 and v_i = 0."""
        client = super().init_client(broadcast)
        return replace(client, memory=client.control)

    def change(self, own: Params, client: ControlledClient) -> tuple[Params, Params]:
        """v_i - c_i, and v_i."""
        v = jax.tree.map(lambda v, h: (v + self.beta * (h - v)).astype(v.dtype), client.memory, own)
        return trees.sub(v, client.control), v


@by_name("SCAFCOM")
def SCAFCOM(
    compressor: Compressor,
    client_lr: Rate = 0.1,
    *,
    beta: Scalar = 0.2,
    server_lr: Rate = 1.0,
    smallest: int = 256,
    **client: Unpack[ClientOptions],
) -> Scafcom:
    """SCAFCOM (Huang et al. 2024): SCAFFOLD with momentum and one vector up, through any compressor Q.

        client:  y <- y - eta_l (g_i(y) - c_i + c), K times from w
                 v_i <- (1 - beta) v_i + beta ((w - y) / (K eta_l) + c_i - c)
                 q_i = Q(v_i - c_i),   c_i <- c_i + q_i
        server:  q = mean over S of q_i,   w <- w - eta_g K eta_l (c + q),   c <- c + (1/N) sum over S of q_i

    Up: q_i (the code of d numbers), K eta_l and the mean local loss. Down: w and c (2 d). Kept: c_i and v_i on each
    client (2 d).

    Args:
        compressor: of `fedsolve.compression`.
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        beta: in (0, 1]. 0.2 is where to begin; it is not the paper's.
        server_lr: eta_g > 0, a number or a schedule by round.
        smallest: leaves with fewer entries are sent as they are.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `Scafcom(FedAvg(...), compressor, beta=beta)`.

    Raises:
        InvalidInput: a number out of its range.

    Reference: Huang, Li and Li, "Stochastic Controlled Averaging for Federated Learning with Communication
    Compression", ICLR 2024.
    """
    inner = FedAvg(client_lr, server_lr=server_lr, weighting="uniform", **client)
    return Scafcom(inner, compressor, beta=beta, smallest=smallest)
