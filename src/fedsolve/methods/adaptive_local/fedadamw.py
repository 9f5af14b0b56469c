"""FedAdamW (Liu et al. 2025): AdamW on the clients, with means over blocks of their second moments on the server."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, check_range, is_one_of
from fedsolve.core.schedules import Rate, rate_at
from fedsolve.core.types import Params, Scalar, module, static
from fedsolve.methods.adaptive_local.moments import AdaptiveMoments, MomentBroadcast, running_mean

Partition = Literal["tensor", "row", "entry"]


@module
class LocalAdamW(AdaptiveMoments):
    """FedAdamW: see `FedAdamW`, also for what each argument is.

    Raises:
        InvalidInput: a number out of its range, an unknown partition.
    """

    name: ClassVar[str] = "FedAdamW"

    _: KW_ONLY
    alpha: Scalar = 0.5
    eps: Scalar = 1e-8
    weight_decay: Scalar = 0.01
    partition: Partition = static(default="tensor")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("alpha", self.alpha, at_least=0, at_most=1)
        check_range("eps", self.eps, above=0)
        check_range("weight_decay", self.weight_decay, at_least=0)
        if not is_one_of(self.partition, ("tensor", "row", "entry")):
            raise InvalidInput(f"partition = {self.partition!r} must be 'tensor', 'row' or 'entry'")

    def first_moment(self, params: Params) -> Any:
        """v = 0."""
        return self.sent_second(jax.tree.map(jnp.zeros_like, params))

    def second_moment(self, broadcast: MomentBroadcast) -> Params:
        """Each entry the mean of its block."""
        return jax.tree.map(lambda v, x: jnp.broadcast_to(v, x.shape), broadcast.moment, broadcast.params)

    def adaptive_step(
        self, k: Scalar, y: Params, m: Params, moments: Params, g: Params, broadcast: MomentBroadcast
    ) -> tuple[Params, Params]:
        """A step of AdamW, and along d."""
        lr: Any = rate_at(self.lr, broadcast.round)
        v = running_mean(self.beta2, moments, jax.tree.map(jnp.square, g))
        of_m, of_v = 1 - self.beta1 ** (k + 1), 1 - self.beta2 ** (broadcast.taken + k + 1)

        def descend(y: Array, m: Array, v: Array, d: Array) -> Array:
            along = m / of_m / (jnp.sqrt(v / of_v) + self.eps) - self.alpha * d + self.weight_decay * y
            return (y - lr * along).astype(y.dtype)

        return jax.tree.map(descend, y, m, v, broadcast.direction), v

    def sent_second(self, moments: Params) -> Any:
        """The mean of each block."""
        return jax.tree.map(lambda v: block_means(v, self.partition), moments)


def block_means(v: Array, partition: Partition) -> Array:
    """The mean of each block of an array, with axes of length 1 in place of those that it goes over."""
    if partition == "entry":
        return v
    first = 1 if partition == "row" and v.ndim > 1 else 0
    return jnp.mean(v, axis=tuple(range(first, v.ndim)), keepdims=True)


@by_name("FedAdamW")
def FedAdamW(
    client_lr: Rate = 0.001,
    *,
    alpha: Scalar = 0.5,
    beta1: Scalar = 0.9,
    beta2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.01,
    partition: Partition = "tensor",
) -> LocalAdamW:
    """FedAdamW (Liu et al. 2025): AdamW on the clients, which begin with the last cohort's mean second moment.

        client i in S:  y = x,   v_i = v,   m = 0;   for k = 1 .. K, with t = k + the local steps of all rounds before:
                        m <- b1 m + (1 - b1) g,   v_i <- b2 v_i + (1 - b2) g^2
                        u = (m / (1 - b1^k)) / (sqrt(v_i / (1 - b2^t)) + eps)
                        y <- y - eta_l (u - alpha d + weight_decay y)
        server:         D = mean over S of (y - x),   x <- x + D,   d <- D / (K eta_l)
                        v <- mean over S of the means of v_i over each block

    d is the paper's global update with the sign of a step: as in the authors' code, and unlike a sign in the paper,
    clients go on along it, and weight decay shrinks y. The code has K alike for all; here K of d and t are means over
    cohorts where clients differ. It clips gradients to norm 10 as well, and in later rounds divides m by 1 - b1^t: the
    line of the paper, with k, is what is here.

    Up: y - x (d numbers), a number for each block, K and the mean local loss. Down: x and d (2 d), a number for each
    block, and t. Kept: those on the server; d, v and t start at 0.

    Args:
        client_lr: eta_l > 0, in units of a parameter, a number or a schedule by round. 0.001 is where to begin; the
            authors' 3e-4 is for vision transformers.
        alpha: weight of d, in [0, 1]; 0.5 (the authors' code).
        beta1: decay of m, in [0, 1); 0.9.
        beta2: decay of v_i, in [0, 1); 0.999.
        eps: > 0, in units of a gradient; 1e-8. The three are AdamW's usual ones, which the authors' code has too.
        weight_decay: at least 0, decoupled from the gradient; 0.01 (the authors' code).
        partition: the blocks. `tensor`: each leaf is one (the authors' code); `row`: each index of the first axis of a
            leaf that has several, which is an output neuron or a token in PyTorch's layout (the paper's classes of
            blocks, but for the heads of queries and keys); `entry`: each entry is one, all of v is sent.

    Returns:
        The method; its clients keep nothing between rounds.

    Raises:
        InvalidInput: a number out of its range, an unknown partition.

    >>> FedAdamW(0.001, alpha=0.25).alpha
    0.25

    Reference: Liu, Shang, Liu, Tian, Liu, Liu, Zhu and Lin, "FedAdamW: A Communication-Efficient Optimizer with
    Convergence and Generalization Guarantees for Federated Large Models", AAAI 2026 (arXiv:2510.27486).
    """
    return LocalAdamW(
        client_lr,
        beta1=beta1,
        beta2=beta2,
        alpha=alpha,
        eps=eps,
        weight_decay=weight_decay,
        partition=partition,
    )
