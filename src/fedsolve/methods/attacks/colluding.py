"""Simulated attackers that collude and know the updates of all honest clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtri
from jaxtyping import Array, Bool, Float

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput, check_range, is_one_of
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Scalar, Traced, module, reduced, static
from fedsolve.methods.robust.outliers import Mean
from fedsolve.methods.robust.reduction import column, joined, split, vector_of
from fedsolve.methods.wrappers.wrapper import Wrapper

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

    z: Scalar | None = None

    def __post_init__(self) -> None:
        if self.z is not None:
            check_range("z", self.z)

    def vector(self, vectors: Array, honest: Array, attackers: Scalar) -> Array:
        """The update mean - z std."""
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

    epsilon: Scalar

    def __post_init__(self) -> None:
        check_range("epsilon", self.epsilon, at_least=0)

    def vector(self, vectors: Array, honest: Array, attackers: Scalar) -> Array:
        """The update -epsilon mean."""
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

    direction: Direction = static(default="std")

    def __post_init__(self) -> None:
        if not is_one_of(self.direction, ("std", "mean", "sign")):
            raise InvalidInput(f"direction = {self.direction!r} must be 'std', 'mean' or 'sign'")

    def vector(self, vectors: Array, honest: Array, attackers: Scalar) -> Array:
        """The update mean + gamma p."""
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
    attackers: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "attackers", client_numbers(self.attackers))

    @property
    def reduction(self) -> Any:
        """The inner method's reduction, applied after the attackers changed their updates."""
        return _Collude(self.attack, self.inner.traits.reduction or Mean())

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """Run the inner local work, and mark the message of an attacker."""
        message, client = self.inner.train(broadcast, client, oracle)
        attacks = jnp.any(jnp.asarray(self.attackers) == oracle.client)
        return Marked(message, attacks.astype(jnp.float32)), client

    def receive(self, broadcast: Any, message: Any, client: Any) -> tuple[Any, Any]:
        """Decode the inner message; its mark is unchanged."""
        received, client = self.inner.receive(broadcast, message.message, client)
        return Marked(received, message.attacks), client


@module
class _Collude:
    """A reduction of marked messages: the attackers' vectors are made of the others', then `then` reduces all."""

    attack: Collusion
    then: Any

    @property
    def fewest(self) -> Scalar:
        """As of `then`."""
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
