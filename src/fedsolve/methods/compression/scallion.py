"""SCALLION (Huang et al. 2024): control variates that are sent through an unbiased compressor."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import ClassVar, Unpack

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.building import by_name, class_by_name
from fedsolve.core.errors import InvalidInput, check_range
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, module, static
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.compression.compressor import Compressor
from fedsolve.methods.compression.controlled import Controlled, ControlledClient
from fedsolve.methods.server.sgd import FedAvg


@class_by_name("SCALLION")
@module
class Scallion(Controlled):
    """SCALLION around any method with local SGD: SCAFFOLD with one compressed vector up.

        client:  y <- y - eta_l (g_i(y) - c_i + c), K times from w;   h_i = c_i - c + (w - y) / (K eta_l)
                 q_i = Q(alpha (h_i - c_i)),   c_i <- c_i + q_i
        server:  q = mean over S of q_i,   inner update along  -K eta_l (c + q),   c <- c + (|S|/N) q

    Up: q_i and K eta_l. Down: the model and c. Kept: c_i; c and c_i start at 0. Without compression and with alpha = 1
    it is SCAFFOLD. All clients count alike; where they take different numbers of steps, the server's K eta_l is their
    mean. A norm that `inner` steps by is that of y - w.

    Args:
        inner: the method whose local steps are corrected, such as `FedAvg` or `FedAdam`.
        compressor: an unbiased one of `fedsolve.compression`, such as `EDEN(bits=1)` or `RandomK(0.1)`.
        alpha: in (0, 1], how far c_i moves. None: 1 / (1 + omega), with which alpha Q is a contraction.
        smallest: leaves with fewer entries are sent as they are, such as biases.

    Raises:
        InvalidInput: no compressor or a biased one, a number out of its range; an inner method that control variates
            cannot go around (`ControlVariates`, option II). When a run begins: no leaf is large enough.
    """

    title: ClassVar[str] = "SCALLION"

    inner: Algorithm
    compressor: Compressor
    _: KW_ONLY
    alpha: Scalar | None = None
    smallest: int = static(default=256)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("alpha", self.alpha, above=0, at_most=1, optional=True)
        if not self.compressor.is_unbiased:
            raise InvalidInput(
                f"SCALLION needs an unbiased compressor such as fs.compression.EDEN(1), not {self.compressor!r}: "
                "SCAFCOM takes this one"
            )

    @property
    def shrinks(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether codes are divided by 1 + omega."""
        return self.alpha is None

    def change(self, own: Params, client: ControlledClient) -> tuple[Params, Params]:
        """alpha (h_i - c_i)."""
        towards = trees.sub(own, client.control)
        return (towards if self.alpha is None else trees.scale(self.alpha, towards)), ()


@by_name("SCALLION")
def SCALLION(
    compressor: Compressor,
    client_lr: Rate = 0.1,
    *,
    alpha: Scalar | None = None,
    server_lr: Rate = 1.0,
    smallest: int = 256,
    **client: Unpack[ClientOptions],
) -> Scallion:
    """SCALLION (Huang et al. 2024): SCAFFOLD with one vector up, through an unbiased compressor Q.

        client:  y <- y - eta_l (g_i(y) - c_i + c), K times from w
                 q_i = Q(alpha ((w - y) / (K eta_l) - c)),   c_i <- c_i + q_i
        server:  q = mean over S of q_i,   w <- w - eta_g K eta_l (c + q),   c <- c + (1/N) sum over S of q_i

    Up: q_i (the code of d numbers), K eta_l and the mean local loss. Down: w and c (2 d). Kept: c_i on each client (d).

    Args:
        compressor: an unbiased one of `fedsolve.compression`.
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        alpha: in (0, 1]; None is 1 / (1 + omega) of the compressor.
        server_lr: eta_g > 0, a number or a schedule by round.
        smallest: leaves with fewer entries are sent as they are.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `Scallion(FedAvg(...), compressor, alpha=alpha)`.

    Raises:
        InvalidInput: a biased compressor, a number out of its range.

    Reference: Huang, Li and Li, "Stochastic Controlled Averaging for Federated Learning with Communication
    Compression", ICLR 2024.
    """
    inner = FedAvg(client_lr, server_lr=server_lr, weighting="uniform", **client)
    return Scallion(inner, compressor, alpha=alpha, smallest=smallest)
