"""FedLi: a line search for every client step (FedLiLS), and Deep Frank-Wolfe on the server (FedLiLU)."""

from __future__ import annotations

from typing import Any, Literal, Unpack

from fedsolve.core.building import by_name
from fedsolve.core.errors import check_known, unknown
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Scalar, Weighting
from fedsolve.methods.client.line_search import Armijo
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.server.dfw import DeepFrankWolfe, LossPoint, LossWeights
from fedsolve.methods.server.dua import LargestStep
from fedsolve.methods.server.fedopt import FedOpt, compose
from fedsolve.methods.server.sgd import ServerSGD


@by_name("FedLiLS")
def FedLiLS(
    *,
    eta_max: Scalar = 1.0,
    c: Scalar = 0.1,
    beta: Scalar = 0.9,
    delta: Scalar = 2.0,
    reset: Literal[0, 1, 2] = 1,
    server: Literal["one", "max"] = "one",
    weighting: Weighting = "uniform",
) -> FedOpt:
    """FedLiLS (FedLi-LS in its paper): local SGD with Armijo line search on the clients, averaging on the server.

    There is no learning rate to tune.

        client:  y <- y - eta g,   eta from `client.Armijo`: f(y - eta g) <= f(y) - c eta |g|^2 on the minibatch
        server:  w <- w + D,   or w <- w + (max over S of the last accepted eta) D

    Up: D, the last accepted step (the run logs its maximum as `client_step`, under `fs.Secure` its mean), and the
    number of loss evaluations that searches made (logged per participant as `loss_evaluations`). Down: w. Kept:
    nothing; every round starts at eta_max. The paper gives no constants, the defaults are its public code's.

    Args:
        eta_max: largest client step, > 0 (1).
        c: share of the linear decrease that is asked for, in (0, 1) (0.1).
        beta: factor of a refused trial, in (0, 1) (0.9).
        delta: growth over a pass of the data with reset 2, at least 1 (2).
        reset: where the next search begins: 0 at the last step, 1 at eta_max (default), 2 at the last step grown.
        server: step 1, which the paper proves things for, or its heuristic for losses that are not convex.
        weighting: of clients, `uniform` as in the paper or by `examples`.

    Returns:
        A `FedOpt` of `client.Armijo` and `server.ServerSGD()` or, for `max`, `server.LargestStep()`.

    Raises:
        InvalidInput: a number out of its range, an unknown reset, server or weighting.

    >>> FedLiLS(server="max").server_optimizer
    LargestStep()

    Reference: Geetika, Uniyal and Chatterjee, "Towards Hyper-parameter-free Federated Learning", 2024, Algorithms 1, 3
    and 4.
    """
    if server not in ("one", "max"):
        raise unknown("server", server, ("one", "max"))
    server_optimizer = ServerSGD() if server == "one" else LargestStep()
    local = Armijo(eta_max, c=c, beta=beta, delta=delta, reset=reset)
    return FedOpt(local, server_optimizer, weighting=weighting, name="FedLiLS")


# (eta, lam, momentum, eps)
_LU: dict[str, tuple[float, float, float | None, float]] = {
    "paper": (1.0, 1e-3, None, 1e-5),
    "code": (0.01, 1e-5, 0.9, 1e-5),
}


@by_name("FedLiLU")
def FedLiLU(
    client_lr: Rate = 0.1,
    *,
    server_lr: Rate | None = None,
    lam: Scalar | None = None,
    momentum: Scalar | None = None,
    eps: Scalar | None = None,
    f: LossPoint = "end",
    loss_weights: LossWeights = "same",
    preset: Literal["paper", "code"] = "paper",
    weighting: Weighting | None = None,
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """FedLiLU (FedLi-LU in its paper): the clients' losses determine the size of the server's step (Deep Frank-Wolfe).

        gamma = clip((f - eta <Delta, r>) / (eta |Delta|^2 + eps), 0, 1),   r = lam w
        w <- w - eta (r + gamma Delta);   with momentum:  z <- mu z - eta gamma (Delta + r),  w <- w + mu z

    gamma is 1 unless f < eta (<Delta, r> + |Delta|^2) + eps, so nearly always while losses are not near 0 and eta
    is not large; the method is then FedAvg with weight decay (see `server.DeepFrankWolfe`). The run logs `gamma`,
    `f` and `server_lr` = eta gamma. Up: D and f_i, one number. Down: w. Kept: nothing on clients. The printed
    fraction of the paper is read as in Deep Frank-Wolfe.

    Args:
        client_lr: eta_l > 0 of the clients' SGD, a number or a schedule by round.
        server_lr: eta > 0, a number or a schedule by round (paper 1, code 0.01).
        lam: weight decay, at least 0 (paper 1e-3, code 1e-5).
        momentum: mu in [0, 1), None for the preset's (paper none, code 0.9).
        eps: added to the denominator, at least 0 (1e-5).
        f: a client's loss on all its examples at the `start` or `end` of local training, on its `last` minibatch
            at the end, or the `mean` over its steps. The paper says "at the last iteration": `end`.
        loss_weights: f averaged with the `same` weights as D, `plain`, or by `examples`. The nearest literal reading of
            the paper is D averaged plainly and f by examples: weighting "uniform" (`paper`'s) and "examples" here.
        preset: constants where none are given, and the weighting: `paper` (uniform) or `code` (examples).
        weighting: of D, None for the preset's.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD.

    Returns:
        A `FedOpt` of `client.SGD` and `server.DeepFrankWolfe`, with the preset's constants filled in.

    Raises:
        InvalidInput: a number out of its range, an unknown f, loss_weights, preset or weighting.

    >>> FedLiLU(0.1, preset="code").server_optimizer.momentum
    0.9

    Reference: Geetika, Uniyal and Chatterjee, "Towards Hyper-parameter-free Federated Learning", 2024, Algorithm 2.
    """
    check_known("preset", preset, _LU)
    names = ("eta", "lam", "momentum", "eps")
    constants: dict[str, Any] = dict(zip(names, _LU[preset], strict=True))
    given = dict(zip(names, (server_lr, lam, momentum, eps), strict=True))
    constants |= {name: value for name, value in given.items() if value is not None}
    server_optimizer = DeepFrankWolfe(**constants, f=f, loss_weights=loss_weights)
    weighting = weighting or ("examples" if preset == "code" else "uniform")
    return compose("FedLiLU", client_lr, server_optimizer, weighting, client)
