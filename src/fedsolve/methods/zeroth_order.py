"""Methods without gradients: FedZO, DeComFL and FedKSeed, and the random directions that they share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import lax

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import by_name, checked, choice, class_by_name, integer, number
from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, replace, reported, static
from fedsolve.core.wire import Index, Initial
from fedsolve.methods.client.solver import LocalSolver, Solution, StepWindow, local_loop, mean_loss
from fedsolve.methods.server.fedopt import FedOpt
from fedsolve.methods.server.sgd import ServerSGD

_SEED = 0x5EED  # of directions, which nobody need hide: the same on the server and on every client


def key_of(*numbers: Any) -> Any:
    """The key that follows from whole numbers of 0 .. 2^32 - 1, such as those of a round and a step."""
    key = jax.random.key(_SEED)
    for folded in numbers:
        key = jax.random.fold_in(key, jnp.asarray(folded, jnp.uint32))
    return key


def gaussian(key: Any, like: Params) -> Params:
    """A direction of independent standard normal numbers, of the shapes and types of a model."""
    # They follow from the same 23 bits each in every type: those in float32 are `jax.random.normal`'s.
    leaves, structure = jax.tree.flatten(like)
    keys = [jax.random.fold_in(key, i) for i in range(len(leaves))]
    return structure.unflatten(_normal(k, x) for k, x in zip(keys, leaves, strict=True))


def _normal(key: Any, like: Any) -> Any:
    bits = jax.random.bits(key, like.shape, jnp.uint32) >> 9
    uniform = bits.astype(like.dtype) * 2.0**-22 + (2.0**-24 - 1)  # between -1 and 1, never either
    return (math.sqrt(2) * lax.erf_inv(uniform)).astype(like.dtype)


def slope(oracle: Oracle, params: Params, step: Scalar, direction: Params, mu: Scalar) -> Traced:
    """(f(w + mu z) - f(w - mu z)) / (2 mu) on the minibatch of a local step: two losses, shape ()."""
    ahead = oracle.loss(trees.axpy(mu, direction, params), step)
    behind = oracle.loss(trees.axpy(-mu, direction, params), step)
    return jnp.asarray((ahead - behind) / (2 * mu), trees.dtype_of(params))


def walk(params: Params, lengths: Any, key: Callable[[Any], Any]) -> Params:
    """w - sum_j a_j z_j, one direction after another: in this order, the same bits wherever it is computed."""
    # The lengths are a_j, shape (n,); a direction of length 0 is not drawn. `key` gives the key of z_j for j.
    moves = lengths != 0
    order = jnp.argsort(~moves, stable=True)

    def one(i: Any, w: Params) -> Params:
        j = order[i]
        return trees.axpy(-lengths[j], gaussian(key(j), w), w)

    return lax.fori_loop(0, moves.sum(), one, params)


def first_steps(oracle: Oracle, most: int) -> Oracle:
    """An oracle whose client takes no more than so many local steps."""
    if isinstance(oracle.steps, int) and oracle.steps <= most:
        return oracle
    return StepWindow(oracle, 0, jnp.minimum(oracle.steps, most), jnp.minimum(oracle.bound, most))


# FedZO (Fang et al. 2022): FedAvg whose clients estimate gradients from losses.


@module
class ZerothOrderSGD(LocalSolver):
    """Local steps along gradients that are estimated from losses, in P random directions v of length 1.

        y <- y - lr (d / P) sum_v ((f(y + mu v) - f(y)) / mu) v

    Directions follow from the number of the round, of the client and of the step.

    Attributes:
        lr: client learning rate, a number or a schedule by round; > 0.
        directions: P, at least 1.
        mu: smoothing, > 0, in units of the parameters.
    """

    lr: Rate = checked(as_rate, name="client_lr")
    _: KW_ONLY
    directions: int = integer(default=1)
    mu: Scalar = number(default=1e-3, above=0)

    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        # d: E[v v'] = I / d for a direction v of length 1
        rate = rate_at(self.lr, round) * trees.size(params) / self.directions
        number, mu = jnp.asarray(oracle.client, jnp.uint32), self.mu

        def step(k: Scalar, carry: Any) -> Any:
            y, total = carry
            here = oracle.loss(y, k)

            def along(p: Any, estimate: Params) -> Params:
                z = gaussian(key_of(3, round, number, k, p), y)
                v = trees.scale(1 / trees.norm(z), z)
                slope = (oracle.loss(trees.axpy(mu, v, y), k) - here) / mu
                return trees.axpy(slope, v, estimate)

            estimate = lax.fori_loop(0, self.directions, along, trees.zeros_like(y))
            return trees.axpy(-rate, estimate, y), total + here

        start = (params, jnp.zeros((), trees.dtype_of(params)))
        last, total = local_loop(oracle, step, start)
        return Solution(last, mean_loss(total, oracle))


@by_name("FedZO")
def FedZO(
    client_lr: Rate = 1e-3,
    *,
    directions: int = 1,
    mu: Scalar = 1e-3,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
) -> FedOpt:
    """FedZO (Fang et al. 2022): FedAvg whose clients estimate gradients from losses in P random directions v.

        client:  y <- y - eta_l (d / P) sum_v ((f_i(y + mu v) - f_i(y)) / mu) v,   K times from w
        server:  w <- w + eta_g mean (y - w)

    v is uniform on the sphere of radius 1. Up: y - w (d numbers) and the mean local loss: the paper's messages are
    dense, whatever their steps were. `DeComFL` and `FedKSeed` send scalars. Down: w. Only losses are evaluated, P + 1
    for each local step. As P grows and mu falls it is `FedAvg`. The paper's sum of messages over the air is left out.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.001 is where to begin: a step is as long as sqrt(d / P)
            times the gradient's, where FedAvg's is as long as the gradient.
        directions: P, at least 1; 1 is the cheapest.
        mu: smoothing, > 0, in units of the parameters; 0.001 is where to begin.
        server_lr: eta_g > 0, a number or a schedule by round (1, the paper's average).
        weighting: `uniform` (the paper's) or by `examples`.

    Returns:
        `FedOpt` with such local steps and `server.ServerSGD`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Fang, Yu, Jiang, Shi, Jones and Zhou, "Communication-Efficient Stochastic Zeroth-Order Optimization for
    Federated Learning", IEEE Transactions on Signal Processing 2022.
    """
    local = ZerothOrderSGD(client_lr, directions=directions, mu=mu)
    return FedOpt(local, ServerSGD(server_lr), weighting=weighting, name="FedZO")


# What methods share whose clients send slopes, and rebuild the model from slopes that they are sent.


@module
class RebuiltModel(Algorithm):
    """Base class: clients send slopes along directions that everybody can draw.

    They are sent scalars, from which they rebuild the model, or the model.
    """

    sends_client_update: ClassVar[bool] = False

    client_lr: Rate = checked(as_rate, default=1e-3)
    _: KW_ONLY
    mu: Scalar = number(default=1e-3, above=0)
    most_steps: int | None = integer(default=None, none="where all clients take as many steps")
    down: Literal["scalars", "model"] = choice("scalars", "model", default="scalars")
    weighting: Weighting = choice("uniform", "examples", default="uniform")

    @property
    def rebuilds(self) -> bool:
        return self.down == "scalars"

    @property
    def steps_sent(self) -> int:
        if self.most_steps is None:
            raise InvalidInput(
                f"{self.traits.name} sends slopes for each local step: set most_steps, the local steps of a client at "
                "most (fs.run finds out where all clients take as many, such as with local_steps)"
            )
        return self.most_steps

    def with_steps(self, steps: int | None) -> Algorithm:
        if self.most_steps is None:
            return replace(self, most_steps=steps)
        if steps is not None and steps > self.most_steps:
            raise InvalidInput(
                f"{self.traits.name}(most_steps={self.most_steps}): local steps are {steps}; leave most_steps out"
            )
        return self

    @abstractmethod
    def first_state(self, broadcast: Any) -> Any:
        """What a client keeps that rebuilds the model, before it first does."""

    def init_client(self, broadcast: Any) -> Any:
        # nothing, where the model is sent
        self.model(broadcast)
        return ()

    def enrol(self, broadcast: Any, params: Params) -> Any:
        # what rebuilds the model, where it is not sent: the initial one is part of the broadcast
        return self.first_state(broadcast) if self.rebuilds else ()

    def model(self, broadcast: Any) -> Params:
        if self.rebuilds:
            raise InvalidInput(
                f"clients of {self.traits.name} rebuild the model: inside a wrapper give it down='model'"
            )
        return broadcast.params

    def export(self, server: Any) -> Params:
        return server.params


# DeComFL (Li et al. 2025): local steps along directions that all clients share, and slopes in both ways.

_LOST = (
    "clients that missed more than `history` rounds could not rebuild the model and sent nothing from then on: set "
    "history to the rounds of the run, or down='model'"
)


@module
class DeComServer:
    """The model w, the initial one (`()` where the model is sent), how often it has moved, the last steps (history,
    steps x directions; `()` where the model is sent), and the share of the last cohort that could not follow.
    """

    params: Params
    start: Params
    version: Traced
    history: Any
    lost: Traced = reported(_LOST)


@module
class DeComBroadcast:
    """The last steps and the leaves of the initial model, or the model; how often the model has moved and the number of
    the round.
    """

    params: Params
    start: Any
    history: Any
    version: Traced
    round: Scalar


@module
class DeComClient:
    """The last model that the client has rebuilt, and how often it had moved."""

    params: Params
    version: Traced


@module
class DeComMessage:
    """The slopes g, (steps, directions), and 1, or 0 of a client that cannot follow (`()` where the model is sent)."""

    slope: Traced
    follows: Any


@class_by_name("DeComFL")
@module
class DeComFL(RebuiltModel):
    """DeComFL (Li et al. 2025): zeroth-order local steps along directions z that all clients of a round share.

        client:  y = w;  for local steps k = 1 .. K and directions p = 1 .. P:
                 g = (f_i(y + mu z) - f_i(y - mu z)) / (2 mu),   after each k:  y <- y - (eta / P) sum_p g z
                 sends the K P slopes g
        server:  g <- sum_i p_i g of client i,   w <- w - (eta / P) sum_k sum_p g z

    z is standard normal and follows from how often the model has moved, from k and from p. Up: K P numbers. Down: the
    steps eta g / P of the last `history` rounds, from which a client goes on from the model that it had when it last
    took part, and 8 bytes for each leaf of the initial model, of which clients have copies; with down='model', w (d
    numbers). Kept: that model on clients, the initial one on the server, with down='model' nothing. Only losses are
    evaluated, 2 K P a round. With one direction, one client and one step it is SGD with a two-point estimate.

    The authors' server sends each client the rounds that it has missed. A broadcast is the same for all clients here:
    a client that misses more rounds than `history` sends nothing from then on, and the run says so. Whoever follows
    draws the directions of all rounds; in a simulation down='model' gives the same iterates, up to rounding, and saves
    that. Clients that take fewer steps than others send 0 for the missing ones. On other hardware or with another
    version of JAX directions may differ in their last bits. The paper takes the difference to one loss at y; here it is
    between both sides of y, as in the authors' code.

    Args:
        client_lr: eta > 0, a number or a schedule by round. 0.001 is where to begin: the paper tunes it.
        directions: P, at least 1; 1 (the authors' code). P = 10 is P losses more.
        mu: smoothing, > 0, in units of the parameters; 0.001 (the authors' code).
        most_steps: K, local steps of a client at most; later ones are left out. None: `fs.run` finds out where all
            clients take as many; a deployment must be told.
        down: what clients are sent, `scalars` or the `model`.
        history: rounds that a broadcast of scalars tells of, at least 1. 100 is where to begin.
        weighting: p_i, `uniform` (the paper's) or by `examples`.

    Raises:
        InvalidInput: a number out of its range. When a run begins: unknown `most_steps`, or more steps than these. On a
            client: another initial model than the server's.

    Reference: Li, Ying, Liu, Dong and Yang, "Achieving Dimension-Free Communication in Federated Learning via
    Zeroth-Order Optimization", ICLR 2025.
    """

    name: ClassVar[str] = "DeComFL"

    _: KW_ONLY
    directions: int = integer(default=1)
    history: int = integer(default=100)

    def first_state(self, broadcast: DeComBroadcast) -> DeComClient:
        return DeComClient(Initial.values_of(broadcast.start), jnp.int32(0))

    def init(self, params: Params) -> DeComServer:
        zero = jnp.zeros((), trees.dtype_of(params))
        noted = jnp.zeros((self.history, self.steps_sent * self.directions), zero.dtype)
        start, history = (params, noted) if self.rebuilds else ((), ())
        return DeComServer(params, start, jnp.int32(0), history, zero)

    def broadcast(self, server: DeComServer, cohort: Cohort) -> DeComBroadcast:
        params, start = ((), Initial.leaves_of(server.start)) if self.rebuilds else (server.params, ())
        return DeComBroadcast(params, start, server.history, server.version, cohort.round)

    def train(self, broadcast: DeComBroadcast, client: Any, oracle: Oracle) -> tuple[DeComMessage, Any]:
        if not self.rebuilds:
            return DeComMessage(self._slopes(broadcast.params, broadcast, oracle), ()), client
        now, last = broadcast.version, client.version
        # who missed more rounds than the history holds cannot rebuild the model, says so and is not counted
        follows = now - last <= self.history

        def go_on(version: Any, w: Params) -> Params:
            return self._moved(w, broadcast.history[version % self.history], version)

        # the server's own steps, repeated one after another: the same bits as there
        w = lax.fori_loop(jnp.where(follows, last, now), now, go_on, client.params)
        slopes = self._slopes(w, broadcast, oracle)
        one = jnp.asarray(follows, slopes.dtype)
        after = trees.where(follows, DeComClient(w, now), client)
        return DeComMessage(jnp.where(follows, slopes, 0), one), after

    def update(self, server: DeComServer, message: DeComMessage, cohort: Cohort) -> DeComServer:
        # step along all directions of the round, and note the lengths of the steps
        share, mean = 1.0, message.slope
        if self.rebuilds:
            share = message.follows
            # the mean is over those who could follow
            mean = jnp.where(share > 0, mean / jnp.where(share > 0, share, 1), 0)
        rate = rate_at(self.client_lr, cohort.round) / self.directions
        lengths = (rate * mean).astype(mean.dtype).ravel()
        params, history = self._moved(server.params, lengths, server.version), server.history
        if self.rebuilds:
            # a ring of the last rounds' step lengths, (history, directions of all steps)
            history = history.at[server.version % self.history].set(lengths)
        lost = jnp.asarray(1 - share, mean.dtype)
        return DeComServer(params, server.start, server.version + 1, history, lost)

    def _moved(self, w: Params, lengths: Any, version: Any) -> Params:
        return walk(w, lengths, lambda j: key_of(2, version, j // self.directions, j % self.directions))

    def _slopes(self, w: Params, broadcast: DeComBroadcast, oracle: Oracle) -> Traced:
        most = self.steps_sent
        rate = rate_at(self.client_lr, broadcast.round) / self.directions

        def step(k: Scalar, carry: Any) -> Any:
            y, slopes = carry

            def along(p: Any, carry: Any) -> Any:
                total, slopes = carry
                z = gaussian(key_of(2, broadcast.version, k, p), y)
                g = slope(oracle, y, k, z, self.mu)
                return trees.axpy(g, z, total), slopes.at[k, p].set(g)

            total, slopes = lax.fori_loop(0, self.directions, along, (trees.zeros_like(y), slopes))
            return trees.axpy(-rate, total, y), slopes

        # 0 where a client takes fewer steps than the message has room for
        none = jnp.zeros((most, self.directions), trees.dtype_of(w))
        return local_loop(first_steps(oracle, most), step, (w, none))[1]


# FedKSeed (Qin et al. 2024): steps along K candidate directions, and the model as K numbers.


@module
class KSeedServer:
    """The model w, the initial one w_0 (`()` where the model is sent), and A (seeds,)."""

    params: Params
    start: Params
    sums: Traced


@module
class KSeedBroadcast:
    """A (seeds,) and w_0 as leaves of the initial model, or the model; the number of the round."""

    params: Params
    start: Any
    sums: Any
    round: Scalar


@module
class KSeedMessage:
    """The candidate j of each local step, `seeds` where there was none, and the slope g along it, both (steps,)."""

    candidate: Index
    slope: Traced


@module
class KSeedSums:
    """Slopes added up by candidate, (seeds,)."""

    sums: Traced


@class_by_name("FedKSeed")
@module
class FedKSeed(RebuiltModel):
    """FedKSeed (Qin et al. 2024): zeroth-order local steps along K candidate directions z_j.

        client:  y = w;  for each local step a random j,
                 g = (f_i(y + mu z_j) - f_i(y - mu z_j)) / (2 mu),   y <- y - eta g z_j,   sends j and g
        server:  A_j <- A_j + eta sum_i p_i (sum of the g that client i sent with j)
                 w = w_0 - sum_j A_j z_j,   which clients compute too: they have w_0 and are sent A

    z_j is standard normal and follows from j alone, and a client's j from the number of the round, of the client and of
    the step. Up: j and g for each local step (2 and 4 bytes in float32, 4,096 candidates). Down: A (K numbers), however
    long a client was absent, and 8 bytes for each leaf of w_0, of which clients have copies; with down='model', w (d
    numbers). Kept: nothing on clients. Only losses are evaluated, two for each step. The model moves in K dimensions: K
    has to grow with what is to be learnt.

    Whoever rebuilds w draws K directions. In a simulation down='model' gives the same iterates, up to rounding, and
    saves that. On other hardware or with another version of JAX directions may differ in their last bits. The paper's
    second sampling, by the size of past slopes (FedKSeed-Pro), is left out. The paper adds g up and multiplies by eta
    afterwards; here A has eta in it, so that a rate may follow a schedule.

    Args:
        client_lr: eta > 0, a number or a schedule by round. 0.001 is the authors' code's; the paper tunes it.
        seeds: K, at least 1; 4,096 (paper and code).
        mu: smoothing, > 0, in units of the parameters; 0.0005 (the authors' code).
        most_steps: local steps of a client at most; later ones are left out. None: `fs.run` finds out where all clients
            take as many; a deployment must be told.
        down: what clients are sent, `scalars` or the `model`.
        weighting: p_i by `examples` (the authors' code) or `uniform`.

    Raises:
        InvalidInput: a number out of its range. When a run begins: unknown `most_steps`, or more steps than these. On a
            client: another initial model than the server's.

    Reference: Qin, Chen, Qian, Ding, Li and Deng, "Federated Full-Parameter Tuning of Billion-Sized Language Models
    with Communication Cost under 18 Kilobytes", ICML 2024.
    """

    name: ClassVar[str] = "FedKSeed"
    only_mean: ClassVar[str] = "clients step along different directions, whose slopes are added up"

    _: KW_ONLY
    seeds: int = integer(default=4096)
    mu: Scalar = 5e-4
    weighting: Weighting = static(default="examples")

    def first_state(self, broadcast: KSeedBroadcast) -> tuple[()]:
        # Nothing: the initial model is part of every broadcast
        return ()

    def init(self, params: Params) -> KSeedServer:
        sums = jnp.zeros(self.seeds, trees.dtype_of(params))
        return KSeedServer(params, params if self.rebuilds else (), sums)

    def broadcast(self, server: KSeedServer, cohort: Cohort) -> KSeedBroadcast:
        if not self.rebuilds:
            return KSeedBroadcast(server.params, (), (), cohort.round)
        return KSeedBroadcast((), Initial.leaves_of(server.start), server.sums, cohort.round)

    def train(self, broadcast: KSeedBroadcast, client: Any, oracle: Oracle) -> tuple[KSeedMessage, Any]:
        w = broadcast.params
        if self.rebuilds:
            w = walk(Initial.values_of(broadcast.start), broadcast.sums, _candidate)
        most = self.steps_sent
        rate, number = rate_at(self.client_lr, broadcast.round), jnp.asarray(oracle.client, jnp.uint32)

        def step(k: Scalar, carry: Any) -> Any:
            y, chosen, slopes = carry
            j = jax.random.randint(key_of(1, broadcast.round, number, k), (), 0, self.seeds, jnp.int32)
            z = gaussian(_candidate(j), y)
            g = slope(oracle, y, k, z, self.mu)
            return trees.axpy(-rate * g, z, y), chosen.at[k].set(j), slopes.at[k].set(g)

        # steps that are not taken name a candidate that there is not: the server's sum drops them
        none = jnp.full(most, self.seeds, jnp.int32), jnp.zeros(most, trees.dtype_of(w))
        _, chosen, slopes = local_loop(first_steps(oracle, most), step, (w, *none))
        return KSeedMessage(Index(chosen, self.seeds), slopes), client

    def receive(self, broadcast: KSeedBroadcast, message: KSeedMessage, client: Any) -> tuple[KSeedSums, Any]:
        # slopes added up by candidate
        sums = jnp.zeros(self.seeds, message.slope.dtype)
        return KSeedSums(sums.at[message.candidate.value].add(message.slope, mode="drop")), client

    def update(self, server: KSeedServer, message: KSeedSums, cohort: Cohort) -> KSeedServer:
        change = (rate_at(self.client_lr, cohort.round) * message.sums).astype(server.sums.dtype)
        sums = server.sums + change
        # as clients do, to the bit; else along the few directions that changed
        start, lengths = (server.start, sums) if self.rebuilds else (server.params, change)
        return replace(server, params=walk(start, lengths, _candidate), sums=sums)


def _candidate(j: Any) -> Any:
    return key_of(0, j)
