"""The interface of a compressor of one array, and an array as it is sent."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import module, static


class Compressor(ABC):
    """Base class of compressors: what stands for one array in a message.

    Concrete classes are modules whose fields are all static: they fix the size of what is sent.

    Attributes:
        is_unbiased: whether the mean of what is decoded is the array itself.
        is_linear: whether the code of a mean is the mean of the codes. The server may then add up codes.
    """

    is_unbiased: ClassVar[bool] = False
    is_linear: ClassVar[bool] = False

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape has a code that is smaller than the array; else it is sent as it is."""
        return True

    @abstractmethod
    def encode(self, x: Array, key: Any, common: Any) -> Any:
        """What is sent for an array.

        Args:
            x: floating-point numbers of any shape.
            key: the client's own randomness of the round.
            common: randomness that the server and all clients of a round share.

        Returns:
            A pytree of arrays and of parts of `fedsolve.wire`.
        """

    @abstractmethod
    def decode(self, sent: Any, like: jax.ShapeDtypeStruct, common: Any) -> Array:
        """The array that stands for what was sent, of the shape and type of `like`."""

    def error(self, size: int) -> float:
        """The published bound on the error of an array of so many entries, relative to its squared norm.

        Of an unbiased code omega, where E |Q(x) - x|^2 <= omega |x|^2; else 1 - delta, where
        |Q(x) - x|^2 <= (1 - delta) |x|^2, in the mean where the code is random.
        """
        return math.inf


@module
class Encoded:
    """An array as it is sent, by which compressor, and what it is multiplied by when it is decoded."""

    sent: Any
    compressor: Compressor = static()
    shape: tuple[int, ...] = static()
    dtype: Any = static()
    factor: float = static()

    @classmethod
    def of(cls, compressor: Compressor, x: Array, key: Any, common: Any, factor: float) -> Encoded:
        """The code of an array; NaN in every number of it where the array is not finite."""
        fine = trees.array_is_finite(x)
        sent = compressor.encode(x, key, common)
        floats = jax.tree.map(
            lambda y: jnp.where(fine, y, jnp.nan) if jnp.issubdtype(y.dtype, jnp.inexact) else y, sent
        )
        return cls(floats, compressor, x.shape, x.dtype, factor)

    def decode(self, common: Any) -> Array:
        """The array that stands for it."""
        like = jax.ShapeDtypeStruct(self.shape, self.dtype)
        return (self.factor * self.compressor.decode(self.sent, like, common)).astype(self.dtype)


def is_compressed(update: Any) -> bool:
    """Whether a client update has a code in place of one of its leaves."""
    return any(
        isinstance(x, Encoded) for x in jax.tree.leaves(update, is_leaf=lambda x: isinstance(x, Encoded))
    )


def blocks(x: Array, size: int) -> Array:
    """The entries of an array in rows of `size`, zeros at the end."""
    flat = x.ravel()
    rows = -(-flat.size // size)
    return jnp.pad(flat, (0, rows * size - flat.size)).reshape(rows, size)


def from_blocks(rows: Array, like: jax.ShapeDtypeStruct) -> Array:
    """The array whose `blocks` these are."""
    return rows.ravel()[: math.prod(like.shape)].reshape(like.shape).astype(like.dtype)


def check_share(name: str, share: Any) -> None:
    """Raise `InvalidInput` unless a share of the entries is in (0, 1]."""
    if not (isinstance(share, int | float) and 0 < share <= 1):
        raise InvalidInput(f"{name}(share={share!r}): the share of entries that is sent must be in (0, 1]")


def check_bits(name: str, bits: Any, least: int, most: int) -> None:
    """Raise `InvalidInput` unless a number of bits is an integer of a range."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not least <= bits <= most:
        raise InvalidInput(f"{name}(bits={bits!r}): bits must be an integer from {least} to {most}")
