"""What fair methods share: clients send weighted updates, and the server divides by what the weights amount to."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Unpack

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import by_name, checked, choice, number
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, replace
from fedsolve.geometry.mirrors import Entropy
from fedsolve.methods.client.sgd import SGD, ClientOptions, local_sgd
from fedsolve.methods.client.solver import LocalSolver, Solution, refuse_stateful, split_steps
from fedsolve.methods.server.server_optimizer import ServerOptimizer
from fedsolve.methods.server.sgd import ServerSGD


@module
class ReweightedServer:
    """The model, the server optimiser's state, the logarithm by which weights are scaled, and DRFA's last snapshot (the
    shapes of the model); `()` for what a method has not.
    """

    params: Params
    server_optimizer: Any
    log_scale: Any
    snapshot: Any = ()


@module
class ReweightedBroadcast:
    """The model w, the number of the round, the logarithm of the scale, N / |S|, and DRFA's last snapshot."""

    params: Params
    round: Scalar
    log_scale: Any
    inverse_share: Traced
    snapshot: Any = ()


@module
class ReweightedMessage:
    """u_i D_i (shapes of the model), the mean local loss, what the server normalises by, and u_i (y - w) of DRFA's
    snapshot y.
    """

    delta: Params
    loss: Traced
    weight: Traced
    snapshot: Any = ()


@module
class Reweighted(Algorithm):
    """Base class: any local solver, whose updates clients weight, and a server optimiser that steps along their mean.

    client:  D_i = local(w) - w,   sends u_i D_i and one number s_i
    server:  D = c sum_i p_i u_i D_i,   w <- step(w, D),   c follows from sum_i p_i s_i
    """

    sends_client_update: ClassVar[bool] = False
    only_mean: ClassVar[str] = "weighted updates are divided by the sum of their weights"

    local: LocalSolver
    _: KW_ONLY
    server_optimizer: ServerOptimizer = ServerSGD()
    weighting: Weighting = choice("uniform", "examples", default="uniform")

    def __post_init__(self) -> None:
        refuse_stateful(self.traits.name, self.local)
        rule = type(self.server_optimizer)
        asks = [
            getattr(rule, x, None) is not getattr(ServerOptimizer, x) for x in ("client_stats", "direction")
        ]
        if any(asks) or self.server_optimizer.needs is not None:
            raise InvalidInput(
                f"{self.traits.name} weights client updates, and {shown(self.server_optimizer)} needs more of "
                "clients than these: take server.ServerSGD(), server.Adaptive() or server.Optax(...)"
            )

    @abstractmethod
    def weigh(self, loss: Traced, delta: Params, broadcast: Any, client: Any) -> tuple[Traced, Traced, Any]:
        """u_i, s_i and the client's next state, from its loss f_i(w) and its update."""

    @abstractmethod
    def normalize(self, log_scale: Any, weight: Traced, cohort: Cohort) -> tuple[Traced, Any]:
        """c and the next logarithm of the scale, from the mean of s_i."""

    def first_scale(self, zero: Traced) -> Any:
        """The first logarithm of the scale, `()` for none."""
        return zero

    def init(self, params: Params) -> ReweightedServer:
        # the initial model; all weights are alike
        zero = jnp.zeros((), trees.dtype_of(params))
        return ReweightedServer(params, self.server_optimizer.init(params), self.first_scale(zero))

    def broadcast(self, server: ReweightedServer, cohort: Cohort) -> ReweightedBroadcast:
        share = jnp.asarray(cohort.population / jnp.maximum(cohort.size, 1), trees.dtype_of(server.params))
        return ReweightedBroadcast(server.params, cohort.round, server.log_scale, share, server.snapshot)

    def init_client(self, broadcast: Any) -> Any:
        return ()

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        solution, delta = self._solve(broadcast, oracle)
        weight, sent, client = self.weigh(oracle.full(broadcast.params)[0], delta, broadcast, client)
        return ReweightedMessage(trees.scale(weight, delta), solution.loss, sent), client

    def update(self, server: Any, message: Any, cohort: Cohort) -> Any:
        # normalise the mean of weighted updates, and step along it
        factor, log_scale = self.normalize(server.log_scale, message.weight, cohort)
        mean = trees.scale(factor, message.delta)
        params, state = self.server_optimizer.step(server.params, server.server_optimizer, mean, (), cohort)
        return ReweightedServer(params, state, log_scale, server.snapshot)

    def export(self, server: Any) -> Params:
        return self.server_optimizer.evaluation_point(server.params, server.server_optimizer)

    def _solve(self, broadcast: Any, oracle: Oracle) -> tuple[Solution, Params]:
        solution = self.local.solve(broadcast.params, oracle, broadcast.round)
        return solution, trees.sub(solution.params, broadcast.params)


# AFL (Mohri et al. 2019): the worst mixture of clients, by mirror ascent on their weights.


@module
class AgnosticClient:
    """theta_i, the client's dual variable: log of its weight but for a constant that all clients share."""

    dual: Traced


@module
class Agnostic(Reweighted):
    """AFL with any local solver and any server optimiser that steps along a mean client update: see `AFL`."""

    name: ClassVar[str] = "AFL"
    weighting: ClassVar[Weighting] = "uniform"  # pyright: ignore[reportIncompatibleVariableOverride]
    only_mean: ClassVar[str] = "the server must know the mean of all clients' weights"

    _: KW_ONLY
    dual_lr: Rate = checked(as_rate, default=0.01)

    def init_client(self, broadcast: Any) -> AgnosticClient:
        return AgnosticClient(jnp.zeros_like(broadcast.log_scale))

    def weigh(
        self, loss: Traced, delta: Params, broadcast: Any, client: AgnosticClient
    ) -> tuple[Traced, Traced, AgnosticClient]:
        # N lambda_i, and how much exp theta_i grows with the loss
        weight, ascent = self._weight(client.dual, broadcast), self._ascent(loss, broadcast)
        return weight, weight * jnp.expm1(ascent), AgnosticClient(client.dual + ascent)

    def normalize(self, log_scale: Any, weight: Traced, cohort: Cohort) -> tuple[Traced, Any]:
        # 1, and the logarithm of the mean over all clients of exp theta_i
        growth = jnp.log1p(weight * (cohort.size / cohort.population)).astype(weight.dtype)
        return jnp.ones_like(growth), log_scale + growth

    def _weight(self, dual: Traced, broadcast: Any) -> Traced:
        """N lambda_i, by the inverse of the mirror map."""
        return Entropy().inverse(dual - broadcast.log_scale)

    def _ascent(self, loss: Traced, broadcast: Any) -> Traced:
        """How far the dual variable goes: eta_d times an unbiased estimate of N times the gradient's entry."""
        return (rate_at(self.dual_lr, broadcast.round) * broadcast.inverse_share * loss).astype(loss.dtype)


@by_name("AFL")
def AFL(
    client_lr: Rate = 0.1, *, dual_lr: Rate = 0.01, server_lr: Rate = 1.0, **client: Unpack[ClientOptions]
) -> Agnostic:
    """AFL (Mohri et al. 2019) minimises the loss of the worst mixture of clients, max over lambda of sum lambda_i f_i.

        client i in S:  D_i = y - w after K steps of SGD from w,   sends N lambda_i D_i
                        theta_i <- theta_i + eta_d (N / |S|) f_i(w),   lambda_i = exp theta_i / sum_j exp theta_j
        server:         w <- w + eta_g (N / |S|) sum over S of lambda_i D_i

    Up: N lambda_i D_i, the growth of exp theta_i, and the mean local loss (d + 2 numbers). Down: w and the logarithm
    of the mean of all exp theta_j. Kept: theta_i on each client (one number, 0 at first), that logarithm on the
    server. No party knows all weights. Each client evaluates f_i(w) on all of its examples.

    With all clients, K = 1 and all examples in a step this is the paper's algorithm, with mirror ascent by the entropy
    (`geometry.Entropy`) in the place of Euclidean projections onto the simplex, for which the server would have to
    hold all weights. Clients that are drawn uniformly are weighted by N / |S|, as in `DRFA`. eta_d towards 0 is
    `FedAvg` with uniform weights. The paper returns the mean of all w; here it is the last.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        dual_lr: eta_d > 0, a number or a schedule by round, in units of an inverse loss. 0.01 is
            where to begin: a rate that is too large leaves the weight with a few clients, whose steps are then long.
        server_lr: eta_g > 0, a number or a schedule by round (1).
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        The method with every client's theta_i, whose local solver is `client.SGD`.

    Raises:
        InvalidInput: a rate that is not positive, an option out of its range.

    Reference: Mohri, Sivek and Suresh, "Agnostic Federated Learning", ICML 2019.
    """
    return Agnostic(local_sgd(client_lr, client), dual_lr=dual_lr, server_optimizer=ServerSGD(server_lr))


# DRFA (Deng et al. 2020): the worst mixture of clients, with many local steps and one random snapshot of them.


@module
class SnapshotAgnostic(Agnostic):
    """DRFA with any local solver and any server optimiser that steps along a mean client update: see `DRFA`."""

    name: ClassVar[str] = "DRFA"

    def init(self, params: Params) -> ReweightedServer:
        # the initial model is also the first snapshot
        return replace(super().init(params), snapshot=params)

    def train(self, broadcast: Any, client: AgnosticClient, oracle: Oracle) -> tuple[Any, AgnosticClient]:
        # let the weight grow with the loss at the last snapshot; run the local solver up to the next, and on
        w = broadcast.params
        ascent = self._ascent(oracle.loss(broadcast.snapshot, 0), broadcast)
        ascent = jnp.where(broadcast.round > 0, ascent, 0)
        growth = self._weight(client.dual, broadcast) * jnp.expm1(ascent)
        client = AgnosticClient(client.dual + ascent)
        early, late = split_steps(broadcast.round, oracle)
        before = self.local.solve(w, early, broadcast.round)
        after = self.local.solve(before.params, late, broadcast.round)
        loss = (before.loss * early.steps + after.loss * late.steps) / oracle.steps
        weight = self._weight(client.dual, broadcast)
        delta, snapshot = (trees.scale(weight, trees.sub(y.params, w)) for y in (after, before))
        return ReweightedMessage(delta, jnp.asarray(loss, growth.dtype), growth, snapshot), client

    def update(self, server: Any, message: Any, cohort: Cohort) -> Any:
        # normalise with the weights of after the ascent; step; take the snapshot
        updated = super().update(server, message, cohort)
        scale = jnp.exp(server.log_scale - updated.log_scale)
        return replace(updated, snapshot=trees.axpy(scale, message.snapshot, server.params))

    def normalize(self, log_scale: Any, weight: Traced, cohort: Cohort) -> tuple[Traced, Any]:
        # the last mean of exp theta over the next, whose logarithm is stored
        _, grown = super().normalize(log_scale, weight, cohort)
        return jnp.exp(log_scale - grown), grown


@by_name("DRFA")
def DRFA(
    client_lr: Rate = 0.1, *, dual_lr: Rate = 0.01, server_lr: Rate = 1.0, **client: Unpack[ClientOptions]
) -> SnapshotAgnostic:
    """DRFA (Deng et al. 2020) minimises the loss of the worst mixture of clients, max over lambda of sum lambda_i f_i.

        all:            t' uniform in 1 .. K, from the number of the round
        client i in S:  theta_i <- theta_i + eta_d (N / |S|) f_i(v) on a minibatch, from round 1 on
                        lambda_i = exp theta_i / sum_j exp theta_j
                        K steps of SGD from w,   sends N lambda_i (y_K - w)   and   N lambda_i (y_t' - w)
        server:         w <- w + eta_g (N / |S|) sum over S of lambda_i (y_K - w),   v with y_t' alike

    Up: both updates, the growth of exp theta_i and the mean local loss (2 d + 2 numbers). Down: w, v and the logarithm
    of the mean of all exp theta_j (2 d + 1). Kept: theta_i on each client, 0 at first; v on the server. eta_d towards 0
    is `FedAvg` with uniform weights.

    The paper draws the clients that train by lambda, and others uniformly that evaluate the snapshot v. Here, as in
    the authors' code, clients are drawn uniformly and weighted by N lambda_i / |S|. The clients of the next round
    evaluate v before they train, so that a round takes one exchange of messages. The weights ascend by the entropy
    (`geometry.Entropy`) in the place of Euclidean projections onto the simplex, for which the server would have to hold
    all weights. Clients with other numbers of steps are at the same share of theirs at the snapshot. Momentum starts
    anew after it.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        dual_lr: eta_d > 0, the paper's K gamma, a number or a schedule by round, in units of an inverse loss. 0.01 is
            where to begin (`AFL`).
        server_lr: eta_g > 0, a number or a schedule by round (1, the paper's).
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        The method with every client's theta_i, whose local solver is `client.SGD`.

    Raises:
        InvalidInput: a rate that is not positive, an option out of its range.

    Reference: Deng, Kamani and Mahdavi, "Distributionally Robust Federated Averaging", NeurIPS 2020, Algorithm 1.
    """
    return SnapshotAgnostic(
        local_sgd(client_lr, client), dual_lr=dual_lr, server_optimizer=ServerSGD(server_lr)
    )


# q-FedAvg (Li et al. 2020): a client counts for more, the larger its loss is, by a power.


@module
class FairAveraging(Reweighted):
    """q-FedAvg around local SGD, with any server optimiser that steps along a mean client update: see `QFedAvg`."""

    name: ClassVar[str] = "QFedAvg"

    _: KW_ONLY
    q: Scalar = number(default=1.0, at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.local, SGD):
            raise InvalidInput(f"QFedAvg takes L from the rate of local SGD, not from {shown(self.local)}")

    def first_scale(self, zero: Traced) -> Any:
        return ()

    def weigh(self, loss: Traced, delta: Params, broadcast: Any, client: Any) -> tuple[Traced, Traced, Any]:
        # f_i^q, and h_i / L
        loss = loss + 1e-10
        lipschitz = 1 / rate_at(self.local.lr, broadcast.round)  # pyright: ignore[reportAttributeAccessIssue]
        weight = (loss**self.q).astype(loss.dtype)
        curvature = self.q * loss ** (self.q - 1) * lipschitz * trees.squared_norm(delta)
        return weight, (weight + curvature).astype(loss.dtype), client

    def normalize(self, log_scale: Any, weight: Traced, cohort: Cohort) -> tuple[Traced, Any]:
        # L over the mean of h_i
        return 1 / weight, log_scale


@by_name("QFedAvg")
def QFedAvg(
    client_lr: Rate = 0.1,
    *,
    q: Scalar = 1.0,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> FairAveraging:
    """q-FedAvg (Li et al. 2020) minimises the mean of f_i^(q + 1) / (q + 1): fairer among clients, the larger q is.

        client:  y = K steps of SGD from w,   d_i = L (w - y),   L = 1 / eta_l
                 sends f_i(w)^q d_i   and   h_i = q f_i(w)^(q - 1) |d_i|^2 + L f_i(w)^q
        server:  w <- w - eta_g (sum_i p_i f_i^q d_i) / (sum_i p_i h_i)

    Up: d_i, h_i and the mean local loss (d + 2 numbers; d_i and h_i in units of 1 / L). Down: w. Kept: nothing. q = 0
    is `FedAvg` with the same weighting. Each client evaluates f_i(w) on all of its examples; losses must not be
    negative. As in the authors' code, 1e-10 is added to f_i, and clients that are drawn uniformly count alike: the
    paper draws them by p_i.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it for q = 0.
        q: at least 0, no unit. 1 is where to begin: the paper tunes it.
        server_lr: eta_g > 0, a number or a schedule by round (1, the paper's).
        weighting: p_i, `uniform` (the authors' code) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        The method, whose local solver is `client.SGD` and whose server optimiser is `server.ServerSGD`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    >>> QFedAvg(0.1, q=2.0).q
    2.0

    Reference: Li, Sanjabi, Beirami and Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020,
    Algorithm 2.
    """
    local = local_sgd(client_lr, client)
    return FairAveraging(local, q=q, server_optimizer=ServerSGD(server_lr), weighting=weighting)


# TERM (Li et al. 2021): tilted empirical risk minimisation over clients.


@module
class TiltedAveraging(Reweighted):
    """TERM with any local solver and any server optimiser that steps along a mean client update: see `TERM`."""

    name: ClassVar[str] = "TERM"

    _: KW_ONLY
    t: Scalar = number(default=1.0)
    smoothing: Scalar = number(default=0.5, above=0, at_most=1)

    def weigh(self, loss: Traced, delta: Params, broadcast: Any, client: Any) -> tuple[Traced, Traced, Any]:
        # exp(t f_i) / z, twice; below the largest number of the type
        exponent = jnp.minimum(self.t * loss - broadcast.log_scale, 0.9 * jnp.log(jnp.finfo(loss.dtype).max))
        weight = jnp.exp(exponent).astype(loss.dtype)
        return weight, weight, client

    def normalize(self, log_scale: Any, weight: Traced, cohort: Cohort) -> tuple[Traced, Any]:
        # z over the next z, whose logarithm is stored; the first z is the first cohort's
        smoothed = (1 - self.smoothing) + self.smoothing * weight
        growth = jnp.where(cohort.round == 0, weight, smoothed).astype(weight.dtype)
        return 1 / growth, log_scale + jnp.log(growth)


@by_name("TERM")
def TERM(
    client_lr: Rate = 0.1,
    *,
    t: Scalar = 1.0,
    smoothing: Scalar = 0.5,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> TiltedAveraging:
    """TERM (Li et al. 2021) minimises the tilted loss (1/t) log sum_i p_i exp(t f_i) over clients.

        client:  D_i = y - w after K steps of SGD from w,   sends exp(t f_i(w)) D_i
        server:  z <- (1 - lambda) z + lambda sum_i p_i exp(t f_i(w))      (z starts as the first cohort's mean)
                 w <- w + eta_g (sum_i p_i exp(t f_i(w)) D_i) / z

    Up: exp(t f_i) D_i and exp(t f_i), in units of the last z, and the mean local loss (d + 2 numbers). Down: w and
    log z. Kept: log z on the server. t > 0 favours clients with large losses (t to infinity is the worst client's),
    t < 0 those with small ones, t = 0 is `FedAvg` with the same weighting. Each client evaluates f_i(w) on all of its
    examples. Exponents end at nine tenths of the type's range, where clients of the first round count alike.

    z is the running mean of the paper's stochastic algorithm. The authors' federated code subtracts the cohort's
    largest loss before it takes that mean, starts it at 0, and divides by the number of clients once more.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        t: the tilt, finite, in units of an inverse loss. 1 is where to begin: the paper tunes it.
        smoothing: lambda in (0, 1]; 0.5 (the authors' code), 1 forgets all but the present cohort.
        server_lr: eta_g > 0, a number or a schedule by round (1).
        weighting: p_i, `uniform` (the authors' code) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        The method, whose local solver is `client.SGD` and whose server optimiser is `server.ServerSGD`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Li, Beirami, Sanjabi and Smith, "Tilted Empirical Risk Minimization", ICLR 2021.
    """
    local, rule = local_sgd(client_lr, client), ServerSGD(server_lr)
    return TiltedAveraging(local, t=t, smoothing=smoothing, server_optimizer=rule, weighting=weighting)
