"""PAdaMFed (Yan et al. 2025): normalised local steps along a momentum with control variates, whose rates are given."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import class_by_name, number
from fedsolve.core.errors import check_integer
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import MessageBounds, Params, Scalar, Traced, Weighting, bounded, module, reported
from fedsolve.methods.client.solver import local_loop, mean_loss


@module
class PAdaMFedServer:
    """w, c and g (shapes of the model), S K of the last round (0 before the first), and the last rate."""

    params: Params
    control: Params
    momentum: Params
    work: Traced
    server_lr: Traced = reported()


@module
class PAdaMFedBroadcast:
    """w, beta c + (1 - beta) g (shapes of the model), beta, and the number of the round."""

    params: Params
    direction: Params
    beta: Scalar
    round: Scalar


@module
class PAdaMFedMessage:
    """D_i and c_i+ - c_i (shapes of the model), the mean local loss, and the number of local steps."""

    delta: Params
    control_delta: Params
    loss: Traced
    steps: Traced = bounded(MessageBounds(at_least=0))


@class_by_name("PAdaMFed")
@module
class PAdaMFed(Algorithm):
    """PAdaMFed (Yan et al. 2025): no rate depends on the problem, for any skew and any share of clients in a round.

        client:  v = beta (g_i(y) - c_i) + beta c + (1 - beta) g,   y <- y - eta v / |v|, K times from w
                 c_i+ = mean of the g_i(y),   D_i = y - w
        server:  w <- w + gamma / (eta K) mean D_i,   g <- beta (c + mean (c_i+ - c_i)) + (1 - beta) g
                 c <- c + (1/N) sum over S of (c_i+ - c_i)
        rates:   eta = 1 / (K T),   gamma = scale (S K)^(1/4) / T^(3/4),   beta = sqrt(S K / T), at most 1

    Up: D_i, c_i+ - c_i (2 d numbers), K and the mean local loss. Down: w and beta c + (1 - beta) g (2 d). Kept: c_i on
    each client, c and g on the server; all start at 0. T is the number of rounds, S the cohort's size, N the
    population. beta follows from S K of the round before and is 1 in the first, where there is no momentum; K is the
    mean number of steps of the cohort where clients differ, in eta the client's own. The server's step is gamma T mean
    D_i. A round moves w by at most gamma. With one client it is normalised local SGD: `FedAvg` whose `clip_norm` is
    small. gamma and beta balance the terms of the paper's rate of convergence, (S K T)^(-1/4); eta is that of public
    code. The paper's variant with variance reduction is not provided.

    Args:
        horizon: T, the number of rounds of the run, at least 1.
        scale: multiplies gamma, > 0, in units of the parameters; 1 (nothing to tune).

    Raises:
        InvalidInput: a number out of its range.

    >>> PAdaMFed(100).scale
    1.0

    Reference: Yan, Zhang, Wang and Cao, "Problem-Parameter-Free Federated Learning", ICLR 2025.
    """

    weighting: ClassVar[Weighting] = "uniform"
    name: ClassVar[str] = "PAdaMFed"
    only_mean: ClassVar[str] = "c must stay the mean of all clients' c_i"

    horizon: int
    _: KW_ONLY
    scale: Scalar = number(default=1.0, above=0)

    def __post_init__(self) -> None:
        check_integer("horizon", self.horizon, 1, bits=31)

    def init(self, params: Params) -> PAdaMFedServer:
        zeros, zero = trees.zeros_like(params), jnp.zeros((), trees.dtype_of(params))
        return PAdaMFedServer(params, zeros, zeros, zero, zero)

    def broadcast(self, server: PAdaMFedServer, cohort: Cohort) -> PAdaMFedBroadcast:
        beta = self._beta(server)
        return PAdaMFedBroadcast(
            server.params, _mixed(beta, server.control, server.momentum), beta, cohort.round
        )

    def init_client(self, broadcast: PAdaMFedBroadcast) -> Params:
        return trees.zeros_like(broadcast.params)

    def train(
        self, broadcast: PAdaMFedBroadcast, client: Params, oracle: Oracle
    ) -> tuple[PAdaMFedMessage, Params]:
        # normalised steps, and the mean of their gradients as the next c_i
        steps = jnp.asarray(oracle.steps, trees.dtype_of(client))
        lr = 1 / (steps * self.horizon)

        def step(k: Scalar, carry: tuple[Params, Params, Scalar]) -> tuple[Params, Params, Scalar]:
            y, total, losses = carry
            loss, g = oracle(y, k)
            # v = beta (g - c_i + c) + (1 - beta) m: what all clients share of it the server sends, as `direction`
            v = trees.axpy(broadcast.beta, trees.sub(g, client), broadcast.direction)
            # steps of length lr whatever the gradient's scale
            return trees.axpy(-trees.quotient(lr, trees.norm(v)), v, y), trees.add(total, g), losses + loss

        start = (broadcast.params, trees.zeros_like(client), jnp.zeros((), steps.dtype))
        y, total, losses = local_loop(oracle, step, start)
        control = trees.scale(1 / steps, total)
        delta, change = trees.sub(y, broadcast.params), trees.sub(control, client)
        return PAdaMFedMessage(delta, change, mean_loss(losses, oracle), steps), control

    def update(self, server: PAdaMFedServer, message: PAdaMFedMessage, cohort: Cohort) -> PAdaMFedServer:
        # step along the mean client update, and renew c and g
        work = (cohort.size * message.steps).astype(server.work.dtype)
        lr = (self.scale * (work * self.horizon) ** 0.25).astype(work.dtype)  # gamma T
        params = trees.axpy(lr, message.delta, server.params)
        # c + mean of (c_i+ - c_i), which needs no c_i of who is not there
        fresh = trees.add(server.control, message.control_delta)
        momentum = _mixed(self._beta(server), fresh, server.momentum)
        control = trees.axpy(cohort.size / cohort.population, message.control_delta, server.control)
        return PAdaMFedServer(params, control, momentum, work, lr)

    def export(self, server: PAdaMFedServer) -> Params:
        return server.params

    def _beta(self, server: PAdaMFedServer) -> Traced:
        beta = jnp.minimum(1.0, jnp.sqrt(server.work / self.horizon))
        # the first round has no momentum to mix
        return jnp.where(server.work > 0, beta, 1.0).astype(server.work.dtype)


def _mixed(beta: Traced, a: Params, b: Params) -> Params:
    """beta a + (1 - beta) b."""
    return jax.tree.map(lambda x, y: (beta * x + (1 - beta) * y).astype(y.dtype), a, b)
