"""Simulated attacks by clients: independent (`Attacked`), colluding (`Colluding`), or by flipped labels."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtri
from jaxtyping import Array, Bool, Float

from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.building import checked, choice, number
from fedsolve.core.errors import InvalidInput, check_integer, check_range
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Scalar, Traced, module, reduced
from fedsolve.data.federated import FederatedData
from fedsolve.methods.robust.reductions import Mean
from fedsolve.methods.robust.vectors import column, joined, split, vector_of
from fedsolve.methods.wrappers.wrapper import Wrapper

__all__ = [
    "ALittleIsEnough",
    "Attack",
    "Attacked",
    "Colluding",
    "Collusion",
    "GaussianNoise",
    "InnerProductManipulation",
    "MinMax",
    "Scaled",
    "SignFlip",
    "choose_attackers",
    "flip_labels",
]

# Simulated attackers that collude and know the updates of all honest clients.

Direction = Literal["std", "mean", "sign"]


class Collusion(ABC):
    """Base class of attacks by colluding clients that know all honest updates of a round."""

    @abstractmethod
    def vector(
        self, vectors: Float[Array, "clients d"], honest: Bool[Array, " clients"], attackers: Scalar
    ) -> Float[Array, " d"]:
        """The update that every attacker sends.

        Args:
            vectors: what the clients would send; rows that are not honest may hold anything finite.
            honest: who is, at least one.
            attackers: how many attack in this round.

        Returns:
            Shape (d,), of the type of `vectors`.
        """


@module
class ALittleIsEnough(Collusion):
    """A little is enough (Baruch, Baruch and Goldberg 2019, Algorithm 3): attackers send mean - z std, by coordinate.

        Phi(z) = (n - m - s) / (n - m),   s = floor(n / 2 + 1) - m,   n clients of whom m attack

    With s honest clients further out than they are, the attackers have the majority on their side. z is at least 0, and
    s at least 1 where they are the majority themselves.

    Attributes:
        z: deviations from the mean, finite; None is the paper's.

    Raises:
        InvalidInput: a z that is not finite.
    """

    z: Scalar | None = number(default=None)

    def vector(self, vectors: Array, honest: Array, attackers: Scalar) -> Array:
        mean, std = _moments(vectors, honest)
        return mean - (self._z(jnp.sum(honest), attackers) if self.z is None else self.z) * std

    @staticmethod
    def _z(honest: Scalar, attackers: Scalar) -> Scalar:
        supporters = jnp.maximum((honest + attackers) // 2 + 1 - attackers, 1)
        return ndtri(jnp.maximum((honest - supporters) / honest, 0.5))


@module
class InnerProductManipulation(Collusion):
    """Inner product manipulation (Xie, Koyejo and Gupta 2019): attackers send -epsilon times the honest mean.

    Attributes:
        epsilon: times the mean, at least 0; small ones lie among the honest vectors where these differ enough.

    Raises:
        InvalidInput: an epsilon that is negative or not finite.
    """

    epsilon: Scalar = number(at_least=0)

    def vector(self, vectors: Array, honest: Array, attackers: Scalar) -> Array:
        return -self.epsilon * _moments(vectors, honest)[0]


@module
class MinMax(Collusion):
    """Min-max attack (Shejwalkar and Houmansadr 2021, Section IV): far from the mean, within the honest spread.

        mean + gamma p,   the largest gamma with  |mean + gamma p - D_i| <= max_jk |D_j - D_k|  for all honest i

    The paper finds gamma by halving; here it is solved for: each i bounds it by the root of a quadratic.

    Attributes:
        direction: p: minus the standard deviation ("std"), minus the mean at length 1 ("mean"), or minus its
            sign ("sign").

    Raises:
        InvalidInput: another direction.
    """

    direction: Direction = choice("std", "mean", "sign", default="std")

    def vector(self, vectors: Array, honest: Array, attackers: Scalar) -> Array:
        mean, std = _moments(vectors, honest)
        length = jnp.linalg.norm(mean)
        along = {"std": std, "mean": mean / jnp.where(length > 0, length, 1), "sign": jnp.sign(mean)}
        p = -along[self.direction]
        squares = lax.map(
            lambda x: jnp.max(jnp.sum((vectors - x) ** 2, axis=1), where=honest, initial=0), vectors
        )
        widest = jnp.max(squares, where=honest, initial=0)
        # |gamma p + mean - D_i|^2 = a gamma^2 + 2 b_i gamma + c_i + widest: its root without cancellation
        apart = mean - vectors
        a, b, c = p @ p, apart @ p, jnp.sum(apart * apart, axis=1) - widest
        root = jnp.sqrt(jnp.maximum(b * b - a * c, 0))
        gamma = jnp.where(b > 0, -c / jnp.where(b > 0, b + root, 1), (root - b) / jnp.where(a > 0, a, 1))
        return mean + jnp.min(gamma, where=honest, initial=jnp.inf) * p


def _moments(vectors: Array, honest: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of the honest rows, a coordinate at a time."""
    share = honest[:, None] / jnp.maximum(jnp.sum(honest), 1).astype(vectors.dtype)
    mean = jnp.sum(share * vectors, axis=0)
    return mean, jnp.sqrt(jnp.sum(share * (vectors - mean) ** 2, axis=0))


@module
class Marked:
    """A message, and whether it comes from an attacker (1) or not (0)."""

    message: Any
    attacks: Traced = reduced("max")


@module
class Colluding(Wrapper):
    """Simulated colluding attackers around any method; they know the updates of all honest clients.

    What changes is the message's vector (`reduction.vector_of`: the client update, if it has one);
    the rest is honest. Goes around `Robust`. A message carries one number more, whether it is an attacker's, by
    which the simulation knows them; the inner reduction does not see it. In a round without an honest client
    everybody is honest.

    Attributes:
        inner: the method.
        attack: what attackers send.
        attackers: numbers of the clients that attack, shape (attackers,); -1 is nobody.

    Raises:
        InvalidInput: attackers that are no integers from -1.
    """

    title: ClassVar[str] = "Colluding"
    inner: Algorithm
    attack: Collusion
    attackers: Any = checked(lambda _, given: client_numbers(given))

    @property
    def reduction(self) -> Any:
        """The inner method's reduction, applied after the attackers changed their updates."""
        return _Collude(self.attack, self.inner.traits.reduction or Mean())

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        message, client = self.inner.train(broadcast, client, oracle)
        attacks = jnp.any(jnp.asarray(self.attackers) == oracle.client)
        return Marked(message, attacks.astype(jnp.float32)), client

    def receive(self, broadcast: Any, message: Any, client: Any) -> tuple[Any, Any]:
        received, client = self.inner.receive(broadcast, message.message, client)
        return Marked(received, message.attacks), client


@module
class _Collude:
    """A reduction of marked messages: the attackers' vectors are made of the others', then `then` reduces all."""

    attack: Collusion
    then: Any

    @property
    def fewest(self) -> Scalar:
        """Of the reduction that follows."""
        return self.then.fewest

    def __call__(self, messages: Any, weight: Array, used: Array) -> Any:
        attacks = messages.attacks > 0
        honest = used & ~attacks
        leaves, structure = jax.tree.flatten(messages.message)
        marks = jax.tree.leaves(vector_of(messages.message))
        own = [jnp.where(column(used, x), x, 0) for x, mark in zip(leaves, marks, strict=True) if mark]
        vector = self.attack.vector(joined(own), honest, jnp.sum(used & attacks))
        parts = iter(split(vector, own))
        change = attacks & jnp.any(honest)
        sent = [
            jnp.where(column(change, x), next(parts).astype(x.dtype), x) if mark else x
            for x, mark in zip(leaves, marks, strict=True)
        ]
        return self.then(structure.unflatten(sent), weight, used)


def client_numbers(given: Any) -> np.ndarray:
    """Numbers of clients as an array; `InvalidInput` unless they are integers from -1, which is nobody."""
    numbers = np.asarray(given)
    numbers = numbers.astype(np.int32) if numbers.size == 0 else numbers
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or (numbers < -1).any():
        raise InvalidInput(f"attackers = {given!r} must be the numbers of clients, such as (0, 3)")
    return numbers.astype(np.int32)


# Clients that attack, for simulations: what they send instead of their update, and labels they train on.
#
# `Attacked` clients act each alone and stand inside `Robust`; `Colluding` ones know what all honest clients send and
# stand around it.

_TAG = 0x61747461


class _Task(Protocol):
    """What is needed of a task, which is a layer above."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def data(self) -> Any: ...


TaskT = TypeVar("TaskT", bound=_Task)


@module
class Attack:
    """Base attack on the update of one client: it sends factor D_i + std N(0, 1) in place of D_i.

    The rest of the message is honest.

    One class for all, so that a sweep runs them in one program; `SignFlip`, `Scaled` and `GaussianNoise` name them.

    Attributes:
        factor: times its update, finite.
        std: of the noise added to each coordinate, at least 0.

    Raises:
        InvalidInput: a factor or std that is not finite, a negative std.
    """

    factor: Scalar = number()
    std: Scalar = number(at_least=0)


def SignFlip(scale: Scalar = 1.0) -> Attack:
    """Sign flipping: an attacker sends -scale D_i.

    Args:
        scale: times D_i, finite; 1 is as far uphill as the client went down.

    Returns:
        `Attack(-scale, 0.0)`, to be given to `Attacked`.

    Raises:
        InvalidInput: a scale that is not finite.
    """
    check_range("scale", scale)
    return Attack(-scale, 0.0)


def Scaled(factor: Scalar) -> Attack:
    """Scaling: an attacker sends factor D_i, to outweigh the other clients.

    Args:
        factor: times its update, finite; negative ones turn it round.

    Returns:
        `Attack(factor, 0.0)`, to be given to `Attacked`.

    Raises:
        InvalidInput: a factor that is not finite.
    """
    return Attack(factor, 0.0)


def GaussianNoise(std: Scalar) -> Attack:
    """Gaussian noise (Blanchard et al. 2017): an attacker sends std N(0, 1), new in each round, in place of D_i.

    Args:
        std: standard deviation of each coordinate, at least 0, in the units of the parameters.

    Returns:
        `Attack(0.0, std)`, to be given to `Attacked`.

    Raises:
        InvalidInput: a std that is negative or not finite.
    """
    return Attack(0.0, std)


@module
class Attacked(Wrapper):
    """Simulated attackers in any method: they do the local work, then change the update that they send.

    What changes is the message's vector (`fedsolve.methods.robust.vectors.vector_of`: the client update, if it has
    one); scalars stay honest. Goes inside `Robust`. The server cannot tell: everything else is as `inner`.

    Attributes:
        inner: the method.
        attack: what attackers send.
        attackers: numbers of the clients that attack, shape (attackers,); -1 is nobody, so that settings of a
            sweep can have equally many.

    Raises:
        InvalidInput: attackers that are no integers from -1; a message without a vector.
    """

    title: ClassVar[str] = "Attacked"
    inner: Algorithm
    attack: Attack
    attackers: Any = checked(lambda _, given: client_numbers(given))

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        message, client = self.inner.train(broadcast, client, oracle)
        attacks = jnp.any(jnp.asarray(self.attackers) == oracle.client)
        leaves, structure = jax.tree.flatten(message)
        marks = jax.tree.leaves(vector_of(message))
        if not any(
            mark and jnp.issubdtype(x.dtype, jnp.inexact) for x, mark in zip(leaves, marks, strict=True)
        ):
            raise InvalidInput(f"{name_of(self.inner)} sends no vector that an attack could change")
        # a key of its own: noise that a wrapper inside adds for privacy takes from the client's, too
        keys = jax.random.split(jax.random.fold_in(oracle.key, _TAG), len(leaves))

        def sent(x: Any, key: Any) -> Any:
            noise = jax.random.normal(key, x.shape, x.dtype)
            return jnp.where(attacks, self.attack.factor * x + self.attack.std * noise, x).astype(x.dtype)

        changed = [sent(x, k) if mark else x for x, mark, k in zip(leaves, marks, keys, strict=True)]
        return structure.unflatten(changed), client


def choose_attackers(population: int, share: float, seed: int = 0) -> tuple[int, ...]:
    """Draw attackers at random: a share of the clients, rounded to a whole number.

    With one seed, the attackers of a smaller share are among those of a larger one.

    Args:
        population: clients of the task, at least 1.
        share: of them that attack, in [0, 1].
        seed: of the draw, at least 0.

    Returns:
        round(share * population) numbers of clients, each in 0 .. population - 1, in the order of the draw.

    Raises:
        InvalidInput: a share outside [0, 1], no client, a negative seed.

    >>> choose_attackers(10, 0.2, seed=1)[:1] == choose_attackers(10, 0.1, seed=1)
    True
    """
    check_range("share", share, at_least=0, at_most=1)
    check_integer("population", population, 1)
    order = np.random.default_rng(check_integer("seed", seed)).permutation(population)
    return tuple(int(i) for i in order[: round(share * population)])


def flip_labels(task: TaskT, attackers: Sequence[int], classes: int) -> TaskT:
    """Flip the labels y of some clients to classes - 1 - y; test examples are unchanged.

    Args:
        task: a task whose examples have labels `y`, shape (n,), integers.
        attackers: numbers of the clients whose labels are flipped.
        classes: how many classes there are: labels are 0 to classes - 1.

    Returns:
        A copy with its own array of labels; the given task keeps its labels, and both share the inputs.

    Raises:
        InvalidInput: examples without labels `y` from 0 to classes - 1, or a client that is not there.
    """
    data = task.data
    labels = np.array(getattr(data.examples, "y", 0.5))
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= classes:
        raise InvalidInput(f"flip_labels needs examples with whole labels y from 0 to {classes - 1}")
    for client in attackers:
        if not 0 <= client < data.num_clients:
            raise InvalidInput(f"attacker {client}: the task has clients 0 to {data.num_clients - 1}")
        start = int(data.offsets[client])
        own = slice(start, start + int(data.counts[client]))
        labels[own] = classes - 1 - labels[own]
    examples = data.examples._replace(y=labels)
    return dataclasses.replace(task, data=FederatedData(examples, data.counts, data.names, data.columns))
