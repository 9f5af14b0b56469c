"""Proximal points with control variates at a centre: FedRed, S-DANE (Jiang et al. 2024), SPPM-AS (Yi et al. 2024)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, Unpack

import jax
import jax.numpy as jnp
from jax import lax

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import by_name, choice, class_by_name, flag, number
from fedsolve.core.errors import InvalidInput, check_integer, check_known, shown
from fedsolve.core.oracle import CorrectedOracle, MappedOracle, Oracle, ProximalOracle
from fedsolve.core.schedules import Rate, rate_at
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, replace
from fedsolve.methods.client.line_search import ConjugateGradient
from fedsolve.methods.client.sgd import SGD, ClientOptions, local_sgd
from fedsolve.methods.client.solver import LocalSolver, Solution, StepWindow, geometric_draw, refuse_stateful
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.methods.wrappers.wrapper import Wrapper


@module
class CenterServer:
    """The model x, S-DANE's centre v, the cohort's mean gradient at the centre (all of the model's shapes), whether it
    is known (0 or 1), and S-DANE's sums A and B; `()` for what a method has not.
    """

    params: Params
    center: Params
    gradient: Params
    known: Traced
    sums: Any = ()


@module
class CenterBroadcast:
    """The centre, the mean gradient there, the number of the round, and whether the gradient is known."""

    params: Params
    gradient: Params
    round: Scalar
    known: Traced


@module
class CenterMessage:
    """The gradient of f_i at the centre, or x_i minus the centre where the mean gradient is known; of S-DANE also the
    gradient at x_i (0 in the first exchange); and the local loss.
    """

    vector: Params
    gradient: Params
    loss: Traced


@module
class ControlledProximal(Algorithm):
    """Base class: proximal clients whose control variates are exact at a centre, which takes two rounds of a run.

    round 1, client:  sends grad f_i(c)                           server:  g = sum_i p_i grad f_i(c)
    round 2, client:  h_i = grad f_i(c) - g
                      x_i ~ argmin_y f_i(y) - <h_i, y> + (lam / 2) |y - c|^2,   sends x_i - c
    """

    sends_client_update: ClassVar[bool] = False

    local: LocalSolver
    _: KW_ONLY
    lam: Scalar = number(default=1.0, at_least=0)
    weighting: Weighting = choice("uniform", "examples", default="uniform")

    def __post_init__(self) -> None:
        refuse_stateful(self.traits.name, self.local)

    @abstractmethod
    def move(self, server: CenterServer, message: CenterMessage) -> CenterServer:
        """The server after the second exchange: the next model and centre."""

    def center_of(self, server: CenterServer) -> Params:
        """The centre of the next proximal problems."""
        return server.params

    def init(self, params: Params) -> CenterServer:
        # the initial model, whose gradient is not known
        return CenterServer(params, (), trees.zeros_like(params), jnp.int32(0))

    def broadcast(self, server: CenterServer, cohort: Cohort) -> CenterBroadcast:
        # the centre, and the mean gradient there once it is known
        return CenterBroadcast(self.center_of(server), server.gradient, cohort.round, server.known)

    def init_client(self, broadcast: CenterBroadcast) -> tuple[()]:
        return ()

    def train(self, broadcast: CenterBroadcast, client: Any, oracle: Oracle) -> tuple[CenterMessage, Any]:
        # the gradient at the centre, or local work with the control variate
        center = broadcast.params
        loss, own = oracle.full(center)

        # both branches send the same shapes: which of the two exchanges it is depends on a traced number
        def measure() -> CenterMessage:
            return CenterMessage(own, self.gradient_at(None, center, oracle), loss)

        def work() -> CenterMessage:
            proximal = ProximalOracle(oracle, center, self.lam)
            # f_i(y) - <h_i, y> with h_i = grad f_i(c) - g, exact at the centre
            problem = CorrectedOracle(proximal, trees.sub(broadcast.gradient, own), center)
            solution = self.solve(center, problem, broadcast.round)
            gradient = self.gradient_at(solution.params, center, oracle)
            return CenterMessage(
                trees.sub(solution.params, center),
                gradient,
                jnp.asarray(solution.loss, trees.dtype_of(center)),
            )

        return lax.cond(broadcast.known > 0, work, measure), client

    def solve(self, center: Params, problem: Oracle, round: Scalar) -> Solution:
        """Local work on a client's problem."""
        return self.local.solve(center, problem, round)

    def gradient_at(self, params: Params | None, center: Params, oracle: Oracle) -> Params:
        """The gradient that is sent beside x_i, of the same shapes before there is an x_i (None); `()` for none."""
        return ()

    def update(self, server: CenterServer, message: CenterMessage, cohort: Cohort) -> CenterServer:
        # note the mean gradient after the first exchange, move after the second
        # the rounds of a run alternate: `known` says which exchange comes next
        noted = replace(server, gradient=message.vector, known=jnp.int32(1))
        moved = replace(self.move(server, message), known=jnp.int32(0))
        return trees.where(server.known > 0, moved, noted)

    def export(self, server: CenterServer) -> Params:
        return server.params


# FedRed (Jiang, Rodomanov and Stich 2024): drift correction with two regularisers, and rounds of random length.


@module
class DoublyRegularized(ControlledProximal):
    """FedRed with local SGD: see `FedRed`."""

    name: ClassVar[str] = "FedRed"

    _: KW_ONLY
    p: Scalar = number(default=0.25, above=0, at_most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.local, SGD):
            raise InvalidInput(f"FedRed takes eta from the rate of local SGD, not from {shown(self.local)}")

    def solve(self, center: Params, problem: Oracle, round: Scalar) -> Solution:
        # steps with both regularisers: SGD with the rate 1 / (eta + lam), as many as the coin allows
        lr = rate_at(self.local.lr, round)  # pyright: ignore[reportAttributeAccessIssue]
        shorter = MappedOracle(problem, lambda y, g: trees.scale(1 / (1 + self.lam * lr), g))
        steps, bound = (jnp.minimum(geometric_draw(round, self.p), x) for x in (problem.steps, problem.bound))
        return self.local.solve(center, StepWindow(shorter, 0, steps, bound), round)

    def move(self, server: CenterServer, message: CenterMessage) -> CenterServer:
        return replace(server, params=trees.add(server.params, message.vector))


@by_name("FedRed")
def FedRed(
    client_lr: Rate = 0.1, *, lam: Scalar = 1.0, p: Scalar = 0.25, weighting: Weighting = "uniform"
) -> DoublyRegularized:
    """FedRed (Jiang, Rodomanov and Stich 2024): local steps with two regularisers and exact control variates.

        round 1, client i in S:  sends grad f_i(x)
        round 2, all:            K = number of tosses up to the first success, each of probability p
                 client i in S:  h_i = grad f_i(x) - mean grad f_j(x),   y = x at first; K times
                                 y <- argmin_z <g_i(y) - h_i, z> + (lam / 2) |z - x|^2 + (eta / 2) |z - y|^2
                                    = y - (g_i(y) - h_i + lam (y - x)) / (eta + lam),   sends y
                 server:         x <- mean y

    Up: one vector. Down: x and the mean gradient (2 d numbers). Kept: both on the server. Each exchange of messages is
    a round of a run, so that a round of the paper takes two. Its clients are the same in both; here each round draws
    its own, the same if all take part or `sampling.Trace` says so. As in the authors' code, clients start at x, and
    control variates are new in every round (the first of the paper's two kinds). K follows from the number of the
    round: all clients have the same, but no more than the run's local steps. p = 1 on all examples is gradient
    descent, `FedAvg` with one local step of rate 1 / (eta + lam).

    Args:
        client_lr: 1 / eta > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        lam: at least 0, in units of the loss per squared parameter; 1 is where to begin: the paper tunes it, of the
            size of the differences between clients' Hessians.
        p: in (0, 1]; 0.25 (the authors' code).
        weighting: of clients in all means, `uniform` as in the paper or by `examples`.

    Returns:
        The method, whose local solver is `client.SGD`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Jiang, Rodomanov and Stich, "Federated Optimization with Doubly Regularized Drift Correction", ICML 2024.
    """
    return DoublyRegularized(SGD(client_lr), lam=lam, p=p, weighting=weighting)


# S-DANE and its accelerated form (Jiang, Rodomanov and Stich 2024): proximal points around a stabilised centre.


@module
class Stabilized(ControlledProximal):
    """S-DANE with any local solver: see `SDANE` and `AccSDANE`."""

    _: KW_ONLY
    lam: Scalar = number(default=1.0, above=0)
    mu: Scalar = number(default=0.0, at_least=0)
    accelerated: bool = flag(default=False)

    @property
    def name(self) -> str:
        """The name in the catalogue."""
        return "AccSDANE" if self.accelerated else "SDANE"

    def init(self, params: Params) -> CenterServer:
        # x and v begin at the model
        dtype = trees.dtype_of(params)
        sums = (jnp.zeros((), dtype), jnp.ones((), dtype)) if self.accelerated else ()
        return replace(super().init(params), center=params, sums=sums)

    def center_of(self, server: CenterServer) -> Params:
        # v, or (A x + a v) / (A + a)
        if not self.accelerated:
            return server.center
        total, step = server.sums[0], self._step(server)
        return trees.axpy(step / (total + step), trees.sub(server.center, server.params), server.params)

    def gradient_at(self, params: Params | None, center: Params, oracle: Oracle) -> Params:
        # the gradient of f_i at x_i
        return trees.zeros_like(center) if params is None else oracle.full(params)[1]

    def move(self, server: CenterServer, message: CenterMessage) -> CenterServer:
        # x to the mean of x_i, and v along the mean gradient there
        step = self._step(server)
        weight = server.sums[1] if self.accelerated else 1.0
        x = trees.add(self.center_of(server), message.vector)

        def toward(x: Any, v: Any, g: Any) -> Any:
            # minimiser of the estimating sequence's quadratic; without acceleration the weight is 1 and a = 1 / lam
            return ((self.mu * step * x + weight * v - step * g) / (self.mu * step + weight)).astype(v.dtype)

        v = jax.tree.map(toward, x, server.center, message.gradient)
        sums = server.sums and (server.sums[0] + step, (server.sums[1] + self.mu * step).astype(step.dtype))
        return replace(server, params=x, center=v, sums=sums)

    def _step(self, server: CenterServer) -> Traced:
        """a: 1 / lam, or the positive root of lam a^2 = (A + a) B."""
        if not self.accelerated:
            return 1 / self.lam
        total, weight = server.sums
        half = weight / (2 * self.lam)
        return (half + jnp.sqrt(half**2 + total * weight / self.lam)).astype(total.dtype)


@by_name("SDANE")
def SDANE(
    client_lr: Rate = 0.1,
    *,
    lam: Scalar = 1.0,
    mu: Scalar = 0.0,
    solver: Literal["sgd", "exact"] = "sgd",
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> Stabilized:
    """S-DANE (Jiang, Rodomanov and Stich 2024): proximal points with control variates, around a stabilised centre v.

        round 1, client i in S:  sends grad f_i(v)
        round 2, client i in S:  h_i = grad f_i(v) - mean grad f_j(v)
                                 x_i ~ argmin_y f_i(y) - <h_i, y> + (lam / 2) |y - v|^2,   sends x_i and grad f_i(x_i)
                 server:         x <- mean x_i,   v <- (mu x + lam v - mean grad f_i(x_i)) / (mu + lam)

    Up and down: one vector in round 1, two in round 2 (their places are sent in both, 2 d numbers). Kept: x and v on
    the server. Each exchange of messages is a round of a run, so that a round of the paper takes two. Its clients are
    the same in both; here each round draws its own, the same if all take part or `sampling.Trace` says so. With
    clients alike and `exact`, it is `FedExProx` with gamma = 1 / lam and alpha = 1. The authors' code steps by
    argmin of the linearised local problem, which is SGD with the rate client_lr / (1 + lam client_lr).

    Args:
        client_lr: > 0, of the SGD steps on local problems, a number or a schedule by round; not used by `exact`.
        lam: > 0, in units of the loss per squared parameter; 1 is where to begin: the paper tunes it, of the size of
            the differences between clients' Hessians. Local steps that go too short a way for it make v overshoot.
        mu: strong convexity of the losses, at least 0, in the units of lam (0, the authors' code).
        solver: the run's local steps of SGD, or `exact`, conjugate gradients, where losses are quadratic.
        weighting: of clients in all means, `uniform` as in the paper or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        The method, whose local solver is `client.SGD` or `client.ConjugateGradient`.

    Raises:
        InvalidInput: a number out of its range, an unknown solver or weighting.

    Reference: Jiang, Rodomanov and Stich, "Stabilized Proximal-Point Methods for Federated Optimization", NeurIPS
    2024, Algorithm 1.
    """
    check_known("solver", solver, ("sgd", "exact"))
    local = local_sgd(client_lr, client) if solver == "sgd" else ConjugateGradient()
    return Stabilized(local, lam=lam, mu=mu, weighting=weighting)


@by_name("AccSDANE")
def AccSDANE(
    client_lr: Rate = 0.1,
    *,
    lam: Scalar = 1.0,
    mu: Scalar = 0.0,
    solver: Literal["sgd", "exact"] = "sgd",
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> Stabilized:
    """Accelerated S-DANE (Jiang, Rodomanov and Stich 2024): `SDANE` around centres between x and v.

        server:  lam a^2 = (A + a) B,   y = (A x + a v) / (A + a)          (A = 0 and B = 1 at first)
        client:  as `SDANE`, around y in the place of v
        server:  x <- mean x_i,   v <- (mu a x + B v - a mean grad f_i(x_i)) / (mu a + B)
                 A <- A + a,   B <- B + mu a

    Sent as by `SDANE`; kept: x, v, A and B on the server. Two rounds of a run are one of the paper, and the first of
    them is that of `SDANE`.

    Args:
        client_lr: > 0, of the SGD steps on local problems, a number or a schedule by round; not used by `exact`.
        lam: > 0, in units of the loss per squared parameter; 1 is where to begin: the paper tunes it.
        mu: strong convexity of the losses, at least 0, in the units of lam (0, the authors' code).
        solver: the run's local steps of SGD, or `exact`, conjugate gradients, where losses are quadratic.
        weighting: of clients in all means, `uniform` as in the paper or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        The method, whose local solver is `client.SGD` or `client.ConjugateGradient`.

    Raises:
        InvalidInput: a number out of its range, an unknown solver or weighting.

    Reference: Jiang, Rodomanov and Stich, "Stabilized Proximal-Point Methods for Federated Optimization", NeurIPS
    2024, Algorithm 2.
    """
    plain = SDANE(client_lr, lam=lam, mu=mu, solver=solver, weighting=weighting, **client)
    return replace(plain, accelerated=True)


# SPPM-AS (Yi et al. 2024): a stochastic proximal point whose cohort solves its problem in several rounds.


@module
class ProximalPointServer:
    """The inner server, the centre (shapes of the model), and the rounds since it last moved."""

    inner: Any
    center: Params
    rounds: Traced


@module
class ProximalPointBroadcast:
    """The inner broadcast and the centre."""

    inner: Any
    center: Params


@class_by_name("SPPMAS")
@module
class ProximalPoint(Wrapper):
    """SPPM-AS around any method, which solves the cohort's proximal problem: see `SPPMAS`.

    Args:
        inner: the method that solves the proximal problem of a cohort; its state goes on from one to the next.
        gamma: the proximal parameter, > 0, in units of a squared parameter per loss.
        local_rounds: rounds with one centre, at least 1.

    Raises:
        InvalidInput: an `inner` that is no method or has models of its clients' own, a number out of its range.
    """

    title: ClassVar[str] = "SPPMAS"
    parts: ClassVar[tuple[type, ...]] = (ProximalPointServer, ProximalPointBroadcast)
    inner: Algorithm
    _: KW_ONLY
    gamma: Scalar = number(default=1.0, above=0)
    local_rounds: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("local_rounds", self.local_rounds, 1, bits=31)

    def init(self, params: Params) -> ProximalPointServer:
        inner = self.inner.init(params)
        return ProximalPointServer(inner, self.inner.export(inner), jnp.int32(0))

    def broadcast(self, server: ProximalPointServer, cohort: Cohort) -> ProximalPointBroadcast:
        return ProximalPointBroadcast(self.inner.broadcast(server.inner, cohort), server.center)

    def train(self, broadcast: ProximalPointBroadcast, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        proximal = ProximalOracle(oracle, broadcast.center, 1 / self.gamma)
        return self.inner.train(broadcast.inner, client, proximal)

    def update(self, server: ProximalPointServer, message: Any, cohort: Cohort) -> ProximalPointServer:
        inner = self.inner.update(server.inner, message, cohort)
        rounds = server.rounds + 1
        due = rounds >= self.local_rounds
        center = trees.where(due, self.inner.export(inner), server.center)
        return ProximalPointServer(inner, center, jnp.where(due, 0, rounds).astype(jnp.int32))


@by_name("SPPMAS")
def SPPMAS(
    client_lr: Rate = 0.1,
    *,
    gamma: Scalar = 1.0,
    local_rounds: int = 5,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> ProximalPoint:
    """SPPM-AS (Yi et al. 2024): a cohort works on one proximal problem for several rounds before the next begins.

        x <- argmin_y mean over S of f_i(y) + |y - x|^2 / (2 gamma),   approximately, in K rounds of
        client i in S:  y_i = local steps of SGD on f_i + |. - x|^2 / (2 gamma), from y
        server:         y <- y + eta_g mean (y_i - y),   and x <- y after the last of the K rounds

    Up: y_i - y (d numbers) and the mean local loss. Down: y and x (2 d). Kept: both on the server. It is
    `ProximalPoint(FedAvg(...))`, with local SGD as the solver of the proximal problem, one of the paper's; put
    `ProximalPoint` around another method for another one: it keeps and sends x besides. K = 1 is `FedProx` with
    mu = 1 / gamma. The paper keeps a cohort for its K rounds, drawn by any sampling that is unbiased; here each round
    draws its own by the run's sampling, the same for K rounds if `sampling.Trace` says so.

    Args:
        client_lr: > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        gamma: > 0, in units of a squared parameter per loss. 1 is where to begin: the paper tunes it.
        local_rounds: K, at least 1. 5 is where to begin: the paper tunes it, larger for a larger gamma.
        server_lr: eta_g > 0, a number or a schedule by round (1).
        weighting: of clients, `uniform` (the paper's with uniform sampling) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `ProximalPoint(FedAvg(...))`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Yi, Kharisov, Sokolov and Richtarik, "Cohort Squeeze: Beyond a Single Communication Round per Cohort in
    Cross-Device Federated Learning", arXiv:2406.01115, 2024, Algorithm 1.
    """
    inner = FedAvg(client_lr, server_lr=server_lr, weighting=weighting, **client)
    return ProximalPoint(inner, gamma=gamma, local_rounds=local_rounds)
