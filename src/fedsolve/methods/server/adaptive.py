"""Adaptive server optimisers, and the methods that use them (Reddi et al. 2021, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, Literal, Unpack

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import by_name, checked, choice, number
from fedsolve.core.errors import check_known
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, reported, static
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.server.fedopt import FedOpt, compose
from fedsolve.methods.server.server_optimizer import ServerOptimizer

SecondMoment = Literal["adagrad", "adam", "yogi"]
Preset = Literal["paper", "flower", "google-research"]

SECOND_MOMENTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "adagrad": lambda v, d2, b2: v + d2,
    "adam": lambda v, d2, b2: b2 * v + (1 - b2) * d2,
    "yogi": lambda v, d2, b2: v - (1 - b2) * d2 * jnp.sign(v - d2),
}


@module
class AdaptiveState:
    """First moment m, second moment v (shapes of the model) and the last rate."""

    m: Params
    v: Params
    server_lr: Traced = reported()


@module
class Adaptive(ServerOptimizer):
    """Adaptive server step: Adagrad, Adam or Yogi.

    m <- b1 m + (1 - b1) D;  v by its line;  w <- w + lr m / (sqrt(v) + tau).

    adagrad: v <- v + D^2;  adam: v <- b2 v + (1 - b2) D^2;  yogi: v <- v - (1 - b2) D^2 sign(v - D^2).

    Args:
        lr: server learning rate eta > 0, a number or a schedule by round.
        tau: degree of adaptivity, at least 0, in units of D; default 1e-3 (the paper).
        beta1: decay of m, in [0, 1); the paper states 0.9 for Adam and Yogi and no momentum for Adagrad.
        beta2: decay of v, in [0, 1) (0.99, the paper's); unused by adagrad.
        initial: v before the first round, at least 0; None is tau^2, the smallest the paper allows.
        second: which line updates v.
        bias_correction: multiply lr by sqrt(1 - b2^(t+1)) / (1 - b1^(t+1)) in round t = 1, 2, ..., as
            Flower's FedAdam and the paper's public code do; the paper has none, and TFF's Adam and Yogi have t.

    Raises:
        InvalidInput: a number out of its range, an unknown second moment.
    """

    lr: Rate = checked(as_rate, name="server_lr")
    _: KW_ONLY
    tau: Scalar = number(default=1e-3, at_least=0)
    beta1: Scalar = number(default=0.9, at_least=0, below=1)
    beta2: Scalar = number(default=0.99, at_least=0, below=1)
    initial: Scalar | None = number(default=None, at_least=0, name="initial_accumulator")
    second: SecondMoment = choice(*SECOND_MOMENTS, default="adam", kind="second moment")
    bias_correction: bool = static(default=False)

    def init(self, params: Params) -> AdaptiveState:
        # the initial state: m = 0 and v = tau^2, unless `initial` is given
        v0 = self.tau**2 if self.initial is None else self.initial
        v = jax.tree.map(lambda p: jnp.full_like(p, v0), params)
        return AdaptiveState(trees.zeros_like(params), v, jnp.zeros((), trees.dtype_of(params)))

    def step(
        self, params: Params, state: AdaptiveState, delta: Params, measured: Any, cohort: Cohort
    ) -> tuple[Params, AdaptiveState]:
        b1, b2, line = self.beta1, self.beta2, SECOND_MOMENTS[self.second]
        m = jax.tree.map(lambda m, d: (b1 * m + (1 - b1) * d).astype(m.dtype), state.m, delta)
        v = jax.tree.map(lambda v, d: line(v, d * d, b2).astype(v.dtype), state.v, delta)
        lr = rate_at(self.lr, cohort.round)
        if self.bias_correction:
            # round 0 is t = 1, and the powers are t + 1
            t = cohort.round + 2
            lr = lr * jnp.sqrt(1 - b2**t) / (1 - b1**t)
        # m / (sqrt(v) + tau); tau = 0 is allowed, where 0 / 0 is 0
        move = jax.tree.map(lambda m, v: trees.quotient(m, jnp.sqrt(v) + self.tau), m, v)
        return trees.axpy(lr, move, params), AdaptiveState(m, v, jnp.asarray(lr, state.server_lr.dtype))


# (server_lr, tau, beta2, initial accumulator, bias correction); None is the paper's tau^2
_PRESETS: dict[SecondMoment, dict[Preset, tuple[float, float, float, float | None, bool]]] = {
    "adagrad": {
        "paper": (0.1, 1e-3, 0.99, None, False),
        "flower": (0.1, 1e-9, 0.99, 0.0, False),
        "google-research": (0.1, 1e-3, 0.999, 0.0, False),
    },
    "adam": {
        "paper": (0.1, 1e-3, 0.99, None, False),
        "flower": (0.1, 1e-9, 0.99, 0.0, True),
        "google-research": (0.1, 1e-3, 0.999, 0.0, True),
    },
    "yogi": {
        "paper": (0.1, 1e-3, 0.99, None, False),
        "flower": (0.01, 1e-3, 0.99, 0.0, False),
        "google-research": (0.1, 1e-3, 0.999, 0.0, True),
    },
}


def _preset(second: SecondMoment, preset: Preset, beta1: Scalar, **given: Any) -> Adaptive:
    """`Adaptive` with a preset's constants where none are given."""
    presets = _PRESETS[second]
    check_known("preset", preset, presets)
    lr, tau, beta2, initial, bias = presets[preset]
    values = {"lr": lr, "tau": tau, "beta2": beta2, "initial": initial, "bias_correction": bias}
    values |= {name: value for name, value in given.items() if value is not None}
    return Adaptive(beta1=beta1, second=second, **values)


@by_name("FedAdagrad")
def FedAdagrad(
    client_lr: Rate = 0.1,
    *,
    server_lr: Rate | None = None,
    tau: Scalar | None = None,
    beta1: Scalar = 0.0,
    preset: Preset = "paper",
    weighting: Weighting = "examples",
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """FedAdagrad (Reddi et al. 2021): Adagrad on the server, with -D as the gradient.

        client:  D_i as in `FedAvg`
        server:  D = sum_i p_i D_i,   m <- b1 m + (1 - b1) D,   v <- v + D^2,   w <- w + eta m / (sqrt(v) + tau)

    Up: D_i (d numbers) and the mean local loss. Down: w. Kept: m and v on the server.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        server_lr: eta > 0, a number or a schedule by round, in units of a parameter: a coordinate moves by about eta
            a round where |D| >> tau. None is the preset's: 0.1. The paper tunes it.
        tau: degree of adaptivity, at least 0, in units of D. None is the preset's: 1e-3 (the paper's), `flower` 1e-9.
        beta1: decay of m, in [0, 1); 0, no momentum: the paper states 0.9 for Adam and Yogi alone.
        preset: constants where none are given: `paper` (v starts at tau^2), `flower` or `google-research` (v starts at
            0).
        weighting: p_i by `examples` (the paper's experiments) or `uniform` (its Algorithm 2).
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `FedOpt` of `client.SGD` and `server.Adaptive`, with the preset's constants filled in.

    Raises:
        InvalidInput: a number out of its range, an unknown preset or weighting.

    Reference: Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.
    """
    server_optimizer = _preset("adagrad", preset, beta1, lr=server_lr, tau=tau)
    return compose("FedAdagrad", client_lr, server_optimizer, weighting, client)


@by_name("FedAdam")
def FedAdam(
    client_lr: Rate = 0.1,
    *,
    server_lr: Rate | None = None,
    tau: Scalar | None = None,
    beta1: Scalar = 0.9,
    beta2: Scalar | None = None,
    preset: Preset = "paper",
    weighting: Weighting = "examples",
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """FedAdam (Reddi et al. 2021): Adam on the server, with -D as the gradient.

        client:  D_i as in `FedAvg`
        server:  D = sum_i p_i D_i,   m <- b1 m + (1 - b1) D,   v <- b2 v + (1 - b2) D^2
                 w <- w + eta m / (sqrt(v) + tau)

    Up: D_i (d numbers) and the mean local loss. Down: w. Kept: m and v on the server.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        server_lr: eta > 0, a number or a schedule by round, in units of a parameter: a coordinate moves by about eta
            a round where |D| >> tau. None is the preset's: 0.1. The paper tunes it.
        tau: degree of adaptivity, at least 0, in units of D. None is the preset's: 1e-3 (the paper's), `flower` 1e-9.
        beta1: decay of m, in [0, 1) (0.9, the paper's).
        beta2: decay of v, in [0, 1). None is the preset's: 0.99 (the paper's), `google-research` 0.999 (what its code
            ran with).
        preset: constants where none are given: `paper` (v starts at tau^2, no bias correction), `flower` or
            `google-research` (v starts at 0; eta times sqrt(1 - b2^(t+1)) / (1 - b1^(t+1)) in round t = 1, 2, ..., as
            their code does).
        weighting: p_i by `examples` (the paper's experiments) or `uniform` (its Algorithm 2).
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `FedOpt` of `client.SGD` and `server.Adaptive`, with the preset's constants filled in.

    Raises:
        InvalidInput: a number out of its range, an unknown preset or weighting.

    >>> FedAdam(0.1, preset="flower").server_optimizer.tau
    1e-09

    Reference: Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.
    """
    server_optimizer = _preset("adam", preset, beta1, lr=server_lr, tau=tau, beta2=beta2)
    return compose("FedAdam", client_lr, server_optimizer, weighting, client)


@by_name("FedYogi")
def FedYogi(
    client_lr: Rate = 0.1,
    *,
    server_lr: Rate | None = None,
    tau: Scalar | None = None,
    beta1: Scalar = 0.9,
    beta2: Scalar | None = None,
    preset: Preset = "paper",
    weighting: Weighting = "examples",
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """FedYogi (Reddi et al. 2021): Yogi on the server, with -D as the gradient; v changes by at most (1 - b2) D^2.

        client:  D_i as in `FedAvg`
        server:  D = sum_i p_i D_i,   m <- b1 m + (1 - b1) D,   v <- v - (1 - b2) D^2 sign(v - D^2)
                 w <- w + eta m / (sqrt(v) + tau)

    Up: D_i (d numbers) and the mean local loss. Down: w. Kept: m and v on the server.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        server_lr: eta > 0, a number or a schedule by round, in units of a parameter: a coordinate moves by about eta
            a round where |D| >> tau. None is the preset's: 0.1, `flower` 0.01. The paper tunes it.
        tau: degree of adaptivity, at least 0, in units of D. None is the preset's: 1e-3 (the paper's).
        beta1: decay of m, in [0, 1) (0.9, the paper's).
        beta2: decay of v, in [0, 1). None is the preset's: 0.99 (the paper's), `google-research` 0.999 (what its code
            ran with).
        preset: constants where none are given: `paper` (v starts at tau^2), `flower` (v starts at 0) or
            `google-research` (v starts at 0, the bias corrected as in `FedAdam`).
        weighting: p_i by `examples` (the paper's experiments) or `uniform` (its Algorithm 2).
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `FedOpt` of `client.SGD` and `server.Adaptive`, with the preset's constants filled in.

    Raises:
        InvalidInput: a number out of its range, an unknown preset or weighting.

    Reference: Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.
    """
    server_optimizer = _preset("yogi", preset, beta1, lr=server_lr, tau=tau, beta2=beta2)
    return compose("FedYogi", client_lr, server_optimizer, weighting, client)
