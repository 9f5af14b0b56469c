"""Proximal local steps with SCAFFOLD's correction at no extra traffic: the server sends what stood before the prox."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import checked, class_by_name
from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import Oracle
from fedsolve.core.sampling import check_everyone
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import MessageBounds, Params, Scalar, Traced, Weighting, bounded, converted, module
from fedsolve.geometry.blocks import Geometry, as_blocks
from fedsolve.geometry.diagnostics import measures_of
from fedsolve.geometry.regularizer import with_prox
from fedsolve.methods.client.solver import local_loop


@module
class ProxTrackingServer:
    """x, before its prox (shapes of the model), and the length a of the last round's step, 0 before the first."""

    params: Params
    length: Traced


@module
class ProxTrackingBroadcast:
    """x and the number of the round."""

    params: Params
    round: Scalar


@module
class ProxTrackingClient:
    """prox_a(x) - a (mean of the client's gradients) of its last round (shapes of the model), and a of that round."""

    ahead: Params
    length: Traced


@module
class ProxTrackingMessage:
    """Where the client's local steps led from prox_a(x) (shapes of the model), and the sum K eta_l of its rates."""

    delta: Params
    rate_sum: Traced = bounded(MessageBounds(at_least=0))


@class_by_name("ProxTracking")
@module
class ProxTracking(Algorithm):
    """ProxTracking: proximal local steps for F + psi, with SCAFFOLD's correction at FedAvg's traffic.

        a = eta_g eta_l K
        client:  z_0 = h_0 = prox_a(x);   h <- h - eta_l (g_i(z) + c_i),   z <- prox_((k+1) eta_l)(h),   K times
        server:  x+ <- prox_a(x) + eta_g mean (h_K - prox_a(x))
        client:  c_i <- (prox_a(x) - x+)/a - (1/K) sum of g_i(z_k),   when x+ comes
        model:   prox_a(x);   c_i = 0 at first

    As the c_i sum to 0, x+ = prox_a(x) - a times the mean of all gradients of the round: a client reads that mean from
    the next broadcast, and needs none of SCAFFOLD's second vector. With exact gradients a fixed point is a minimiser:
    z_k stays at z, c_i = grad F(z) - grad f_i(z), and z = prox_a(z - a grad F(z)). One full local step is proximal
    gradient descent with the step a; without psi it is SCAFFOLD (option II) with all clients.

    Of its design are known in public: separated prox and communication, one vector each way, local models before and
    after the prox, a drift correction, linear convergence to a neighbourhood (Zhang, Hu and Johansson, "Composite
    Federated Learning with Heterogeneous Data", arXiv:2309.01795). Their pseudo-code could not be read, so this form is
    ours and has a name of its own.

    Down: x. Up: h_K - prox_a(x) (d numbers) and K eta_l. Kept: one vector on each client (d). All clients take part in
    each round, with as many local steps each; they count alike.

    Args:
        psi: penalty or set of `fedsolve.geometry` with a prox.
        client_lr: eta_l > 0, a number or a schedule by round.
        server_lr: eta_g > 0, a number or a schedule by round (1).

    Raises:
        InvalidInput: psi has no prox; a rate that is not positive. When a run begins: fewer clients in a round than
            all, clients with different numbers of steps.
    """

    name: ClassVar[str] = "ProxTracking"
    weighting: ClassVar[Weighting] = "uniform"
    only_mean: ClassVar[str] = "the clients' corrections must sum to 0"

    psi: Annotated[Any, Geometry] = converted(converter=with_prox)
    client_lr: Rate = checked(as_rate, default=0.1)
    _: KW_ONLY
    server_lr: Rate = checked(as_rate, default=1.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "psi", as_blocks(self.psi))

    def check(self, sampling: Any, population: int) -> None:
        check_everyone("ProxTracking", sampling, population, "SCAFFOLD+FedMiDOSP")

    def init(self, params: Params) -> ProxTrackingServer:
        self.psi.check(params)
        return ProxTrackingServer(params, jnp.zeros((), trees.dtype_of(params)))

    def broadcast(self, server: ProxTrackingServer, cohort: Cohort) -> ProxTrackingBroadcast:
        return ProxTrackingBroadcast(server.params, cohort.round)

    def init_client(self, broadcast: ProxTrackingBroadcast) -> ProxTrackingClient:
        # c_i = (ahead - x) / length is 0 in the first round
        return ProxTrackingClient(broadcast.params, jnp.ones((), trees.dtype_of(broadcast.params)))

    def train(
        self, broadcast: ProxTrackingBroadcast, client: ProxTrackingClient, oracle: Oracle
    ) -> tuple[ProxTrackingMessage, ProxTrackingClient]:
        if not isinstance(oracle.steps, int):
            raise InvalidInput(
                "ProxTracking needs clients that all take as many steps: give local_steps, or take SCAFFOLD+FedMiDOSP"
            )
        lr, steps = rate_at(self.client_lr, broadcast.round), oracle.steps
        length = rate_at(self.server_lr, broadcast.round) * lr * steps
        # (ahead_i - x) / a = mean of all gradients minus the client's own, of the last round
        correction = trees.scale(1 / client.length, trees.sub(client.ahead, broadcast.params))
        start = self.psi.prox(broadcast.params, length)

        def step(k: Scalar, carry: tuple[Params, Params, Params]) -> tuple[Params, Params, Params]:
            # `before` is not shrunk: prox is taken of it anew, at the length of all k + 1 steps
            before, after, total = carry
            g = oracle(after, k)[1]
            before = trees.axpy(-lr, trees.add(g, correction), before)
            return before, self.psi.prox(before, (k + 1) * lr), trees.add(total, g)

        last, _, total = local_loop(oracle, step, (start, start, trees.zeros_like(start)))
        dtype = client.length.dtype
        message = ProxTrackingMessage(trees.sub(last, start), jnp.asarray(lr * steps, dtype))
        ahead = trees.axpy(-length / steps, total, start)
        return message, ProxTrackingClient(ahead, jnp.asarray(length, dtype))

    def update(
        self, server: ProxTrackingServer, message: ProxTrackingMessage, cohort: Cohort
    ) -> ProxTrackingServer:
        lr = rate_at(self.server_lr, cohort.round)
        length = (lr * message.rate_sum).astype(server.length.dtype)
        moved = trees.axpy(lr, message.delta, self.psi.prox(server.params, length))
        return ProxTrackingServer(moved, length)

    def model(self, broadcast: ProxTrackingBroadcast) -> Params:
        return broadcast.params

    def export(self, server: ProxTrackingServer) -> Params:
        return self.psi.prox(server.params, server.length)

    def diagnostics(self) -> tuple[Any, ...]:
        return measures_of(self.psi)
