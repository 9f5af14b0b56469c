"""MoFedSAM (Qu et al. 2022): sharpness-aware gradients, mixed with the last round's mean direction."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Unpack

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort, client_update_of, round_of
from fedsolve.core.building import by_name, class_by_name
from fedsolve.core.errors import InvalidInput, check_range
from fedsolve.core.oracle import MappedOracle, Oracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Claim, Params, Scalar, Traced, Weighting, claimed, module
from fedsolve.methods.client.sgd import SGD, ClientOptions
from fedsolve.methods.server.adaptive import quotient
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.methods.sharpness.fedsam import Sharpness, SharpnessOracle


@module
class WithMomentum:
    """The inner server or broadcast, and the last mean direction (shapes of the model)."""

    inner: Any
    momentum: Params


@module
class WithRates:
    """The inner message, and the sum of the rates of the client's steps, K eta_l."""

    inner: Any
    rate_sum: Traced = claimed(Claim(at_least=0))


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
    alpha: Scalar = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("alpha", self.alpha, above=0, at_most=1)
        if not isinstance(self.local, SGD):
            raise InvalidInput(f"MoFedSAM needs local SGD, not {type(self.local or self.inner).__name__}")

    def init(self, params: Params) -> WithMomentum:
        """The inner server, and no direction."""
        return WithMomentum(self.inner.init(params), trees.zeros_like(params))

    def broadcast(self, server: WithMomentum, cohort: Cohort) -> WithMomentum:
        """The inner broadcast, and the last mean direction."""
        return WithMomentum(self.inner.broadcast(server.inner, cohort), server.momentum)

    def train(self, broadcast: WithMomentum, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """Run the inner local work on mixed gradients."""
        old = trees.scale(1 - self.alpha, broadcast.momentum)
        sharp = MappedOracle(SharpnessOracle(oracle, self.rho), lambda _, g: trees.axpy(self.alpha, g, old))
        message, client = self.inner.train(broadcast.inner, client, sharp)
        rates = self.local.rate_sum(oracle.steps, round_of(broadcast))
        return WithRates(message, jnp.asarray(rates, trees.dtype_of(broadcast.momentum))), client

    def update(self, server: WithMomentum, message: Any, cohort: Cohort) -> WithMomentum:
        """Apply the inner update; the direction is the mean client update per unit of rate."""
        inner = self.inner.update(server.inner, message.inner, cohort)
        return WithMomentum(inner, trees.scale(quotient(-1.0, message.rate_sum), client_update_of(message)))


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
