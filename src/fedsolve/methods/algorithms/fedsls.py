"""FedSLS and FedExpSLS: FedLi's client line search in the second version of its paper, with and without extrapolation.

The constants are those of the public code, which is where the methods could be read; the theorems were not seen.
"""

from __future__ import annotations

from fedsolve.core.building import by_name
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Scalar, Weighting
from fedsolve.methods.client.line_search import Accept, Armijo, Reset
from fedsolve.methods.server.adaptive import Adaptive
from fedsolve.methods.server.dua import DoublyAdaptive, Extrapolated
from fedsolve.methods.server.fedopt import FedOpt
from fedsolve.methods.server.sgd import ServerSGD

_DECAY = (
    0.998**2
)  # of eps a round: the code's client rate falls by 0.998, eps by its square, before the first use


@by_name("FedSLS")
def FedSLS(
    *,
    eta_max: Scalar = 1.0,
    c: Scalar = 0.1,
    beta: Scalar = 0.9,
    delta: Scalar = 2.0,
    reset: Reset = "code",
    clip_norm: Scalar | None = None,
    weight_decay: Scalar | None = None,
    accept: Accept = "armijo",
    slack: Scalar | None = None,
    weighting: Weighting = "examples",
) -> FedOpt:
    """FedSLS (Geetika et al. 2025): local SGD with Armijo line search, averaging by examples on the server.

        client:  y <- y - eta g,   eta from `client.Armijo`: f(y - eta g) <= f(y) - c eta |g|^2 on the minibatch
        server:  w <- w + D,   D = sum p_i D_i

    The second version of the paper of `FedLiLS`, with its public code's constants: its search begins at the last step
    times 2^(1/500), that of `FedLiLS` at eta_max.

    Up: D_i (d numbers), the last accepted step and the number of loss evaluations that searches made. Down: w. Kept:
    nothing; every round starts at eta_max. `SCAFFOLD+FedSLS` is SCAFFOLD with line search; `accept` has the code's six
    rules for it. The code's c is weighted by examples over all clients, ours is their plain mean.

    Args:
        eta_max: the step before the first search, > 0 (1); with reset 0, 1, 2 the largest one.
        c: share of the linear decrease that is asked for, in (0, 1) (0.1).
        beta: factor of a refused trial, in (0, 1) (0.9).
        delta: growth, at least 1 (2): see `reset`.
        reset: `code` grows the step by delta^(1/500) before each search; 0, 1 and 2 as `FedLiLS`.
        clip_norm: largest norm of a gradient, > 0; None (the default, and the code's plain form) for none, 10 in its
            form "regularized".
        weight_decay: of the clients' losses, at least 0; None for none, 1e-4 in the form "regularized".
        accept: rule within SCAFFOLD (`client.Armijo`).
        slack: of two of these rules, at least 0.
        weighting: of clients, by `examples` (the code's) or `uniform`.

    Returns:
        A `FedOpt` of `client.Armijo` and `server.ServerSGD()`.

    Raises:
        InvalidInput: a number out of its range, an unknown reset, rule or weighting, a rule without its slack.

    >>> FedSLS().local.reset
    'code'

    Reference: Geetika, Tyagi and Chatterjee, "Painless Federated Learning: An Interplay of Line-Search and
    Extrapolation", arXiv:2408.17145v2, 2025, public code.
    """
    search = {"clip_norm": clip_norm, "weight_decay": weight_decay, "accept": accept, "slack": slack}
    local = Armijo(eta_max, c=c, beta=beta, delta=delta, reset=reset, **search)
    return FedOpt(local, ServerSGD(), weighting=weighting, name="FedSLS")


@by_name("FedExpSLS")
def FedExpSLS(
    *,
    eps_g: Scalar = 1e-3,
    eps_decay: Scalar = _DECAY,
    eta_max: Scalar = 1.0,
    reset: Reset = "code",
    clip_norm: Scalar | None = None,
    weight_decay: Scalar | None = None,
    weighting: Weighting = "examples",
) -> FedOpt:
    """FedExpSLS (Geetika et al. 2025): `FedSLS` with FedExP's step on the server.

        client:  D_i as in `FedSLS`
        server:  eta_g = max(1, (1/2) sum p_i |D_i|^2 / (|D|^2 + |S| eps_t)),   w <- w + eta_g D
                 eps_t = eps_g eps_decay^(t+1) in round t = 0, 1, ...

    Up: as `FedSLS`, and |D_i|^2. Down: w. Kept: nothing. eps counts once for each participant, and has decayed before
    its first use, as in the public code. Its figures are of the mean of the last two iterates (`averaged` metrics).

    Args:
        eps_g: at least 0, in units of |D|^2 (1e-3).
        eps_decay: in (0, 1] (0.998^2).
        eta_max: as in `FedSLS`.
        reset: as in `FedSLS`.
        clip_norm: as in `FedSLS`.
        weight_decay: as in `FedSLS`.
        weighting: p_i by `examples` (the code's) or `uniform`, in both sums.

    Returns:
        A `FedOpt` of `client.Armijo` and `server.DoublyAdaptive`.

    Raises:
        InvalidInput: a number out of its range, an unknown reset or weighting.

    Reference: Geetika, Tyagi and Chatterjee, "Painless Federated Learning: An Interplay of Line-Search and
    Extrapolation", arXiv:2408.17145v2, 2025, public code.
    """
    local = Armijo(eta_max, reset=reset, clip_norm=clip_norm, weight_decay=weight_decay)
    step = DoublyAdaptive(clamp=True, eps_g=eps_g, eps_per_client=True, eps_decay=eps_decay)
    return FedOpt(local, step, weighting=weighting, name="FedExpSLS")


@by_name("FedAdamSLS")
def FedAdamSLS(
    *,
    server_lr: Rate = 0.1,
    eta_max: Scalar = 1.0,
    reset: Reset = "code",
    clip_norm: Scalar | None = 10.0,
    weight_decay: Scalar | None = 1e-4,
    weighting: Weighting = "examples",
) -> FedOpt:
    """FedAdamSLS (public code of Geetika et al. 2025): `FedSLS` with Adam on the server.

        client:  D_i as in `FedSLS`, with clipping and weight decay
        server:  a <- 0.9 a + 0.1 D,   v <- 0.99 v + 0.01 D^2,   w <- w + eta_g a / (sqrt(v) + 0.01)

    a and v start at 0, without bias correction. tau = 0.01 stands outside the root; the FedAdam of the same code has it
    inside, so the two differ in more than their clients.

    Up: as `FedSLS`. Down: w. Kept: a and v on the server.

    Args:
        server_lr: eta_g > 0, a number or a schedule by round (0.1).
        eta_max: as in `FedSLS`.
        reset: as in `FedSLS`.
        clip_norm: as in `FedSLS`; 10 here.
        weight_decay: as in `FedSLS`; 1e-4 here.
        weighting: of clients, by `examples` (the code's) or `uniform`.

    Returns:
        A `FedOpt` of `client.Armijo` and `server.Adaptive`.

    Raises:
        InvalidInput: a number out of its range, an unknown reset or weighting.

    Reference: Geetika, Tyagi and Chatterjee, "Painless Federated Learning: An Interplay of Line-Search and
    Extrapolation", arXiv:2408.17145v2, 2025, public code.
    """
    local = Armijo(eta_max, reset=reset, clip_norm=clip_norm, weight_decay=weight_decay)
    return FedOpt(local, _adam(server_lr), weighting=weighting, name="FedAdamSLS")


@by_name("FedAdamExpSLS")
def FedAdamExpSLS(
    *,
    server_lr: Rate = 1.0,
    most: Scalar | None = None,
    eps_g: Scalar = 1e-3,
    eps_decay: Scalar = _DECAY,
    eta_max: Scalar = 1.0,
    reset: Reset = "code",
    clip_norm: Scalar | None = None,
    weight_decay: Scalar | None = None,
    weighting: Weighting = "examples",
) -> FedOpt:
    """FedAdamExpSLS (public code of Geetika et al. 2025): `FedAdamSLS`, its step lengthened as in `FedExpSLS`.

        server:  u = a / (sqrt(v) + 0.01) as in `FedAdamSLS`,   w <- w + eta_g M u
                 M = max(1, (1/2) sum p_i |D_i|^2 / (|D|^2 + |S| eps_t)), at most `most`

    M is of the client updates, not of Adam's direction. The code has four forms, and runs three of them "regularized",
    clip_norm=10 and weight_decay=1e-4: M u (the defaults, with and without), 0.1 M u (`server_lr=0.1`) and
    min(1.5, M) u (`most=1.5`). Its figures are of the mean of the last two iterates (`averaged` metrics).

    Up: as `FedExpSLS`. Down: w. Kept: a and v on the server. The run logs M as `extrapolation`.

    Args:
        server_lr: eta_g > 0, a number or a schedule by round (1).
        most: largest M, at least 1; None for no bound.
        eps_g: as in `FedExpSLS`.
        eps_decay: as in `FedExpSLS`.
        eta_max: as in `FedSLS`.
        reset: as in `FedSLS`.
        clip_norm: as in `FedSLS`.
        weight_decay: as in `FedSLS`.
        weighting: p_i by `examples` (the code's) or `uniform`.

    Returns:
        A `FedOpt` of `client.Armijo` and `server.Extrapolated(server.Adaptive(...))`.

    Raises:
        InvalidInput: a number out of its range, an unknown reset or weighting.

    Reference: Geetika, Tyagi and Chatterjee, "Painless Federated Learning: An Interplay of Line-Search and
    Extrapolation", arXiv:2408.17145v2, 2025, public code.
    """
    local = Armijo(eta_max, reset=reset, clip_norm=clip_norm, weight_decay=weight_decay)
    step = Extrapolated(_adam(server_lr), eps_g=eps_g, eps_decay=eps_decay, most=most)
    return FedOpt(local, step, weighting=weighting, name="FedAdamExpSLS")


def _adam(server_lr: Rate) -> Adaptive:
    return Adaptive(server_lr, tau=0.01, beta1=0.9, beta2=0.99, initial=0.0)
