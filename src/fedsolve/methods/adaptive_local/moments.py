"""What FedAdamW, FedLADA and FedMuon share: averaged moments, and local steps along the last mean direction."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.errors import check_range
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import Claim, Params, Scalar, Traced, Weighting, claimed, module, reduced, replace
from fedsolve.methods.client.solver import local_loop, mean_loss
from fedsolve.methods.server.adaptive import quotient


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
    moment: Any = claimed(Claim(at_least=0))
    steps: Traced = reduced("average", Claim(at_least=0))
    loss: Traced = reduced("mean")


@module
class AggregatedMoments(Algorithm):
    """Base class: clients begin with the mean of the last cohort's moments v, and the server adds their updates.

        client i in S:  y = x, v_i = v;   K times:   y, v_i <- step(y, v_i, g, d)
        server:         D = mean over S of (y - x),   x <- x + D,   d <- D / (K eta_l),   v <- mean over S of v_i

    Args:
        lr: eta_l > 0, a number or a schedule by round.

    Raises:
        InvalidInput: a rate that is not positive.
    """

    weighting: ClassVar[Weighting] = "uniform"
    message: ClassVar[Any] = MomentMessage

    lr: Rate

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", as_rate("client_lr", self.lr))

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
        """x, the first v, and d = 0."""
        zero = jnp.zeros((), trees.dtype_of(params))
        return MomentServer(params, self.first_moment(params), trees.zeros_like(params), zero)

    def broadcast(self, server: MomentServer, cohort: Cohort) -> MomentBroadcast:
        """x, v and d."""
        return MomentBroadcast(server.params, server.moment, server.direction, server.taken, cohort.round)

    def init_client(self, broadcast: MomentBroadcast) -> tuple[()]:
        """Nothing."""
        return ()

    def train(self, broadcast: MomentBroadcast, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """Adaptive local steps."""
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
        """x, v and d after the round."""
        rate: Any = rate_at(self.lr, cohort.round)
        direction = trees.scale(quotient(1.0, message.steps * rate), message.delta)
        params = trees.add(server.params, message.delta)
        taken = server.taken + message.steps
        return replace(server, params=params, moment=message.moment, direction=direction, taken=taken)

    def export(self, server: MomentServer) -> Params:
        """x."""
        return server.params


@module
class AdaptiveMoments(AggregatedMoments):
    """Base class of local steps with Adam's moments: of m too, which begins anew in each round.

        m <- b1 m + (1 - b1) g,   y, v_i <- adaptive_step(y, m, v_i, g, d)            (m starts at 0)

    Args:
        beta1: decay of m, in [0, 1).
        beta2: decay of v, in [0, 1).

    Raises:
        InvalidInput: a number out of its range.
    """

    _: KW_ONLY
    beta1: Scalar = 0.9
    beta2: Scalar = 0.999

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("beta1", self.beta1, at_least=0, below=1)
        check_range("beta2", self.beta2, at_least=0, below=1)

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
        """m and what is kept of v."""
        return trees.zeros_like(broadcast.params), self.second_moment(broadcast)

    def step(
        self, k: Scalar, y: Params, moments: Any, g: Params, broadcast: MomentBroadcast
    ) -> tuple[Params, Any]:
        """y, m and what is kept of v after a local step."""
        m = running_mean(self.beta1, moments[0], g)
        y, second = self.adaptive_step(k, y, m, moments[1], g, broadcast)
        return y, (m, second)

    def sent(self, moments: Any) -> Any:
        """What is sent of v."""
        return self.sent_second(moments[1])


def running_mean(beta: Scalar, old: Params, new: Params) -> Params:
    """beta old + (1 - beta) new."""
    return jax.tree.map(lambda a, b: (beta * a + (1 - beta) * b).astype(a.dtype), old, new)
