"""What attackers send who know what every honest client sends: one vector for all of them, made from that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import ndtri
from jaxtyping import Array, Bool, Float

from fedsolve.core.checks import check_range, is_one_of
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Scalar, module, static

Direction = Literal["std", "mean", "sign"]


class Collusion(ABC):
    """What attackers send who know the honest vectors of a round. All honest clients count alike."""

    @abstractmethod
    def vector(
        self, vectors: Float[Array, "clients d"], honest: Bool[Array, " clients"], attackers: Scalar
    ) -> Float[Array, " d"]:
        """The vector that every attacker sends.

        Args:
            vectors: what the clients would send; rows that are not honest may hold anything finite.
            honest: who is, at least one.
            attackers: how many attack in this round.

        Returns:
            Shape (d,), of the type of `vectors`.
        """


@module
class ALittleIsEnough(Collusion):
    """mean - z std of the honest vectors, a coordinate at a time (Baruch, Baruch and Goldberg 2019, Algorithm 3).

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
        """mean - z std."""
        mean, std = _moments(vectors, honest)
        return mean - (self._z(jnp.sum(honest), attackers) if self.z is None else self.z) * std

    @staticmethod
    def _z(honest: Scalar, attackers: Scalar) -> Scalar:
        supporters = jnp.maximum((honest + attackers) // 2 + 1 - attackers, 1)
        return ndtri(jnp.maximum((honest - supporters) / honest, 0.5))


@module
class InnerProductManipulation(Collusion):
    """-epsilon mean of the honest vectors (Xie, Koyejo and Gupta 2019): it turns the update against the mean.

    Attributes:
        epsilon: times the mean, at least 0; small ones lie among the honest vectors where these differ enough.

    Raises:
        InvalidInput: an epsilon that is negative or not finite.
    """

    epsilon: Scalar

    def __post_init__(self) -> None:
        check_range("epsilon", self.epsilon, at_least=0)

    def vector(self, vectors: Array, honest: Array, attackers: Scalar) -> Array:
        """-epsilon mean."""
        return -self.epsilon * _moments(vectors, honest)[0]


@module
class MinMax(Collusion):
    """As far from the honest mean as the honest are from one another (Shejwalkar and Houmansadr 2021, Section IV).

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
        """mean + gamma p."""
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
