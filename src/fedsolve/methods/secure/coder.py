"""How the client update becomes whole numbers, where a method says so itself (`Coder`); and fixed point."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import jax.numpy as jnp
import jax.random
import numpy as np
from jaxtyping import Array

from fedsolve.core.types import Params, Scalar


class Coder(ABC):
    """How client updates become whole numbers that are added up, and what their sum means.

    A method that a `Secure` wraps may offer one as `update_coder`, for the field `delta` of its message: noise that
    clients share is such. Without one, updates are sent in fixed point.

    Attributes:
        most: the largest size of one whole number of one client, noise included.
    """

    most: float

    @abstractmethod
    def encode(self, update: Params, round: Scalar, client: Scalar) -> list[Array]:
        """The whole numbers of a client update, as floating-point arrays of any shapes.

        Args:
            update: floating-point arrays.
            round, client: numbers that randomness follows from, which is no secret.
        """

    def noise(self, numbers: list[Array], key: Any) -> list[Array]:
        """Whole numbers that a simulation's client adds, of the shapes of `numbers`; a deployment's draws its own."""
        return [jnp.zeros_like(x) for x in numbers]

    @abstractmethod
    def decode(self, sums: list[Array], clients: Scalar, like: Params, round: Scalar) -> Params:
        """The mean client update.

        Args:
            sums: of the whole numbers of all clients, as floating-point arrays.
            clients: how many, at least 1.
            like: arrays of the shapes and types of an update.
            round: its number.
        """


_EXPONENTS = 100  # of scales, which are float32 numbers


def single(bound: float) -> float:
    """The largest float32 number up to a bound: no number of any type that is clipped to it exceeds the bound.

    >>> single(0.1) <= 0.1, single(0.5)
    (True, 0.5)
    """
    nearest = np.float32(bound)
    return float(nearest if float(nearest) <= bound else np.nextafter(nearest, np.float32(0)))


def scale_exponent(bits: int, clients: int, bound: float) -> int:
    """The largest f such that so many numbers of size at most bound x 2^f, rounded up, have a sum of so many bits.

    >>> [scale_exponent(32, n, 1.0) for n in (10, 100, 1000)]
    [27, 24, 21]

    Args:
        bits: of the ring's elements, with the sign.
        clients: at least 1.
        bound: largest size of one number, > 0.
    """
    f = min(math.floor(math.log2(2.0 ** (bits - 1) / (clients * bound))) + 1, _EXPONENTS)
    while clients * math.ceil(math.ldexp(bound, f)) >= 2 ** (bits - 1):
        f -= 1
    return f


def round_at_random(x: Array, key: Any) -> Array:
    """Each number rounded down or up, so that its mean is the number itself; whole numbers stay.

    Of a number that is large for its type the fraction is 0, and nothing is added to it.
    """
    whole = jnp.floor(x)
    return whole + (jax.random.uniform(key, x.shape, x.dtype) < x - whole).astype(x.dtype)
