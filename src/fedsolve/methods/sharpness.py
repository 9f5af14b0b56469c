"""Sharpness-aware clients: FedSAM, MoFedSAM, FedLESAM, FedSMOO and FedSpeed."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort, client_update_of, round_of
from fedsolve.core.building import by_name, class_by_name, number
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.oracle import MappedOracle, Oracle, WrappedOracle
from fedsolve.core.schedules import Rate, rate_at
from fedsolve.core.types import MessageBounds, Params, Scalar, Traced, Weighting, bounded, module
from fedsolve.methods.algorithms.feddyn import DynamicRegularization, FedDyn, FedDynClient, FedDynMessage
from fedsolve.methods.client.sgd import SGD, ClientOptions
from fedsolve.methods.client.solver import local_loop
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.methods.wrappers.wrapper import Wrapper


def of_length(rho: Scalar, direction: Params) -> Params:
    """A vector of length rho along a direction, 0 where there is none."""
    return trees.scale(trees.quotient(rho, trees.norm(direction)), direction)


@dataclass(frozen=True)
class SharpnessOracle(WrappedOracle):
    """Losses and gradients at y + rho g / |g|, with g the gradient at y on the same examples."""

    adds: ClassVar[str] = "the gradient at a perturbed model"
    rho: Scalar

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        return self.inner(self._moved(params, self.inner(params, step)[1]), step)

    def loss(self, params: Params, step: Scalar) -> Scalar:
        return self.inner.loss(self._moved(params, self.inner(params, step)[1]), step)

    def full(self, params: Params) -> tuple[Scalar, Params]:
        return self.inner.full(self._moved(params, self.inner.full(params)[1]))

    def _moved(self, params: Params, gradient: Params) -> Params:
        return trees.add(params, of_length(self.rho, gradient))


@class_by_name("FedSAM")
@module
class Sharpness(Wrapper):
    """FedSAM (Qu et al. 2022) around any method: clients' gradients are taken where their losses are larger.

        client:  y <- y - eta_l g_i(y + rho g_i(y) / |g_i(y)|)                 (both on the step's minibatch)

    Travels and is kept: what `inner` sends and keeps; clients are weighted as `inner` weights them. rho = 0 is
    `inner`. A gradient costs two. Losses are those at the moved model, which line searches compare and tables call
    local losses; what `inner` adds to gradients or does with them (control variates, clipping) comes after the move.

    Args:
        inner: the method that runs on the moved gradients.
        rho: length of the move, at least 0, in units of the parameters.

    Raises:
        InvalidInput: an `inner` that is no method, a negative rho.
    """

    title: ClassVar[str] = "FedSAM"
    inner: Algorithm
    rho: Scalar = number(default=0.1, at_least=0)

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        return self.inner.train(broadcast, client, SharpnessOracle(oracle, self.rho))


@by_name("FedSAM")
def FedSAM(
    client_lr: Rate = 0.1,
    *,
    rho: Scalar = 0.1,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> Sharpness:
    """FedSAM (Qu et al. 2022): FedAvg whose clients look for flat minima, by sharpness-aware minimisation.

        client:  e = rho g_i(y) / |g_i(y)|,   y <- y - eta_l g_i(y + e), K times from w;   D_i = y - w
        server:  w <- w + eta_g sum_i p_i D_i

    Up: D_i (d numbers) and the mean local loss at y + e. Down: w. Kept: nothing. It is `Sharpness(FedAvg(...), rho)`;
    rho = 0 is FedAvg. A local step costs two gradients.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        rho: length of e, at least 0, in units of the parameters; 0.1 (public code).
        server_lr: eta_g > 0, a number or a schedule by round (1).
        weighting: p_i `uniform` (the paper's) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `Sharpness(FedAvg(...), rho)`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Qu, Li, Duan, Liu, Tang and Lu, "Generalized Federated Learning via Sharpness Aware Minimization", ICML
    2022.
    """
    return Sharpness(FedAvg(client_lr, server_lr=server_lr, weighting=weighting, **client), rho)


# FedLESAM (Fan et al. 2024): sharpness-aware gradients for the price of one, moved along what the server did last.


@dataclass(frozen=True)
class MovedOracle(WrappedOracle):
    """Losses and gradients at y + e, with e the same for every y."""

    adds: ClassVar[str] = "the gradient at a perturbed model"
    move: Params

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        return self.inner(trees.add(params, self.move), step)

    def loss(self, params: Params, step: Scalar) -> Scalar:
        return self.inner.loss(trees.add(params, self.move), step)

    def full(self, params: Params) -> tuple[Scalar, Params]:
        return self.inner.full(trees.add(params, self.move))


@module
class RememberingClient:
    """The inner client, and the model that it was sent last (shapes of the model)."""

    inner: Any
    model: Params


@class_by_name("FedLESAM")
@module
class EstimatedSharpness(Sharpness):
    """FedLESAM around any method: see `FedLESAM`. Around `SCAFFOLD` and `FedDyn` it is the paper's FedLESAM-S and -D.

    Args:
        inner: the method that runs on the moved gradients.
        rho: length of the move, at least 0, in units of the parameters.

    Raises:
        InvalidInput: an `inner` that is no method or has models of its clients' own, a negative rho.
    """

    title: ClassVar[str] = "FedLESAM"
    parts: ClassVar[tuple[type, ...]] = (RememberingClient,)

    def init_client(self, broadcast: Any) -> RememberingClient:
        return RememberingClient(self.inner.init_client(broadcast), self.model(broadcast))

    def train(
        self, broadcast: Any, client: RememberingClient, oracle: Oracle
    ) -> tuple[Any, RememberingClient]:
        # run the inner local work on gradients that are moved back towards the last model
        model = self.model(broadcast)
        move = of_length(self.rho, trees.sub(client.model, model))
        message, inner = self.inner.train(broadcast, client.inner, MovedOracle(oracle, move))
        return message, RememberingClient(inner, model)


@by_name("FedLESAM")
def FedLESAM(
    client_lr: Rate = 0.1,
    *,
    rho: Scalar = 0.1,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> EstimatedSharpness:
    """FedLESAM (Fan et al. 2024): FedSAM with one gradient a step, moved along what the server did since last time.

        client i in S:  e = rho (v_i - w) / |v_i - w|,   v_i <- w                (v_i: the model that it was sent last)
                        y <- y - eta_l g_i(y + e), K times from w;   D_i = y - w
        server:         w <- w + eta_g sum_i p_i D_i

    Up: D_i (d numbers) and the mean local loss at y + e. Down: w. Kept: v_i on each client (d), the initial model at
    first. It is `EstimatedSharpness(FedAvg(...), rho)`; rho = 0 is FedAvg. The authors' code takes the server's last
    step in the place of v_i - w for all clients, which is the same if all take part, and divides by the sum of the
    layers' lengths.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        rho: length of e, at least 0, in units of the parameters. 0.1 is where to begin: the paper tunes it.
        server_lr: eta_g > 0, a number or a schedule by round (1).
        weighting: p_i `uniform` (the authors' code) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `EstimatedSharpness(FedAvg(...), rho)`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Fan, Hu, Yao, Niu, Zhang, Sugiyama and Wang, "Locally Estimated Global Perturbations are Better than
    Local Perturbations for Federated Sharpness-aware Minimization", ICML 2024.
    """
    return EstimatedSharpness(FedAvg(client_lr, server_lr=server_lr, weighting=weighting, **client), rho)


# FedSMOO (Sun et al. 2023): FedDyn whose clients agree on where their losses are larger.


@module
class WithMove:
    """The server or the broadcast of FedDyn, and the common move s (shapes of the model)."""

    inner: Any
    move: Params


@module
class WithDual:
    """The client or the message of FedDyn, and mu_i, the dual variable of the client's moves (shapes of the model)."""

    inner: Any
    dual: Params


@module
class AgreedSharpness(Sharpness):
    """FedSMOO around `FedDyn` with plain local SGD, which `FedSMOO` makes."""

    title: ClassVar[str] = "FedSMOO"
    name: ClassVar[str] = "FedSMOO"  # pyright: ignore[reportIncompatibleMethodOverride]
    parts: ClassVar[tuple[type, ...]] = (WithMove, WithDual)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.inner, DynamicRegularization) or not isinstance(self.inner.local, SGD):
            raise InvalidInput(f"FedSMOO goes around FedDyn(client_lr=0.1), not {shown(self.inner)}")

    def init(self, params: Params) -> WithMove:
        return WithMove(self.inner.init(params), trees.zeros_like(params))

    def broadcast(self, server: WithMove, cohort: Cohort) -> WithMove:
        return WithMove(self.inner.broadcast(server.inner, cohort), server.move)

    def init_client(self, broadcast: WithMove) -> WithDual:
        return WithDual(self.inner.init_client(broadcast.inner), trees.zeros_like(broadcast.move))

    def train(self, broadcast: WithMove, client: WithDual, oracle: Oracle) -> tuple[WithDual, WithDual]:
        # local steps at moved models, each of which also moves mu_i
        inner: Any = self.inner
        start, gradient = broadcast.inner.params, client.inner.gradient
        lr = rate_at(inner.local.lr, broadcast.inner.round)

        def step(k: Scalar, carry: tuple[Params, Params]) -> tuple[Params, Params]:
            y, dual = carry
            _, raw = oracle(y, k)
            move = of_length(self.rho, trees.sub(raw, trees.add(dual, broadcast.move)))
            _, moved = oracle(trees.add(y, move), k)

            def descend(y: Any, w: Any, g: Any, own: Any) -> Any:
                return (y - lr * (g - own + inner.alpha * (y - w))).astype(y.dtype)

            y = jax.tree.map(descend, y, start, moved, gradient)
            return y, trees.add(dual, trees.sub(move, broadcast.move))

        last, dual = local_loop(oracle, step, (start, client.dual))
        delta = trees.sub(last, start)
        own = FedDynClient(trees.axpy(-inner.alpha, delta, gradient))
        return WithDual(FedDynMessage(delta), dual), WithDual(own, dual)

    def update(self, server: WithMove, message: WithDual, cohort: Cohort) -> WithMove:
        # FedDyn's step, and s along the mean of mu_i
        inner = self.inner.update(server.inner, message.inner, cohort)
        return WithMove(inner, of_length(self.rho, message.dual))


@by_name("FedSMOO")
def FedSMOO(client_lr: Rate = 0.1, *, rho: Scalar = 0.1, alpha: Scalar = 0.1) -> AgreedSharpness:
    """FedSMOO (Sun et al. 2023): FedDyn at models that clients move alike, to where the mean loss is larger.

        client i in S:  K times from w:   v = g_i'(y) - mu_i - s,   e = rho v / |v|,   mu_i <- mu_i + e - s
                                          y <- y - eta_l (g_i'(y + e) - g_i + alpha (y - w))
                        g_i <- g_i - alpha (y - w)
        server:         w <- mean over S of y - (1 / alpha) mean over all clients of g_i
                        s <- rho m / |m|,   m = mean over S of mu_i

    g_i' is a minibatch gradient of f_i. Up: y - w and mu_i (2 d numbers). Down: w and s (2 d). Kept: g_i and mu_i on
    each client (2 d), the mean of all g_i on the server; all start at 0. rho = 0 is `FedDyn`. As in the authors' code,
    s follows from mu_i alone, without the last e of the clients that the paper subtracts.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round; 0.1 (the authors' code).
        rho: length of e and s, at least 0, in units of the parameters; 0.1 (the authors' code).
        alpha: > 0, in units of the loss per squared parameter; 0.1 (the authors' code).

    Returns:
        The method with every client's g_i and mu_i, whose local steps are those of SGD.

    Raises:
        InvalidInput: a number out of its range.

    Reference: Sun, Shen, Chen, Ding and Tao, "Dynamic Regularized Sharpness Aware Minimization in Federated Learning:
    Approaching Global Consistency and Smooth Landscape", ICML 2023.
    """
    return AgreedSharpness(FedDyn(client_lr, alpha=alpha), rho)


# FedSpeed (Sun et al. 2023): sharpness-aware gradients in the problems of FedDyn.


@module
class SharpRegularization(Sharpness):
    """`Sharpness` around `FedDyn`, under the name of what `FedSpeed` makes."""

    title: ClassVar[str] = "FedSpeed"
    name: ClassVar[str] = "FedSpeed"  # pyright: ignore[reportIncompatibleMethodOverride]


@by_name("FedSpeed")
def FedSpeed(
    client_lr: Rate = 0.1, *, rho: Scalar = 0.1, alpha: Scalar = 0.1, **client: Unpack[ClientOptions]
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


# MoFedSAM (Qu et al. 2022): sharpness-aware gradients, mixed with the last round's mean direction.


@module
class WithMomentum:
    """The inner server or broadcast, and the last mean direction (shapes of the model)."""

    inner: Any
    momentum: Params


@module
class WithRates:
    """The inner message, and the sum of the rates of the client's steps, K eta_l."""

    inner: Any
    rate_sum: Traced = bounded(MessageBounds(at_least=0))


@class_by_name("MoFedSAM")
@module
class SharpMomentum(Sharpness):
    """MoFedSAM around any method with local SGD that sends client updates: see `MoFedSAM`.

    Args:
        inner: the method that runs on the mixed gradients; its clients run `client.SGD`.
        rho: length of the move, at least 0, in units of the parameters.
        alpha: weight of the gradient beside the last mean direction, in (0, 1].

    Raises:
        InvalidInput: an `inner` that is no method or whose clients do not run SGD, a number out of its range.
    """

    title: ClassVar[str] = "MoFedSAM"
    parts: ClassVar[tuple[type, ...]] = (WithMomentum, WithRates)
    of_model_shape: ClassVar[bool] = True
    _: KW_ONLY
    alpha: Scalar = number(default=0.1, above=0, at_most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.local, SGD):
            raise InvalidInput(f"MoFedSAM needs local SGD, not {type(self.local or self.inner).__name__}")

    def init(self, params: Params) -> WithMomentum:
        return WithMomentum(self.inner.init(params), trees.zeros_like(params))

    def broadcast(self, server: WithMomentum, cohort: Cohort) -> WithMomentum:
        return WithMomentum(self.inner.broadcast(server.inner, cohort), server.momentum)

    def train(self, broadcast: WithMomentum, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        old = trees.scale(1 - self.alpha, broadcast.momentum)
        sharp = MappedOracle(SharpnessOracle(oracle, self.rho), lambda _, g: trees.axpy(self.alpha, g, old))
        message, client = self.inner.train(broadcast.inner, client, sharp)
        rates = self.local.rate_sum(oracle.steps, round_of(broadcast))
        return WithRates(message, jnp.asarray(rates, trees.dtype_of(broadcast.momentum))), client

    def update(self, server: WithMomentum, message: Any, cohort: Cohort) -> WithMomentum:
        # apply the inner update; the direction is the mean client update per unit of rate
        inner = self.inner.update(server.inner, message.inner, cohort)
        return WithMomentum(
            inner, trees.scale(trees.quotient(-1.0, message.rate_sum), client_update_of(message))
        )


@by_name("MoFedSAM")
def MoFedSAM(
    client_lr: Rate = 0.1,
    *,
    rho: Scalar = 0.1,
    alpha: Scalar = 0.1,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> SharpMomentum:
    """MoFedSAM (Qu et al. 2022): FedSAM whose local steps follow the last round's mean direction m as well.

        client:  e = rho g_i(y) / |g_i(y)|,   y <- y - eta_l (alpha g_i(y + e) + (1 - alpha) m), K times from w
        server:  D = sum_i p_i (y - w),   w <- w + eta_g D,   m <- -D / (K eta_l)          (m starts at 0)

    Up: y - w (d numbers), K eta_l and the mean local loss. Down: w and m (2 d). Kept: m on the server. It is
    `SharpMomentum(FedAvg(...))`; alpha = 1 is `FedSAM`. Where clients take other numbers of steps, K eta_l is the
    mean over the cohort with the weights p_i. Clipping and weight decay act on the mixed gradient.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        rho: length of e, at least 0, in units of the parameters; 0.1 (public code).
        alpha: in (0, 1], weight of the gradient; 0.1 (public code).
        server_lr: eta_g > 0, a number or a schedule by round (1).
        weighting: p_i `uniform` (the paper's) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `SharpMomentum(FedAvg(...))`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Qu, Li, Duan, Liu, Tang and Lu, "Generalized Federated Learning via Sharpness Aware Minimization", ICML
    2022.
    """
    inner = FedAvg(client_lr, server_lr=server_lr, weighting=weighting, **client)
    return SharpMomentum(inner, rho, alpha=alpha)
