"""FedLADA (Sun et al. 2023): AMSGrad on the clients, amended by the last round's mean direction."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.building import by_name
from fedsolve.core.errors import check_range
from fedsolve.core.schedules import Rate, rate_at
from fedsolve.core.types import Params, Scalar, module
from fedsolve.methods.adaptive_local.moments import AdaptiveMoments, MomentBroadcast, running_mean


@module
class LocalAMSGrad(AdaptiveMoments):
    """FedLADA: see `FedLADA`, also for what each argument is.

    Raises:
        InvalidInput: a number out of its range.
    """

    name: ClassVar[str] = "FedLADA"

    _: KW_ONLY
    alpha: Scalar = 0.1
    eps: Scalar = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("alpha", self.alpha, above=0, at_most=1)
        check_range("eps", self.eps, above=0)

    def first_moment(self, params: Params) -> Params:
        """v = eps^2."""
        return jax.tree.map(lambda x: jnp.full_like(x, self.eps**2), params)

    def second_moment(self, broadcast: MomentBroadcast) -> tuple[Params, Params]:
        """The running mean of squares, and the maximum of its values: both the server's v."""
        return broadcast.moment, broadcast.moment

    def adaptive_step(
        self, k: Scalar, y: Params, m: Params, moments: Any, g: Params, broadcast: MomentBroadcast
    ) -> tuple[Params, Any]:
        """A step of AMSGrad, and along d."""
        lr: Any = rate_at(self.lr, broadcast.round)
        v = running_mean(self.beta2, moments[0], jax.tree.map(jnp.square, g))
        largest = jax.tree.map(jnp.maximum, moments[1], v)

        def descend(y: Array, m: Array, v: Array, d: Array) -> Array:
            return (y - lr * (self.alpha * m / jnp.sqrt(v) - (1 - self.alpha) * d)).astype(y.dtype)

        return jax.tree.map(descend, y, m, largest, broadcast.direction), (v, largest)

    def sent_second(self, moments: Any) -> Params:
        """The maximum."""
        return moments[1]


@by_name("FedLADA")
def FedLADA(
    client_lr: Rate = 0.01,
    *,
    alpha: Scalar = 0.1,
    beta1: Scalar = 0.9,
    beta2: Scalar = 0.99,
    eps: Scalar = 1e-8,
) -> LocalAMSGrad:
    """FedLADA (Sun et al. 2023): AMSGrad on the clients, amended by the last round's mean direction d.

        client i in S:  y = x,   v_i = v' = v,   m = 0;   K times:
                        m <- b1 m + (1 - b1) g,   v' <- b2 v' + (1 - b2) g^2,   v_i <- max(v_i, v')
                        y <- y - eta_l (alpha m / sqrt(v_i) - (1 - alpha) d)
        server:         D = mean over S of (y - x),   x <- x + D,   d <- D / (K eta_l),   v <- mean over S of v_i

    v starts at eps^2 and d at 0, so that the first round is AMSGrad with the rate alpha eta_l. Where clients take
    different numbers of steps, K is their mean.

    Up: y - x and v_i (2 d numbers), K and the mean local loss. Down: x, v and d (3 d). Kept: these on the server.
    `FedAdamW` sends a mean for each block in place of v_i.

    Args:
        client_lr: eta_l > 0, in units of a parameter, a number or a schedule by round. 0.01 is where to begin:
            with alpha it makes AMSGrad's usual 0.001.
        alpha: weight of the client's own step beside d, in (0, 1]; 0.1 (public code).
        beta1: decay of m, in [0, 1); 0.9.
        beta2: decay of v', in [0, 1); 0.99 (public code).
        eps: > 0, in units of a gradient, the root of the first v; 1e-8.

    Returns:
        The method; its clients keep nothing between rounds.

    Raises:
        InvalidInput: a number out of its range.

    Reference: Sun, Shen, Sun, Ding and Tao, "Efficient Federated Learning via Local Adaptive Amended Optimizer with
    Linear Speedup", IEEE Transactions on Pattern Analysis and Machine Intelligence 2023 (arXiv:2308.00522).
    """
    return LocalAMSGrad(client_lr, beta1=beta1, beta2=beta2, alpha=alpha, eps=eps)
