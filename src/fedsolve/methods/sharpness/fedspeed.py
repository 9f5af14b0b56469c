"""FedSpeed (Sun et al. 2023): sharpness-aware gradients in the problems of FedDyn."""

from __future__ import annotations

from typing import ClassVar, Unpack

from fedsolve.core.building import by_name
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Scalar, module
from fedsolve.methods.algorithms.feddyn import FedDyn
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.sharpness.fedsam import Sharpness


@module
class SharpRegularization(Sharpness):
    """`Sharpness` around `FedDyn`, under the name of what `FedSpeed` makes."""

    title: ClassVar[str] = "FedSpeed"
    name: ClassVar[str] = "FedSpeed"  # pyright: ignore[reportIncompatibleMethodOverride]


@by_name("FedSpeed")
def FedSpeed(
    client_lr: Rate = 0.1,
    *,
    rho: Scalar = 0.1,
    alpha: Scalar = 0.1,
    **client: Unpack[ClientOptions],
) -> SharpRegularization:
    """FedSpeed (Sun et al. 2023): a proximal term, its correction on each client, and sharpness-aware gradients.

        client i in S:  e = rho g_i'(y) / |g_i'(y)|
                        y <- y - eta_l (g_i'(y + e) - g_i + alpha (y - w)), K times from w
                        g_i <- g_i - alpha (y - w)
        server:         w <- mean over S of y - (1 / alpha) mean over all clients of g_i

    g_i' is a minibatch gradient of f_i. Up: y - w (d numbers). Down: w. Kept: g_i on each client (d), their mean on the
    server. It is `Sharpness(FedDyn(...), rho)`; rho = 0 is `FedDyn`. So it is in the authors' code. Their paper takes
    the second mean over S alone, moves by rho g_i' without the division by its length, and may mix in g_i'(y).

    Args:
        client_lr: eta_l > 0, a number or a schedule by round; 0.1 (the authors' code).
        rho: length of e, at least 0, in units of the parameters; 0.1 (the authors' code).
        alpha: 1 / lambda of the paper, > 0, in units of the loss per squared parameter; 0.1 (the authors' code).
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `Sharpness` around `FedDyn`.

    Raises:
        InvalidInput: a number out of its range.

    Reference: Sun, Shen, Huang, Ding and Tao, "FedSpeed: Larger Local Interval, Less Communication Round, and Higher
    Generalization Accuracy", ICLR 2023.
    """
    return SharpRegularization(FedDyn(client_lr, alpha=alpha, **client), rho)
