"""Compressors that send fewer numbers: the largest entries, random entries, matrices of low rank."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core.errors import check_integer
from fedsolve.core.types import module, static
from fedsolve.core.wire import Packed
from fedsolve.core.xla.products import orthonormal
from fedsolve.methods.compression.compressor import Compressor, check_share


def _kept(share: float, size: int) -> int:
    """Entries that are sent of so many."""
    return max(1, round(share * size))


@module
class TopK(Compressor):
    """The entries of largest absolute value (Stich et al. 2018).

    Biased: use it with a memory. Error: delta = k / d. Sent: k numbers, and their places in ceil(log2 d) bits each.

    Args:
        share: k / d, in (0, 1]; at least one entry is sent.
    """

    share: float = static()

    def __post_init__(self) -> None:
        check_share("TopK", self.share)

    def encode(self, x: Array, key: Any, common: Any) -> tuple[Array, Packed]:
        """The k largest entries and their places."""
        flat = x.ravel()
        _, places = lax.top_k(jnp.abs(flat), _kept(self.share, flat.size))
        return flat[places], Packed(places, max(1, (flat.size - 1).bit_length()))

    def decode(self, sent: tuple[Array, Packed], like: jax.ShapeDtypeStruct, common: Any) -> Array:
        """The entries in their places, zeros elsewhere."""
        values, places = sent
        flat = jnp.zeros(math.prod(like.shape), like.dtype)
        return flat.at[places.value].set(values, mode="drop").reshape(like.shape)

    def error(self, size: int) -> float:
        """1 - k / d."""
        return 1 - _kept(self.share, size) / size


@module
class RandomK(Compressor):
    """Random entries times d / k, the same ones for all clients of a round.

    Unbiased over rounds: omega = d / k - 1. Linear, so that the server needs only the sum of the codes. Sent: k
    numbers. The entries follow from the number of the round and from `seed`.

    Args:
        share: k / d, in (0, 1]; at least one entry is sent.
        seed: another one chooses other entries.
    """

    is_unbiased: ClassVar[bool] = True
    is_linear: ClassVar[bool] = True

    share: float = static()
    seed: int = static(default=0)

    def __post_init__(self) -> None:
        check_share("RandomK", self.share)
        check_integer("seed of RandomK", self.seed, 0)

    def _places(self, size: int, common: Any) -> Array:
        """The round's entries: the k largest of random numbers."""
        draws = jax.random.uniform(jax.random.fold_in(common, self.seed), (size,), jnp.float32)
        return lax.top_k(draws, _kept(self.share, size))[1]

    def encode(self, x: Array, key: Any, common: Any) -> Array:
        """The round's entries times d / k."""
        kept = _kept(self.share, x.size)
        return x.ravel()[self._places(x.size, common)] * (x.size / kept)

    def decode(self, sent: Array, like: jax.ShapeDtypeStruct, common: Any) -> Array:
        """The entries in their places, zeros elsewhere."""
        size = math.prod(like.shape)
        flat = jnp.zeros(size, like.dtype)
        return flat.at[self._places(size, common)].set(sent.astype(like.dtype)).reshape(like.shape)

    def error(self, size: int) -> float:
        """Omega = d / k - 1."""
        return size / _kept(self.share, size) - 1


@module
class PowerSGD(Compressor):
    """A matrix of low rank by one step of subspace iteration (Vogels et al. 2019), from a random start each round.

        P = orthonormal(M Q),  Q = M' P,  sent in place of M:  P Q'

    A leaf is the matrix of its first axis and all others; vectors, and matrices no larger than P and Q, are sent as
    they are. Biased: use it with a memory. The error is at most that of sending nothing (delta >= 0); it is 0 for
    matrices of this rank. Sent: rank (m + n) numbers for m n.

    Args:
        rank: columns of P and Q, >= 1.
    """

    rank: int = static()

    def __post_init__(self) -> None:
        check_integer("rank of PowerSGD", self.rank, 1, bits=31)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether the leaf is a matrix larger than P and Q."""
        rows, columns = shape[0] if shape else 1, math.prod(shape[1:])
        return self.rank * (rows + columns) < rows * columns

    def encode(self, x: Array, key: Any, common: Any) -> tuple[Array, Array]:
        """P and Q."""
        matrix = x.reshape(x.shape[0], -1)
        start = jax.random.normal(key, (matrix.shape[1], self.rank), x.dtype)
        p = orthonormal(matrix @ start)
        return p, matrix.T @ p

    def decode(self, sent: tuple[Array, Array], like: jax.ShapeDtypeStruct, common: Any) -> Array:
        """P Q'."""
        p, q = sent
        return (p @ q.T).reshape(like.shape).astype(like.dtype)

    def error(self, size: int) -> float:
        """At most 1: nothing better holds for every matrix."""
        return 1.0
