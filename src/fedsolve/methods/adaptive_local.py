"""What FedAdamW, FedLADA and FedMuon share: averaged moments, and local steps along the last mean direction."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import by_name, checked, choice, number
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import (
    MessageBounds,
    Params,
    Scalar,
    Traced,
    Weighting,
    bounded,
    module,
    reduced,
    replace,
)
from fedsolve.methods.client.solver import local_loop, mean_loss


@module
class MomentServer:
    """The model x, the second moment v (one number for each block), d = D / (K eta_l) of the last round (shapes of the
    model), and the local steps of a client so far.
    """

    params: Params
    moment: Any
    direction: Params
    taken: Traced


@module
class MomentBroadcast:
    """x, v, d, the local steps so far, and the number of the round."""

    params: Params
    moment: Any
    direction: Params
    taken: Traced
    round: Scalar


@module
class MomentMessage:
    """The client update, its second moment (one number for each block), K_i, and the mean local loss."""

    delta: Params
    moment: Any = bounded(MessageBounds(at_least=0))
    steps: Traced = reduced("average", MessageBounds(at_least=0))
    loss: Traced = reduced("mean")


@module
class AggregatedMoments(Algorithm):
    """Base class: clients begin with the mean of the last cohort's moments v, and the server adds their updates.

    client i in S:  y = x, v_i = v;   K times:   y, v_i <- step(y, v_i, g, d)
    server:         D = mean over S of (y - x),   x <- x + D,   d <- D / (K eta_l),   v <- mean over S of v_i
    """

    weighting: ClassVar[Weighting] = "uniform"
    message: ClassVar[Any] = MomentMessage

    lr: Rate = checked(as_rate, name="client_lr")

    @abstractmethod
    def first_moment(self, params: Params) -> Any:
        """v before the first round."""

    @abstractmethod
    def start(self, broadcast: MomentBroadcast) -> Any:
        """What a client keeps of v at its first local step."""

    @abstractmethod
    def step(
        self, k: Scalar, y: Params, moments: Any, g: Params, broadcast: MomentBroadcast
    ) -> tuple[Params, Any]:
        """y and what a client keeps of v after local step k, from 0."""

    @abstractmethod
    def sent(self, moments: Any) -> Any:
        """What a client sends of them."""

    def init(self, params: Params) -> MomentServer:
        zero = jnp.zeros((), trees.dtype_of(params))
        return MomentServer(params, self.first_moment(params), trees.zeros_like(params), zero)

    def broadcast(self, server: MomentServer, cohort: Cohort) -> MomentBroadcast:
        return MomentBroadcast(server.params, server.moment, server.direction, server.taken, cohort.round)

    def init_client(self, broadcast: MomentBroadcast) -> tuple[()]:
        return ()

    def train(self, broadcast: MomentBroadcast, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        start = broadcast.params

        def step(k: Scalar, carry: Any) -> Any:
            y, moments, total = carry
            loss, g = oracle(y, k)
            y, moments = self.step(k, y, moments, g, broadcast)
            return y, moments, total + loss

        dtype = trees.dtype_of(start)
        carry = (start, self.start(broadcast), jnp.zeros((), dtype))
        last, moments, total = local_loop(oracle, step, carry)
        numbers = [jnp.asarray(x, dtype) for x in (oracle.steps, mean_loss(total, oracle))]
        return self.message(trees.sub(last, start), self.sent(moments), *numbers), client

    def update(self, server: MomentServer, message: MomentMessage, cohort: Cohort) -> MomentServer:
        rate: Any = rate_at(self.lr, cohort.round)
        # d = D / (K eta_l): the mean step of the cohort, in the units of an Adam direction
        direction = trees.scale(trees.quotient(1.0, message.steps * rate), message.delta)
        params = trees.add(server.params, message.delta)
        taken = server.taken + message.steps
        return replace(server, params=params, moment=message.moment, direction=direction, taken=taken)

    def export(self, server: MomentServer) -> Params:
        return server.params


@module
class AdaptiveMoments(AggregatedMoments):
    """Base class of local steps with Adam's moments: of m too, which begins anew in each round.

    m <- b1 m + (1 - b1) g,   y, v_i <- adaptive_step(y, m, v_i, g, d)            (m starts at 0)
    """

    _: KW_ONLY
    beta1: Scalar = number(default=0.9, at_least=0, below=1)
    beta2: Scalar = number(default=0.999, at_least=0, below=1)

    @abstractmethod
    def second_moment(self, broadcast: MomentBroadcast) -> Any:
        """What a client keeps of v at its first local step."""

    @abstractmethod
    def adaptive_step(
        self, k: Scalar, y: Params, m: Params, moments: Any, g: Params, broadcast: MomentBroadcast
    ) -> tuple[Params, Any]:
        """y and what a client keeps of v after local step k, from 0."""

    @abstractmethod
    def sent_second(self, moments: Any) -> Any:
        """What a client sends of that."""

    def start(self, broadcast: MomentBroadcast) -> tuple[Params, Any]:
        return trees.zeros_like(broadcast.params), self.second_moment(broadcast)

    def step(
        self, k: Scalar, y: Params, moments: Any, g: Params, broadcast: MomentBroadcast
    ) -> tuple[Params, Any]:
        m = running_mean(self.beta1, moments[0], g)
        y, second = self.adaptive_step(k, y, m, moments[1], g, broadcast)
        return y, (m, second)

    def sent(self, moments: Any) -> Any:
        return self.sent_second(moments[1])


def running_mean(beta: Scalar, old: Params, new: Params) -> Params:
    """beta old + (1 - beta) new."""
    return jax.tree.map(lambda a, b: (beta * a + (1 - beta) * b).astype(a.dtype), old, new)


# FedAdamW (Liu et al. 2025): AdamW on the clients, with means over blocks of their second moments on the server.

Partition = Literal["tensor", "row", "entry"]


@module
class LocalAdamW(AdaptiveMoments):
    """FedAdamW: see `FedAdamW`, also for what each argument is."""

    name: ClassVar[str] = "FedAdamW"

    _: KW_ONLY
    alpha: Scalar = number(default=0.5, at_least=0, at_most=1)
    eps: Scalar = number(default=1e-8, above=0)
    weight_decay: Scalar = number(default=0.01, at_least=0)
    partition: Partition = choice("tensor", "row", "entry", default="tensor")

    def first_moment(self, params: Params) -> Any:
        return self.sent_second(jax.tree.map(jnp.zeros_like, params))

    def second_moment(self, broadcast: MomentBroadcast) -> Params:
        # each entry the mean of its block
        return jax.tree.map(lambda v, x: jnp.broadcast_to(v, x.shape), broadcast.moment, broadcast.params)

    def adaptive_step(
        self, k: Scalar, y: Params, m: Params, moments: Params, g: Params, broadcast: MomentBroadcast
    ) -> tuple[Params, Params]:
        # a step of AdamW, and along d
        lr: Any = rate_at(self.lr, broadcast.round)
        v = running_mean(self.beta2, moments, jax.tree.map(jnp.square, g))
        # m starts anew in each round, v has taken all steps so far: their corrections differ
        of_m, of_v = 1 - self.beta1 ** (k + 1), 1 - self.beta2 ** (broadcast.taken + k + 1)

        def descend(y: Array, m: Array, v: Array, d: Array) -> Array:
            along = m / of_m / (jnp.sqrt(v / of_v) + self.eps) - self.alpha * d + self.weight_decay * y
            return (y - lr * along).astype(y.dtype)

        return jax.tree.map(descend, y, m, v, broadcast.direction), v

    def sent_second(self, moments: Params) -> Any:
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


# FedLADA (Sun et al. 2023): AMSGrad on the clients, amended by the last round's mean direction.


@module
class LocalAMSGrad(AdaptiveMoments):
    """FedLADA: see `FedLADA`, also for what each argument is."""

    name: ClassVar[str] = "FedLADA"

    _: KW_ONLY
    alpha: Scalar = number(default=0.1, above=0, at_most=1)
    eps: Scalar = number(default=1e-8, above=0)

    def first_moment(self, params: Params) -> Params:
        return jax.tree.map(lambda x: jnp.full_like(x, self.eps**2), params)

    def second_moment(self, broadcast: MomentBroadcast) -> tuple[Params, Params]:
        # the running mean of squares, and the maximum of its values: both the server's v
        return broadcast.moment, broadcast.moment

    def adaptive_step(
        self, k: Scalar, y: Params, m: Params, moments: Any, g: Params, broadcast: MomentBroadcast
    ) -> tuple[Params, Any]:
        # a step of AMSGrad, and along d
        lr: Any = rate_at(self.lr, broadcast.round)
        v = running_mean(self.beta2, moments[0], jax.tree.map(jnp.square, g))
        largest = jax.tree.map(jnp.maximum, moments[1], v)

        def descend(y: Array, m: Array, v: Array, d: Array) -> Array:
            return (y - lr * (self.alpha * m / jnp.sqrt(v) - (1 - self.alpha) * d)).astype(y.dtype)

        return jax.tree.map(descend, y, m, largest, broadcast.direction), (v, largest)

    def sent_second(self, moments: Any) -> Params:
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
