"""The common part of FedMiD and FedDualAvg: F + psi in the geometry of a mirror map (Yuan, Zaheer and Reddi 2021)."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import by_name, checked, choice, class_by_name
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import (
    MessageBounds,
    Params,
    Scalar,
    Traced,
    Weighting,
    bounded,
    converted,
    module,
    static,
)
from fedsolve.geometry.blocks import Geometry, as_blocks
from fedsolve.geometry.diagnostics import measures_of
from fedsolve.geometry.mirrors import Euclidean, Mirror
from fedsolve.geometry.regularizer import WithProx, with_prox
from fedsolve.methods.client.sgd import SGD
from fedsolve.methods.client.solver import local_loop
from fedsolve.methods.server.fedopt import FedOptBroadcast

EUCLIDEAN = Euclidean()


@module
class MirroredMethod(Algorithm):
    """The hyper-parameters of both methods, their checks, and what does not depend on where clients average."""

    title: ClassVar[str] = ""

    psi: Annotated[Any, Geometry] = converted(converter=with_prox)
    client_lr: Rate = checked(as_rate, default=0.1)
    _: KW_ONLY
    server_lr: Rate = checked(as_rate, default=1.0)
    mirror: Mirror = EUCLIDEAN
    weighting: Weighting = choice("uniform", "examples", default="uniform")
    server_only: bool = static(default=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "psi", as_blocks(self.psi))
        if not isinstance(self.mirror, Mirror):
            raise InvalidInput(f"mirror = {shown(self.mirror)} must be a mirror map such as PNorm(1.5)")
        self.mirror.check_composite(self.name, self.psi)

    @property
    def name(self) -> str:
        return f"{self.title}OSP" if self.server_only else self.title

    def check_start(self, params: Params) -> None:
        """Raise `InvalidInput` where psi has no meaning on the model, or the mirror map none at its values."""
        self.psi.check(params)
        self.mirror.check(params)

    def init_client(self, broadcast: Any) -> tuple[()]:
        return ()

    def diagnostics(self) -> tuple[Any, ...]:
        return measures_of(self.psi)


def sum_of_rates(lr: Scalar, oracle: Oracle, like: Params) -> Traced:
    """K eta_c of a client's steps, in the type of the model."""
    return jnp.asarray(lr * oracle.steps, trees.dtype_of(like))


# Federated mirror descent for F + psi (Yuan, Zaheer and Reddi 2021, Algorithms 2 and 4).


@module
class FedMiDServer:
    """The model."""

    params: Params


@module
class FedMiDMessage:
    """Client update w_K - w (shapes of the model), and the sum of the rates of its steps (K eta_c)."""

    delta: Params
    rate_sum: Traced = bounded(MessageBounds(at_least=0))


@class_by_name("FedMiD")
@module
class FedMiD(MirroredMethod):
    """FedMiD (Yuan et al. 2021): proximal steps on the clients, averaged in the primal, then one on the server.

        client:  w <- grad(h + eta_c psi)*(grad h(w) - eta_c g_i(w))          OSP: without psi
        server:  D = sum_i p_i (w_i - w),   e = sum_i p_i K_i eta_c
                 w <- grad(h + eta_s e psi)*(grad h(w) + eta_s D)

    Down: w. Up: the client update and one number. Kept: nothing. With h = (1/2)|.|^2 the maps are proximal
    operators, with an indicator psi projections. The paper has one K; e is the clients' own sum of rates,
    so that unequal numbers of steps are right. psi = 0 is FedAvg. As psi acts on both sides, rates that fall
    to 0 lead to a minimiser of F + 2 psi; of F + psi in the OSP form and for an indicator.

    Args:
        psi: penalty or set of `fedsolve.geometry` with a prox, on the whole vector or, with `.on("weight")`, on
            chosen leaves.
        client_lr: eta_c > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        server_lr: eta_s > 0, a number or a schedule by round; 1 replaces w by the mean of the w_i.
        mirror: h, (1/2)|.|^2 in all of the paper's experiments.
        weighting: p_i, `uniform` (the paper's) or by `examples`.
        server_only: the OSP form, which `FedMiDOSP` names.

    Raises:
        InvalidInput: psi has no prox, or no closed form with the mirror map; a rate that is not positive;
            a start outside the mirror map's domain.

    Reference: Yuan, Zaheer and Reddi, "Federated Composite Optimization", ICML 2021, Algorithm 2.
    """

    title: ClassVar[str] = "FedMiD"

    @property
    def local(self) -> SGD | None:
        """The clients' solver where psi acts on the server alone, which SCAFFOLD may then correct."""
        return SGD(self.client_lr) if self.server_only and isinstance(self.mirror, Euclidean) else None

    def init(self, params: Params) -> FedMiDServer:
        self.check_start(params)
        return FedMiDServer(params)

    def broadcast(self, server: FedMiDServer, cohort: Cohort) -> FedOptBroadcast:
        return FedOptBroadcast(server.params, cohort.round)

    def train(
        self, broadcast: FedOptBroadcast, client: tuple[()], oracle: Oracle
    ) -> tuple[FedMiDMessage, tuple[()]]:
        lr = rate_at(self.client_lr, broadcast.round)

        def step(k: Scalar, w: Params) -> Params:
            theta = trees.axpy(-lr, oracle(w, k)[1], self.mirror.forward(w))
            return (
                self.mirror.inverse(theta) if self.server_only else self.mirror.composite(self.psi, theta, lr)
            )

        last = local_loop(oracle, step, broadcast.params)
        message = FedMiDMessage(trees.sub(last, broadcast.params), sum_of_rates(lr, oracle, last))
        return message, client

    def update(self, server: FedMiDServer, message: FedMiDMessage, cohort: Cohort) -> FedMiDServer:
        lr = rate_at(self.server_lr, cohort.round)
        theta = trees.axpy(lr, message.delta, self.mirror.forward(server.params))
        return FedMiDServer(self.mirror.composite(self.psi, theta, lr * message.rate_sum))

    def export(self, server: FedMiDServer) -> Params:
        return server.params


@by_name("FedMiDOSP")
def FedMiDOSP(
    psi: WithProx,
    client_lr: Rate = 0.1,
    *,
    server_lr: Rate = 1.0,
    mirror: Mirror = EUCLIDEAN,
    weighting: Weighting = "uniform",
) -> FedMiD:
    """FedMiD with the proximal step on the server only (Yuan et al. 2021, Algorithm 4).

        client:  w <- grad h*(grad h(w) - eta_c g_i(w))
        server:  D = sum_i p_i (w_i - w),   e = sum_i p_i K_i eta_c,   w <- grad(h + eta_s e psi)*(grad h(w) + eta_s D)

    Travels, arguments and what is refused: as `FedMiD`. Its rates may fall to 0: it then minimises F + psi.
    `SCAFFOLD+FedMiDOSP` adds control variates: one prox a round, on the server, of the length of the round's step. One
    local step is proximal gradient descent. With more, differences between clients no longer bias a fixed point, but
    the steps' own way from w does, in proportion to eta_c: gradients are taken where psi has not acted. `ProxTracking`
    has no such bias. One prox a round and control variates are also what FedCanon (Zhou et al., arXiv:2504.11903)
    states of itself; its pseudo-code could not be read, so this has no name of its own.

    Args:
        psi: penalty or set of `fedsolve.geometry` with a prox.
        client_lr: eta_c > 0, a number or a schedule by round (0.1).
        server_lr: eta_s > 0, a number or a schedule by round (1).
        mirror: h, (1/2)|.|^2 if it is not given.
        weighting: `uniform` (the paper's) or by `examples`.

    Returns:
        A `FedMiD` with `server_only=True`.

    Raises:
        InvalidInput: as `FedMiD`.

    Reference: Yuan, Zaheer and Reddi, "Federated Composite Optimization", ICML 2021, Algorithm 4.
    """
    return FedMiD(psi, client_lr, server_lr=server_lr, mirror=mirror, weighting=weighting, server_only=True)


# Federated dual averaging for F + psi (Yuan, Zaheer and Reddi 2021, Algorithms 3 and 5).


@module
class FedDualAvgServer:
    """The dual state z, the sum e of the rates so far, and with `averaged` the sum of the shadow models and
    their number.
    """

    dual: Params
    rate_sum: Traced
    total: Params
    count: Traced


@module
class FedDualAvgBroadcast:
    """z, e and the number of the round."""

    dual: Params
    rate_sum: Traced
    round: Scalar


@module
class FedDualAvgMessage:
    """Dual client update z_K - z (shapes of the model), and the sum of the rates of its steps (K eta_c).

    With `averaged` also z_k - z after each step, shapes (steps, ...), and the sums of rates by then (steps,).
    """

    delta: Params
    rate_sum: Traced = bounded(MessageBounds(at_least=0))
    path: Params
    times: Any = bounded(MessageBounds(at_least=0))


@class_by_name("FedDualAvg")
@module
class FedDualAvg(MirroredMethod):
    """FedDualAvg (Yuan et al. 2021): clients run dual averaging, and the server averages their dual states.

        client:  z from the server;   w = grad(h + (e + eta_c k) psi)*(z),   z <- z - eta_c g_i(w)
                 OSP:                 w = grad h*(z)
        server:  z <- z + eta_s sum_i p_i (z_i - z),   e <- e + eta_s sum_i p_i K_i eta_c
        model:   w = grad(h + e psi)*(z),   z_0 = grad h(w_0),   e_0 = 0

    Down: z and one number. Up: the dual client update and one number. Kept: nothing. The paper's
    e = eta_s eta_c r K is carried as one scalar, so that schedules and unequal numbers of steps are right.
    An indicator psi projects also at e = 0. psi = 0 is FedAvg.

    Args:
        psi: penalty or set of `fedsolve.geometry` with a prox, on the whole vector or, with `.on("weight")`, on
            chosen leaves.
        client_lr: eta_c > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        server_lr: eta_s > 0, a number or a schedule by round; 1 replaces z by the mean of the z_i.
        mirror: h, (1/2)|.|^2 in all of the paper's experiments.
        weighting: p_i, `uniform` (the paper's) or by `examples`.
        server_only: the OSP form, which `FedDualAvgOSP` names.
        averaged: export the output of Theorem 4.2, the mean over all rounds and steps k = 1 ... K of
            grad(h + e_k psi)*(mean of the clients' z_k), instead of the last model. Clients then send every
            z_k, K times the traffic, and must all take K steps.

    Raises:
        InvalidInput: psi has no prox, or no closed form with the mirror map; a rate that is not positive;
            a start outside the mirror map's domain; `averaged` with clients of unequal steps.

    Reference: Yuan, Zaheer and Reddi, "Federated Composite Optimization", ICML 2021, Algorithm 3.
    """

    title: ClassVar[str] = "FedDualAvg"

    _: KW_ONLY
    averaged: bool = static(default=False)

    def init(self, params: Params) -> FedDualAvgServer:
        # the server's first state, z = grad h(w_0)
        self.check_start(params)
        zero = jnp.zeros((), trees.dtype_of(params))
        total = trees.zeros_like(params) if self.averaged else ()
        return FedDualAvgServer(self.mirror.forward(params), zero, total, zero if self.averaged else ())

    def broadcast(self, server: FedDualAvgServer, cohort: Cohort) -> FedDualAvgBroadcast:
        return FedDualAvgBroadcast(server.dual, server.rate_sum, cohort.round)

    def train(
        self, broadcast: FedDualAvgBroadcast, client: tuple[()], oracle: Oracle
    ) -> tuple[FedDualAvgMessage, tuple[()]]:
        lr, start = rate_at(self.client_lr, broadcast.round), broadcast.dual

        def step(k: Scalar, carry: tuple[Params, Params]) -> tuple[Params, Params]:
            z, path = carry
            w = self.mirror.inverse(z) if self.server_only else self._primal(z, broadcast.rate_sum + lr * k)
            z = trees.axpy(-lr, oracle(w, k)[1], z)
            return z, jax.tree.map(
                lambda p, a, b: p.at[k].set(a - b), path, z, start
            ) if self.averaged else ()

        path, times = self._empty_path(start, oracle, lr)
        last, path = local_loop(oracle, step, (start, path))
        rate_sum = sum_of_rates(lr, oracle, last)
        return FedDualAvgMessage(trees.sub(last, start), rate_sum, path, times), client

    def update(
        self, server: FedDualAvgServer, message: FedDualAvgMessage, cohort: Cohort
    ) -> FedDualAvgServer:
        # add the mean dual client update to the dual state, and the mean sum of rates to its clock
        lr = rate_at(self.server_lr, cohort.round)
        total, count = server.total, server.count
        if self.averaged:
            shadow = jax.vmap(
                lambda step, time: self._primal(trees.add(server.dual, step), server.rate_sum + time)
            )(message.path, message.times)
            total = jax.tree.map(lambda t, x: t + jnp.sum(x, axis=0), total, shadow)
            count = count + len(message.times)
        rate_sum = (server.rate_sum + lr * message.rate_sum).astype(server.rate_sum.dtype)
        return FedDualAvgServer(trees.axpy(lr, message.delta, server.dual), rate_sum, total, count)

    def model(self, broadcast: FedDualAvgBroadcast) -> Params:
        return self._primal(broadcast.dual, broadcast.rate_sum)

    def export(self, server: FedDualAvgServer) -> Params:
        # the primal model, or the averaged model of Theorem 4.2
        last = self._primal(server.dual, server.rate_sum)
        if not self.averaged:
            return last
        mean = trees.scale(1 / jnp.maximum(server.count, 1), server.total)
        return trees.where(server.count > 0, mean, last)

    def _primal(self, z: Params, rate_sum: Scalar) -> Params:
        return self.mirror.composite(self.psi, z, rate_sum)

    def _empty_path(self, z: Params, oracle: Oracle, lr: Scalar) -> tuple[Params, Any]:
        if not self.averaged:
            return (), ()
        steps = oracle.steps
        if not isinstance(steps, int):
            raise InvalidInput(
                f"{self.name} with averaged=True needs clients that all take as many steps: give local_steps"
            )
        path = jax.tree.map(lambda x: jnp.zeros((steps, *x.shape), x.dtype), z)
        return path, (lr * jnp.arange(1, steps + 1)).astype(trees.dtype_of(z))


@by_name("FedDualAvgOSP")
def FedDualAvgOSP(
    psi: WithProx,
    client_lr: Rate = 0.1,
    *,
    server_lr: Rate = 1.0,
    mirror: Mirror = EUCLIDEAN,
    weighting: Weighting = "uniform",
) -> FedDualAvg:
    """FedDualAvg with the proximal step on the server only (Yuan et al. 2021, Algorithm 5).

        client:  z from the server;   w = grad h*(z),   z <- z - eta_c g_i(w)
        server:  z <- z + eta_s sum_i p_i (z_i - z),   e <- e + eta_s sum_i p_i K_i eta_c
        model:   w = grad(h + e psi)*(z)

    Travels, arguments and what is refused: as `FedDualAvg`. z is FedAvg's model, which knows nothing of psi, while e
    grows with the rounds: under a penalty the model goes to argmin psi in the end, under a set to the projection of
    argmin F, and not to a minimiser of F + psi.

    Args:
        psi: penalty or set of `fedsolve.geometry` with a prox.
        client_lr: eta_c > 0, a number or a schedule by round (0.1).
        server_lr: eta_s > 0, a number or a schedule by round (1).
        mirror: h, (1/2)|.|^2 if it is not given.
        weighting: `uniform` (the paper's) or by `examples`.

    Returns:
        A `FedDualAvg` with `server_only=True`.

    Raises:
        InvalidInput: as `FedDualAvg`.

    Reference: Yuan, Zaheer and Reddi, "Federated Composite Optimization", ICML 2021, Algorithm 5.
    """
    return FedDualAvg(
        psi, client_lr, server_lr=server_lr, mirror=mirror, weighting=weighting, server_only=True
    )
