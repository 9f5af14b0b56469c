"""FedExP and FedExPM: the doubly adaptive step without a preconditioner."""

from __future__ import annotations

from typing import Literal, Unpack

from fedsolve.core.building import by_name
from fedsolve.core.errors import check_known
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Scalar, Weighting
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.server.dua import DoublyAdaptive
from fedsolve.methods.server.fedopt import FedOpt, compose

ExpPreset = Literal["study", "original", "code"]

# (eps_g, clamp, eps_g times |S|, weighting)
_EXP_PRESETS: dict[ExpPreset, tuple[float, bool, bool, Weighting]] = {
    "study": (0.0, False, False, "uniform"),
    "original": (1e-3, True, False, "uniform"),
    "code": (1e-3, True, True, "examples"),
}


@by_name("FedExP")
def FedExP(
    client_lr: Rate = 0.1,
    *,
    eps_g: Scalar | None = None,
    preset: ExpPreset = "study",
    weighting: Weighting | None = None,
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """FedExP (Jhunjhunwala et al. 2023): a server step along D, with a size from the clients' disagreement.

        client:  D_i as in `FedAvg`
        server:  D = sum_i p_i D_i,   eta_g = (1/2) sum_i p_i |D_i|^2 / (|D|^2 + eps_g),   w <- w + eta_g D

    Up: D_i (d numbers), |D_i|^2 and the mean local loss. Down: w. Kept: nothing. The run logs eta_g as `server_lr`.
    The original also evaluates the mean of the last two iterates (`averaged` metrics of a run).

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        eps_g: at least 0, in units of |D|^2. None is the preset's.
        preset: `study`, as Takakura et al. 2025 compare it (no clamp, eps_g 0), `original` (eta_g at least 1, eps_g
            1e-3: the paper's Algorithm 1 and its experiments' constant) or `code` (its public code: the same with
            eps_g times |S|, weights by examples).
        weighting: p_i `uniform` or by `examples`; None is the preset's.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `FedOpt` of `client.SGD` and `server.DoublyAdaptive` without momentum or preconditioner.

    Raises:
        InvalidInput: a number out of its range, an unknown preset or weighting.

    Reference: Jhunjhunwala, Wang and Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR 2023.
    """
    check_known("preset", preset, _EXP_PRESETS)
    default, clamp, per_client, weights = _EXP_PRESETS[preset]
    eps_g = default if eps_g is None else eps_g
    server_optimizer = DoublyAdaptive(eps_g=eps_g, clamp=clamp, eps_per_client=per_client)
    return compose("FedExP", client_lr, server_optimizer, weighting or weights, client)


@by_name("FedExPM")
def FedExPM(
    client_lr: Rate = 0.1,
    *,
    eps_g: Scalar = 0.0,
    beta1: Scalar = 0.9,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """FedExPM (Takakura et al. 2025): FedExP with momentum, i.e. FedDuAdam without a preconditioner.

        client:  D_i as in `FedAvg`
        server:  D = mean D_i,   v <- b1 v + (1 - b1) D,   m <- (b1/2) m + ((1 - b1)/2) mean |D_i|^2
                 eta_g = m / (|v|^2 + eps_g),   w <- w + eta_g v

    Up: D_i (d numbers), |D_i|^2 and the mean local loss. Down: w. Kept: v and m on the server. The paper names the
    baseline and does not define it; this is its Algorithm 1 with G = I.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        eps_g: at least 0, in units of |D|^2 (0: nothing to tune).
        beta1: decay of v and m, in [0, 1) (0.9, the paper's).
        weighting: `uniform` (the paper's) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `FedOpt` of `client.SGD` and `server.DoublyAdaptive` without preconditioner.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Takakura, Liew and Hasegawa, "FedDuA: Doubly Adaptive Federated Learning", arXiv:2505.11126, 2025.
    """
    return compose("FedExPM", client_lr, DoublyAdaptive(beta1=beta1, eps_g=eps_g), weighting, client)
