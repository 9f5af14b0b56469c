"""Server SGD with and without momentum, and the methods that use it: FedAvg, FedAvgM, Delta-SGD."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, Unpack

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import by_name, checked, flag, number
from fedsolve.core.errors import InvalidInput
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, reported
from fedsolve.methods.client.sgd import ClientOptions, DeltaSGD
from fedsolve.methods.server.fedopt import FedOpt, compose
from fedsolve.methods.server.server_optimizer import ServerOptimizer


@module
class ServerSGDState:
    """Momentum (the shapes of the model, `()` if none) and the last rate."""

    momentum: Params
    server_lr: Traced = reported()


@module
class ServerSGD(ServerOptimizer):
    """Server SGD with optional heavy-ball or Nesterov momentum.

    w <- w + lr D; with momentum  m <- beta m + D (heavy ball),  w <- w + lr m.

    Nesterov's momentum looks one step ahead:  m <- beta m + D,  w <- w + lr (D + beta m), as PyTorch's
    SGD(nesterov=True) does on the gradient -D (Sutskever et al. 2013).

    Args:
        lr: server learning rate eta_g > 0, a number or a schedule by round.
        momentum: beta in [0, 1), None for none.
        ema: m <- beta m + (1 - beta) D instead, the same as heavy ball with lr (1 - beta).
        nesterov: Nesterov's momentum in place of the heavy ball.

    Raises:
        InvalidInput: a rate that is not positive, a momentum outside [0, 1), nesterov without momentum.

    Reference: Sutskever, Martens, Dahl and Hinton, "On the Importance of Initialization and Momentum in Deep Learning",
    ICML 2013.
    """

    lr: Rate = checked(as_rate, default=1.0, name="server_lr")
    _: KW_ONLY
    momentum: Scalar | None = number(default=None, at_least=0, below=1)
    ema: bool = flag(default=False)
    nesterov: bool = flag(default=False)

    def __post_init__(self) -> None:
        if self.nesterov and self.momentum is None:
            raise InvalidInput("nesterov = True needs a momentum, such as momentum=0.9")

    def init(self, params: Params) -> ServerSGDState:
        momentum = () if self.momentum is None else trees.zeros_like(params)
        return ServerSGDState(momentum, jnp.zeros((), trees.dtype_of(params)))

    def step(
        self, params: Params, state: ServerSGDState, delta: Params, measured: Any, cohort: Cohort
    ) -> tuple[Params, ServerSGDState]:
        lr = rate_at(self.lr, cohort.round)
        momentum = ()
        if self.momentum is not None:
            # with `ema` a running mean, m <- mu m + (1 - mu) D; otherwise m <- mu m + D
            fresh = trees.scale(1 - self.momentum, delta) if self.ema else delta
            momentum = trees.axpy(self.momentum, state.momentum, fresh)
            delta = trees.axpy(self.momentum, momentum, fresh) if self.nesterov else momentum
        return trees.axpy(lr, delta, params), ServerSGDState(momentum, jnp.asarray(lr, state.server_lr.dtype))


@by_name("FedAvg")
def FedAvg(
    client_lr: Rate = 0.1,
    *,
    server_lr: Rate = 1.0,
    weighting: Weighting = "examples",
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """FedAvg (McMahan et al. 2017): clients run local SGD, and the server averages their models.

        client:  y <- y - eta_l g_i(y), K times from w;   D_i = y - w
        server:  w <- w + eta_g sum_i p_i D_i,   p_i = n_i / (sum over S of n_j)

    Up: D_i (d numbers) and the mean local loss. Down: w. Kept: nothing.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        server_lr: eta_g > 0, a number or a schedule by round; 1 (the paper's) replaces w by the mean of the y.
        weighting: p_i by `examples` (the paper's Algorithm 1) or `uniform`, 1/|S|.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `FedOpt` of `client.SGD` and `server.ServerSGD`.

    Raises:
        InvalidInput: a rate that is not positive, an option out of its range, an unknown weighting.

    >>> FedAvg(0.1, server_lr=0.5).server_optimizer.lr
    0.5

    Reference: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS
    2017, Algorithm 1.
    """
    return compose("FedAvg", client_lr, ServerSGD(server_lr), weighting, client)


@by_name("FedAvgM")
def FedAvgM(
    client_lr: Rate = 0.1,
    *,
    server_lr: Rate = 1.0,
    momentum: Scalar = 0.9,
    ema: bool = False,
    weighting: Weighting = "examples",
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """FedAvgM (Hsu et al. 2019): FedAvg with momentum on the server.

        client:  D_i as in `FedAvg`
        server:  D = sum_i p_i D_i,   m <- beta m + D,   w <- w + eta_g m          (m starts at 0)

    Up: D_i (d numbers) and the mean local loss. Down: w. Kept: m on the server.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        server_lr: eta_g > 0, a number or a schedule by round; 1 (the paper's). The steady step is eta_g / (1 - beta).
        momentum: beta in [0, 1); 0.9, as Reddi et al. 2021 set it (Hsu et al. try 0 to 0.997).
        ema: m <- beta m + (1 - beta) D, a mean that forgets, in place of the heavy ball of all public code; the
            same as server_lr (1 - beta).
        weighting: p_i by `examples` (the paper's) or `uniform`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `FedOpt` of `client.SGD` and `server.ServerSGD` with momentum.

    Raises:
        InvalidInput: a rate that is not positive, a momentum outside [0, 1), an option out of its range.

    Reference: Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification", arXiv:1909.06335, 2019.
    """
    return compose("FedAvgM", client_lr, ServerSGD(server_lr, momentum=momentum, ema=ema), weighting, client)


@by_name("FedDeltaSGD")
def FedDeltaSGD(
    first: Scalar = 0.2,
    *,
    gamma: Scalar = 2.0,
    delta: Scalar = 0.1,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
) -> FedOpt:
    """Delta-SGD (Kim et al. 2024): FedAvg whose clients find their step sizes, one gradient a step.

        client:  K steps of `client.DeltaSGD` from w, D_i = y^K - w
        server:  w <- w + eta_g sum_i p_i D_i

    Up: D_i (d numbers) and the mean local loss. Down: w. Kept: nothing; within a round clients keep one gradient.

    Args:
        first: eta_0 > 0, the first step of every round (0.2, as for all tasks of the paper).
        gamma: > 0 (2).
        delta: at least 0 (0.1).
        server_lr: eta_g > 0, a number or a schedule by round.
        weighting: p_i `uniform` (the paper's) or by `examples`.

    Returns:
        A `FedOpt` of `client.DeltaSGD` and `server.ServerSGD`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    >>> FedDeltaSGD().local.first
    0.2

    Reference: Kim, Toghani, Uribe and Kyrillidis, "Adaptive Federated Learning with Auto-Tuned Clients", ICLR 2024,
    arXiv:2306.11201.
    """
    return FedOpt(
        DeltaSGD(first, gamma, delta), ServerSGD(server_lr), weighting=weighting, name="FedDeltaSGD"
    )
