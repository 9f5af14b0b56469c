"""Asynchronous methods: FedBuff (Nguyen et al. 2022) and FedAsync (Xie et al. 2019)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal, Unpack

import jax
import jax.numpy as jnp
from jax import lax

from fedsolve.core.algorithm import Algorithm, Cohort, name_of
from fedsolve.core.building import by_name, class_by_name, integer, number
from fedsolve.core.errors import InvalidInput, is_one_of, shown
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Weighting, module, replace, static
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.server.fedopt import FedOpt
from fedsolve.methods.server.server_optimizer import ServerOptimizer
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.methods.wrappers.proximal import Proximal, Subgradient
from fedsolve.methods.wrappers.wrapper import Wrapper

# The models of the last updates, kept for clients that began with them: what the engine puts around a late method.


@module
class VersionsServer:
    """The inner server, and the last broadcasts: leaves of shape (depth, ...), that of update t in row t mod depth."""

    inner: Any
    sent: Any


@module
class Versions:
    """What a client's work begins from: the last broadcasts, the newest (`inner`), its update, and who began at which.

    `ids` and `versions` have shape (size,), as `Cohort.started`; a client finds its own version by its number.
    """

    sent: Any
    inner: Any
    round: Scalar
    ids: Any
    versions: Any


@module
class KeepsVersions(Wrapper):
    """A late method with the broadcasts that its clients began with; `Cohort.started` says which.

    `depth` broadcasts are kept: more than the updates of which the latest message is late.
    """

    title: ClassVar[str] = "versions"
    parts: ClassVar[tuple[type, ...]] = (VersionsServer, Versions)
    inner: Any  # pyright: ignore[reportIncompatibleVariableOverride] (one with `train_from`)
    depth: int = static()

    @property
    def name(self) -> str:
        return name_of(self.inner)

    def init(self, params: Params) -> VersionsServer:
        server = self.inner.init(params)
        shapes = jax.eval_shape(lambda: self.inner.broadcast(server, Cohort(jnp.int32(0), jnp.int32(1), 1)))
        return VersionsServer(
            server, jax.tree.map(lambda s: jnp.zeros((self.depth, *s.shape), s.dtype), shapes)
        )

    def broadcast(self, server: VersionsServer, cohort: Cohort) -> Versions:
        newest = self.inner.broadcast(server.inner, cohort)
        ids, versions = cohort.started or ((), ())  # nobody has begun where clients are only enrolled
        return Versions(self._with(server.sent, newest, cohort.round), newest, cohort.round, ids, versions)

    def train(self, broadcast: Versions, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        # the inner local work from the broadcast that this client began with
        version = broadcast.versions[jnp.argmax(broadcast.ids == oracle.client)]
        then = jax.tree.map(
            lambda x: lax.dynamic_index_in_dim(x, version % self.depth, keepdims=False), broadcast.sent
        )
        return self.inner.train_from(then, broadcast.inner, broadcast.round - version, client, oracle)

    def update(self, server: VersionsServer, message: Any, cohort: Cohort) -> VersionsServer:
        # the inner update; this update's broadcast stays for those who are still at work with it
        newest = self.inner.broadcast(server.inner, cohort)
        sent = self._with(server.sent, newest, cohort.round)
        return VersionsServer(self.inner.update(server.inner, message, cohort), sent)

    def _with(self, sent: Any, newest: Any, round: Scalar) -> Any:
        return jax.tree.map(
            lambda x, new: lax.dynamic_update_index_in_dim(x, new, round % self.depth, 0), sent, newest
        )


Staleness = Literal["constant", "polynomial", "hinge"]
_WEIGHTS = ("constant", "polynomial", "hinge")


class Asynchronous(Wrapper):
    """A method whose server takes messages from clients that began with models of different age.

    On the clock of a fleet (`fs.run(systems=...)`) `clients_per_round` clients are at work at any time and a round is
    an update of the server, with the next `buffer` messages; so it is on a real federation. In a simulation without a
    clock nobody is late: all begin with the newest model, and the round's cohort is the buffer.

    Attributes:
        inner: the method; its server must need no more of a client than how far the model moved.
        buffer: messages of an update.
    """

    of_model_shape: ClassVar[bool] = True
    inner: Algorithm
    buffer: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if why := _why_not(self.inner):
            raise InvalidInput(
                f"{self.title} cannot wrap {name_of(self.inner)}: {why}; "
                "take a method such as FedAvg, FedAdam or FedProx"
            )

    def with_versions(self, depth: int) -> Algorithm:
        return KeepsVersions(self, depth)

    @abstractmethod
    def weigh(self, delta: Params, moved: Params, late: Scalar) -> Params:
        """What the server takes for a client update `delta` that is so many updates late.

        `moved` leads from the newest model to the one that the client began with.
        """

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        return self.train_from(broadcast, broadcast, 0, client, oracle)

    def train_from(self, then: Any, now: Any, late: Scalar, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """The inner local work from the broadcast `then`, `late` updates before the broadcast `now`."""
        message, client = self.inner.train(then, client, oracle)
        return self.late_message(message, then, now, late), client

    def late_message(self, message: Any, then: Any, now: Any, late: Scalar) -> Any:
        """What the server takes for an inner message from the broadcast `then`, `late` updates before `now`."""
        moved = jax.tree.map(jnp.subtract, self.inner.model(then), self.inner.model(now))
        return replace(message, delta=self.weigh(message.delta, moved, late))


@class_by_name("FedBuff")
@module
class Buffered(Asynchronous):
    """FedBuff around a method: the weight of a client update decreases with the age of the model it started from.

        client:  D_i of `inner` from w_{t - tau_i}, the model that it was sent
        server:  after K messages  D = sum_i p_i (1 + tau_i)^-a D_i,   w <- step of `inner` along D

    Travels and is kept: what `inner` sends and keeps. tau_i counts the server's updates while the client worked. With
    `weighting = "uniform"` p_i = 1/K, as in the paper: weights of late messages are not made up for. A client has one
    message in a buffer at most.

    Args:
        inner: the method, such as `FedAdam(...)`.
        buffer: K, messages of an update (10, as the paper's experiments); at least 1.
        power: a >= 0 (1/2, the paper's); 0 weighs all alike.

    Raises:
        InvalidInput: a buffer below 1, a negative power, an `inner` that cannot be late.
    """

    title: ClassVar[str] = "FedBuff"
    inner: Algorithm
    buffer: int = integer(default=10)
    power: Scalar = number(default=0.5, at_least=0)

    def weigh(self, delta: Params, moved: Params, late: Scalar) -> Params:
        # the weighted update (1 + tau)^-a D
        return _scaled(_polynomial(late, self.power), delta)


@class_by_name("FedAsync")
@module
class Mixing(Asynchronous):
    """FedAsync around a method: the server mixes each client's model into its own as it arrives.

        client:  w_i = model of `inner`'s client, from w_{t - tau}
        server:  w <- (1 - alpha s(tau)) w + alpha s(tau) w_i        (`inner` FedAvg)

        s(tau):  constant 1;   polynomial (1 + tau)^-a;   hinge 1 if tau <= b, else 1 / (a (tau - b) + 1)

    Any other `inner` steps along alpha s(tau) (w_i - w). Travels and is kept: what `inner` sends and keeps. tau counts
    the server's updates while the client worked, 0 if there was none; the paper counts the client's own update too, one
    more. Its proximal term is that of `Proximal` inside: `FedAsync+FedProx`.

    Args:
        inner: the method, such as `FedAvg(...)` or `FedProx(...)`.
        mixing: alpha in (0, 1]. 0.6 is where to begin: the paper tunes it.
        staleness: s, `polynomial`, `hinge` or `constant`.
        a: > 0, how fast s falls (1/2, the paper's for polynomial; its hinge has 10).
        b: >= 0, updates until the hinge falls (4, the paper's).

    Raises:
        InvalidInput: a number out of its range, an unknown staleness, an `inner` that cannot be late.
    """

    title: ClassVar[str] = "FedAsync"
    buffer: ClassVar[int] = 1  # pyright: ignore[reportIncompatibleVariableOverride]
    inner: Algorithm
    mixing: Scalar = number(default=0.6, above=0, at_most=1)
    staleness: Staleness = static(default="polynomial")
    a: Scalar = number(default=0.5, above=0)
    b: Scalar = number(default=4.0, at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_one_of(self.staleness, _WEIGHTS):
            raise InvalidInput(f"staleness = {shown(self.staleness)} must be one of {', '.join(_WEIGHTS)}")

    def weigh(self, delta: Params, moved: Params, late: Scalar) -> Params:
        # the weighted update alpha s(tau) (w_i - w)
        weight = self.mixing * jnp.ones(())
        if self.staleness == "polynomial":
            weight = self.mixing * _polynomial(late, self.a)
        elif self.staleness == "hinge":
            weight = self.mixing / (self.a * jnp.maximum(late - self.b, 0) + 1)
        return _scaled(weight, jax.tree.map(jnp.add, moved, delta))


@by_name("FedBuff")
def FedBuff(
    client_lr: Rate = 0.1,
    *,
    buffer: int = 10,
    power: Scalar = 0.5,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> Buffered:
    """FedBuff (Nguyen et al. 2022): the server updates after every K messages, whatever model they started from.

        client:  y <- y - eta_l g_i(y), K_i times from w_{t - tau_i};   D_i = y - w_{t - tau_i}
        server:  D = (1/K) sum_i (1 + tau_i)^-a D_i,   w <- w + eta_g D

    Up: D_i (d numbers) and the mean local loss. Down: w. Kept: nothing. It is `Buffered(FedAvg(...))`, to be run on the
    clock of a fleet: `fs.run(..., systems="stragglers", clients_per_round=100)`: 100 clients work at a time.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        buffer: K, messages of an update (10, as the paper's experiments); at least 1.
        power: a >= 0 (1/2, the paper's); 0 weighs all alike.
        server_lr: eta_g > 0, a number or a schedule by round. 1 is where to begin: the paper tunes it.
        weighting: `uniform` (1/K, the paper's) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `Buffered(FedAvg(...), buffer, power)`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    >>> FedBuff(0.1, buffer=5).name
    'FedBuff'

    Reference: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022, Algorithm 1.
    """
    inner = FedAvg(client_lr, server_lr=server_lr, weighting=weighting, **client)
    return Buffered(inner, buffer, power)


@by_name("FedAsync")
def FedAsync(
    client_lr: Rate = 0.1,
    *,
    mixing: Scalar = 0.6,
    staleness: Staleness = "polynomial",
    a: Scalar = 0.5,
    b: Scalar = 4.0,
    weighting: Weighting = "examples",
    **client: Unpack[ClientOptions],
) -> Mixing:
    """FedAsync (Xie et al. 2019): the server mixes each client's model into its own as it arrives.

        client:  y <- y - eta_l g_i(y), K_i times from w_{t - tau}
        server:  w <- (1 - alpha s(tau)) w + alpha s(tau) y

    Up: y - w_{t - tau} (d numbers) and the mean local loss. Down: w. Kept: nothing. It is `Mixing(FedAvg(...))`, to be
    run on the clock of a fleet: `fs.run(..., systems="stragglers", clients_per_round=100)`: 100 clients work at a time.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        mixing: alpha in (0, 1]. 0.6 is where to begin: the paper tunes it.
        staleness: s, `polynomial` (1 + tau)^-a, `hinge` (1 up to b, then 1 / (a (tau - b) + 1)) or `constant`.
        a: > 0, how fast s falls (1/2, the paper's for polynomial; its hinge has 10).
        b: >= 0, updates until the hinge falls (4, the paper's).
        weighting: how messages count that come together, where there is no clock: by `examples` or `uniform`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `Mixing(FedAvg(...), mixing, staleness, a, b)`, whose `buffer` is 1, an update a message.

    Raises:
        InvalidInput: a number out of its range, an unknown staleness or weighting.

    Reference: Xie, Koyejo and Gupta, "Asynchronous Federated Optimization", arXiv:1903.03934, 2019, Algorithm 1.
    """
    return Mixing(FedAvg(client_lr, weighting=weighting, **client), mixing, staleness, a, b)


def _polynomial(late: Scalar, power: Scalar) -> Scalar:
    return (1.0 + late) ** (-jnp.asarray(power))


def _scaled(weight: Scalar, delta: Params) -> Params:
    return jax.tree.map(lambda d: (weight * d).astype(d.dtype), delta)


def _why_not(inner: Algorithm) -> str:
    while isinstance(inner, Proximal | Subgradient):
        inner = inner.inner
    if inner.traits.only_mean:
        return inner.traits.only_mean
    if isinstance(inner, Wrapper) and inner.traits.reduction is None:
        return "of all wrappers, only FedProx and Subgradient are known to work with late messages"
    if not isinstance(inner, FedOpt):
        return "its messages mean something only to a server that has sent all their clients the same model"
    step = type(inner.server_optimizer)
    if (
        step.client_stats is not ServerOptimizer.client_stats
        or step.direction is not ServerOptimizer.direction
    ):
        return (
            f"{step.__name__} steps by what clients measured at one model, which all of them must begin from"
        )
    return ""
