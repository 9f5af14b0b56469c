"""FedAda2 and FedAda2++: adaptive steps on clients and on the server, at FedAvg's traffic."""

from __future__ import annotations

from typing import Literal

from fedsolve.core.building import by_name
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Scalar, Weighting
from fedsolve.methods.client.adaptive_sgd import AdaptiveSGD
from fedsolve.methods.server.adaptive import Adaptive
from fedsolve.methods.server.fedopt import FedOpt


@by_name("FedAda2")
def FedAda2(
    client_lr: Rate = 1e-3,
    *,
    server_lr: Rate = 0.1,
    rule: Literal["adagrad", "adam"] = "adagrad",
    second: Literal["adam", "adagrad"] = "adam",
    eps: Scalar = 1e-5,
    tau: Scalar = 1e-3,
    every: int = 1,
    bias_correction: bool = False,
    weighting: Weighting = "examples",
) -> FedOpt:
    """FedAda2 (Lee et al. 2025): adaptive clients whose second moments begin at zero, and an adaptive server.

        client:  y <- y - eta_l g / (sqrt(v) + eps),   v as in `client.AdaptiveSGD`, 0 at the start of a round
        server:  m <- 0.9 m + 0.1 D,   v <- 0.999 v + 0.001 D^2 (or v + D^2),   w <- w + eta m / (sqrt(v) + tau)

    The second moments of clients and server never travel. Up: D_i (d numbers) and the mean local loss. Down: w. Kept: m
    and v on the server, from 0, without bias correction. Constants are the defaults of the authors' code; the paper's
    theory is for full gradients.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round, in units of a parameter: the first step of a round moves
            a coordinate by about eta_l (1e-3).
        server_lr: eta > 0, a number or a schedule by round (0.1).
        rule: the clients' second moment.
        second: the server's.
        eps: of the clients, at least 0 (1e-5).
        tau: of the server, at least 0 (1e-3).
        every: clients renew v in every so many local steps (delayed updates; 1).
        bias_correction: of clients with Adam. The code has both; its stored job, without it, takes a first step of
            3.16 eta_l.
        weighting: of clients, by `examples` (the code's) or `uniform`.

    Returns:
        A `FedOpt` of `client.AdaptiveSGD` and `server.Adaptive`.

    Raises:
        InvalidInput: a number out of its range, an unknown rule or weighting, a correction for Adagrad.

    >>> FedAda2(rule="adam").local.rule
    'adam'

    Reference: Lee, Sharma, Zaheer and Li, "Efficient Adaptive Federated Optimization", arXiv:2410.18117v3, 2025, and
    its authors' code.
    """
    local = AdaptiveSGD(client_lr, rule=rule, eps=eps, every=every, bias_correction=bias_correction)
    return FedOpt(local, _server(server_lr, second, tau), weighting=weighting, name="FedAda2")


@by_name("FedAda2PlusPlus")
def FedAda2PlusPlus(
    client_lr: Rate = 1e-3,
    *,
    server_lr: Rate = 0.1,
    rule: Literal["sm3", "sm3-ii", "sm3-adam"] = "sm3",
    second: Literal["adam", "adagrad"] = "adam",
    eps: Scalar = 1e-5,
    tau: Scalar = 1e-3,
    every: int = 1,
    bias_correction: bool = False,
    weighting: Weighting = "examples",
) -> FedOpt:
    """FedAda2++ (Lee et al. 2025): `FedAda2` whose clients keep SM3's covers in place of a second moment.

        client:  y <- y - eta_l g / (sqrt(v) + eps),   v from row and column maxima as in `client.AdaptiveSGD`
        server:  as in `FedAda2`

    A matrix of r x c parameters needs r + c numbers beside them on a client (`sm3-adam` d more, for its first moment);
    on a model of vectors alone it is `FedAda2`. Traffic is FedAvg's.

    Args:
        client_lr: as in `FedAda2`.
        server_lr: as in `FedAda2`.
        rule: SM3 with sums (SM3-I), its tighter form, or with decay and a first moment, as the authors' stored job.
        second: as in `FedAda2`.
        eps: as in `FedAda2`.
        tau: as in `FedAda2`.
        every: as in `FedAda2`.
        bias_correction: of `sm3-adam`.
        weighting: as in `FedAda2`.

    Returns:
        A `FedOpt` of `client.AdaptiveSGD` and `server.Adaptive`.

    Raises:
        InvalidInput: a number out of its range, an unknown rule or weighting, a correction for sums.

    Reference: Lee, Sharma, Zaheer and Li, "Efficient Adaptive Federated Optimization", arXiv:2410.18117v3, 2025, and
    its authors' code; Anil et al., "Memory Efficient Adaptive Optimization", NeurIPS 2019.
    """
    local = AdaptiveSGD(client_lr, rule=rule, eps=eps, every=every, bias_correction=bias_correction)
    return FedOpt(local, _server(server_lr, second, tau), weighting=weighting, name="FedAda2PlusPlus")


def _server(server_lr: Rate, second: Literal["adam", "adagrad"], tau: Scalar) -> Adaptive:
    beta1 = 0.9 if second == "adam" else 0.0
    return Adaptive(server_lr, tau=tau, beta1=beta1, beta2=0.999, initial=0.0, second=second)
