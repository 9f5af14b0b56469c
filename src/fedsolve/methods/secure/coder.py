"""How the client update becomes whole numbers, where a method says so itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import jax.numpy as jnp
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
