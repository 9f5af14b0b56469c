"""The interface of a compressor of one array, and an array as it is sent."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from functools import cache, partial
from statistics import NormalDist
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.building import checked, integer
from fedsolve.core.errors import InvalidInput, is_integer, is_one_of, is_plain_number, shown
from fedsolve.core.types import Params, Scalar, is_module, module, replace, static
from fedsolve.core.wire import Packed
from fedsolve.core.xla.products import orthonormal
from fedsolve.methods.wrappers.wrapper import Wrapper


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
        """The published bound on the error of an array of so many entries, relative to its squared norm."""
        # Of an unbiased code omega, where E |Q(x) - x|^2 <= omega |x|^2; else 1 - delta, where |Q(x) - x|^2 <= (1 -
        # delta) |x|^2, in the mean where the code is random.
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


def check_share(name: str, share: Any) -> Any:
    """The share of the entries that is sent; `InvalidInput` unless it is in (0, 1]."""
    if not (is_plain_number(share) and 0 < share <= 1):
        raise InvalidInput(f"{name}(share={share!r}): the share of entries that is sent must be in (0, 1]")
    return float(share)


def check_bits(name: str, bits: Any, least: int, most: int) -> Any:
    """The bits of an entry; `InvalidInput` unless they are an integer of a range."""
    if not is_integer(bits) or not least <= bits <= most:
        raise InvalidInput(f"{name}(bits={bits!r}): bits must be an integer from {least} to {most}")
    return int(bits)


# Codes in place of the large leaves of a model or a client update, and the randomness that they follow from.

_SEED = 0xC0DE  # of random numbers that nobody need hide: the same in simulation and deployment


def encode_leaves(
    compressor: Compressor,
    update: Params,
    common: Any,
    client: Any,
    *,
    smallest: int,
    title: str,
    shrinks: bool = False,
) -> Any:
    """An update or a model with codes in place of its leaves of at least `smallest` entries."""
    # Randomness follows from round (`common`, its `round_key`), client and leaf. With `shrinks`, an unbiased
    # compressor is divided by 1 + omega, which makes it a contraction.
    leaves, structure = jax.tree.flatten(update)
    chosen = [x.size >= smallest and compressor.fits(x.shape) for x in leaves]
    if not any(chosen):
        raise InvalidInput(
            f"{title} compresses nothing: no leaf of the model has {smallest} entries"
            " and a smaller code; set smallest="
        )
    encoded = []
    for i, (x, is_chosen) in enumerate(zip(leaves, chosen, strict=True)):
        if not is_chosen:
            encoded.append(x)
            continue
        of_leaf = jax.random.fold_in(common, i)
        own = jax.random.fold_in(of_leaf, jnp.asarray(client, jnp.uint32))
        factor = 1 / (1 + compressor.error(x.size)) if shrinks and compressor.is_unbiased else 1.0
        encoded.append(Encoded.of(compressor, x, own, of_leaf, factor))
    return structure.unflatten(encoded)


def decode_leaves(update: Any, common: Any) -> Params:
    """The arrays that stand for codes; those that were sent as they are."""
    leaves, structure = jax.tree.flatten(update, is_leaf=lambda x: isinstance(x, Encoded))
    decoded = [
        x.decode(jax.random.fold_in(common, i)) if isinstance(x, Encoded) else x for i, x in enumerate(leaves)
    ]
    return structure.unflatten(decoded)


def adds_codes(compressor: Compressor, inner: Any) -> bool:
    """Whether codes are added up as they are: they are linear, and no inner method reads single messages."""
    while isinstance(inner, Wrapper) and type(inner).receive is Wrapper.receive:
        inner = inner.inner
    return compressor.is_linear and type(inner).receive is Algorithm.receive


def round_key(round: Scalar) -> Any:
    """Randomness of a round that everybody knows."""
    return jax.random.fold_in(jax.random.key(_SEED), jnp.asarray(round, jnp.uint32))


def field_of(part: Any, name: str) -> Any:
    """A field of a broadcast or message, wherever wrappers have put it."""
    return field_of(part.inner, name) if hasattr(part, "inner") else getattr(part, name)


def with_field(part: Any, name: str, value: Any) -> Any:
    """A broadcast or message with another value of a field, wherever wrappers have put it."""
    if hasattr(part, "inner"):
        return replace(part, inner=with_field(part.inner, name, value))
    if not hasattr(part, name):
        raise InvalidInput(f"{type(part).__name__} has no field `{name}` to compress")
    return replace(part, **{name: value})


def check_compressor(title: str, compressor: Any) -> None:
    """Raise `InvalidInput` unless it is one."""
    if not isinstance(compressor, Compressor):
        raise InvalidInput(
            f"{title} needs a compressor such as fs.compression.TopK(0.01), not {compressor!r}"
        )


# Compressors that send fewer numbers: the largest entries, random entries, matrices of low rank.


def _kept(share: float, size: int) -> int:
    """Entries that are sent of so many."""
    return max(1, round(share * size))


@module
class TopK(Compressor):
    """The entries of largest absolute value (Stich et al. 2018), of an array or of each of its blocks.

    Biased: use it with a memory. Error: delta = k / d. Sent: k numbers, and their places in ceil(log2 d) bits each,
    d the entries of the array or of a block.

    Args:
        share: k / d, in (0, 1]; at least one entry is sent.
        block: entries of a block, at least 1; None for the whole array. Places in a block of 4,096 take 12 bits.
    """

    share: float = checked(check_share, name="TopK", static=True)
    block: int | None = integer(
        default=None, bits=None, name="block of TopK", none="the whole array", later=True
    )

    def encode(self, x: Array, key: Any, common: Any) -> tuple[Array, Packed]:
        rows = self._rows(x)
        _, places = lax.top_k(jnp.abs(rows), _kept(self.share, rows.shape[1]))
        values = jnp.take_along_axis(rows, places, axis=1)
        return values.ravel(), Packed(places.ravel(), max(1, (rows.shape[1] - 1).bit_length()))

    def decode(self, sent: tuple[Array, Packed], like: jax.ShapeDtypeStruct, common: Any) -> Array:
        values, places = sent
        rows = self._rows(jnp.zeros(math.prod(like.shape), like.dtype))
        kept = (rows.shape[0], -1)
        of_row = jnp.arange(rows.shape[0])[:, None]
        rows = rows.at[of_row, places.value.reshape(kept)].set(values.reshape(kept), mode="drop")
        return from_blocks(rows, like)

    def error(self, size: int) -> float:
        entries = min(size, self.block or size)
        return 1 - _kept(self.share, entries) / entries

    def _rows(self, x: Array) -> Array:
        return blocks(x, min(x.size, self.block or x.size))


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

    share: float = checked(check_share, name="RandomK", static=True)
    seed: int = integer(at_least=0, default=0, bits=None, name="seed of RandomK")

    def _places(self, size: int, common: Any) -> Array:
        """The round's entries: the k largest of random numbers."""
        draws = jax.random.uniform(jax.random.fold_in(common, self.seed), (size,), jnp.float32)
        return lax.top_k(draws, _kept(self.share, size))[1]

    def encode(self, x: Array, key: Any, common: Any) -> Array:
        # the round's entries times d / k
        kept = _kept(self.share, x.size)
        return x.ravel()[self._places(x.size, common)] * (x.size / kept)

    def decode(self, sent: Array, like: jax.ShapeDtypeStruct, common: Any) -> Array:
        size = math.prod(like.shape)
        flat = jnp.zeros(size, like.dtype)
        return flat.at[self._places(size, common)].set(sent.astype(like.dtype)).reshape(like.shape)

    def error(self, size: int) -> float:
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

    rank: int = integer(name="rank of PowerSGD")

    def fits(self, shape: tuple[int, ...]) -> bool:
        # whether the leaf is a matrix larger than P and Q
        rows, columns = shape[0] if shape else 1, math.prod(shape[1:])
        return self.rank * (rows + columns) < rows * columns

    def encode(self, x: Array, key: Any, common: Any) -> tuple[Array, Array]:
        matrix = x.reshape(x.shape[0], -1)
        start = jax.random.normal(key, (matrix.shape[1], self.rank), x.dtype)
        p = orthonormal(matrix @ start)
        return p, matrix.T @ p

    def decode(self, sent: tuple[Array, Array], like: jax.ShapeDtypeStruct, common: Any) -> Array:
        p, q = sent
        return (p @ q.T).reshape(like.shape).astype(like.dtype)

    def error(self, size: int) -> float:
        # at most 1: nothing better holds for every matrix
        return 1.0


# The Walsh-Hadamard transform of rows of numbers, and the random signs that make it a random rotation.

_LARGEST = 1024


def hadamard(rows: Array) -> Array:
    """The orthonormal Walsh-Hadamard transform of each row, its own inverse; rows of a power of two of entries."""
    count, size = rows.shape
    half = 1
    while half < size:
        pairs = rows.reshape(count, size // (2 * half), 2, half)
        rows = jnp.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
        half *= 2
    return rows.reshape(count, size) / math.sqrt(size)


def row_size(entries: int) -> int:
    """Entries of the rows in which so many are transformed: a power of two, at most 1,024."""
    return min(_LARGEST, 1 << (entries - 1).bit_length())


def random_signs(key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """Plus and minus one, the same ones in every type: `jax.random.rademacher` has others where JAX allows float64."""
    return 1 - 2 * (jax.random.bits(key, shape, jnp.uint32) >> 31).astype(dtype)


# Compressors that send every entry in fewer bits: casts, signs, and quantisers.

_QSGD_BLOCK = 512
_FEWEST_FOR_HADAMARD = 128
_HADAMARDS = 3
_MANTISSA = {"bfloat16": 8, "float16": 11}


@module
class Cast(Compressor):
    """Every number in a shorter floating-point type, rounded to nearest.

    Error: 1 - delta = 4^-p, p the bits of the mantissa (8 of bfloat16, 11 of float16), while nothing is too large or
    too small for the type.

    Args:
        dtype: `bfloat16` has the range of float32; `float16` is more exact, up to 65,504.
    """

    dtype: Literal["bfloat16", "float16"] = static(default="bfloat16")

    def __post_init__(self) -> None:
        if not is_one_of(self.dtype, tuple(_MANTISSA)):
            raise InvalidInput(f"Cast(dtype={self.dtype!r}): dtype must be 'bfloat16' or 'float16'")

    def encode(self, x: Array, key: Any, common: Any) -> Array:
        return x.astype(self.dtype)

    def decode(self, sent: Array, like: jax.ShapeDtypeStruct, common: Any) -> Array:
        return sent.astype(like.dtype)

    def error(self, size: int) -> float:
        # 1 - delta = 4^-p
        return 4.0 ** -_MANTISSA[self.dtype]


@module
class Sign(Compressor):
    """One bit an entry: the sign, times the mean absolute value (Karimireddy et al. 2019, scaled sign).

    Biased: use it with a memory. Error: delta = |x|_1^2 / (d |x|_2^2), at least 1/d.
    """

    def encode(self, x: Array, key: Any, common: Any) -> tuple[Array, Array]:
        # whether entries are negative, and their mean absolute value
        return x < 0, jnp.mean(jnp.abs(x))

    def decode(self, sent: tuple[Array, Array], like: jax.ShapeDtypeStruct, common: Any) -> Array:
        # plus or minus the mean
        negative, mean = sent
        return jnp.where(negative, -mean, mean).astype(like.dtype)

    def error(self, size: int) -> float:
        return 1 - 1 / size


@module
class QSGD(Compressor):
    """Stochastic rounding to 2 s + 1 levels, s = 2^(bits - 1) - 1, of blocks of 512 entries (Alistarh et al. 2017).

        Q(x)_i = |x| sign(x_i) l_i / s,  l_i = floor(s |x_i| / |x| + u_i),  u_i uniform in [0, 1)

    Unbiased: omega = min(d / s^2, sqrt(d) / s), d the entries of a block. Sent: bits an entry, and a norm a block.

    Args:
        bits: of an entry with its sign, 2 to 16.
    """

    is_unbiased: ClassVar[bool] = True

    bits: int = checked(partial(check_bits, least=2, most=16), default=8, name="QSGD", static=True)

    @property
    def _most(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def encode(self, x: Array, key: Any, common: Any) -> tuple[Packed, Array]:
        # levels from 0 to 2 s, and the norms of blocks
        rows, exponents = _scaled(blocks(x, _QSGD_BLOCK))
        norms = jnp.linalg.norm(rows, axis=1)
        scaled = self._most * jnp.abs(rows) / jnp.where(norms > 0, norms, 1)[:, None]
        levels = jnp.floor(scaled + jax.random.uniform(key, rows.shape, rows.dtype))
        signed = jnp.where(rows < 0, -levels, levels).astype(jnp.int32) + self._most
        # more than s by rounding, or whatever NaN becomes
        levels = jnp.clip(signed, 0, 2 * self._most).ravel()[: x.size]
        return Packed(levels, self.bits), jnp.ldexp(norms, exponents)

    def decode(self, sent: tuple[Packed, Array], like: jax.ShapeDtypeStruct, common: Any) -> Array:
        # levels times norms
        levels, norms = sent
        rows = blocks(levels.value - self._most, _QSGD_BLOCK).astype(like.dtype)
        return from_blocks(rows * (norms / self._most)[:, None], like)

    def error(self, size: int) -> float:
        # the variance factor Omega of a block
        d = min(size, _QSGD_BLOCK)
        return min(d / self._most**2, math.sqrt(d) / self._most)


@module
class EDEN(Compressor):
    """A random rotation, then each entry's nearest level for the normal distribution (Vargaftik et al. 2022).

        z = sqrt(D) R x / |x|,  q = nearest levels,  Q(x) = S R' q,  S = |x|^2 / <R x, q>

    on blocks of D = 1,024 entries (a power of two that is smaller where the array is). omega = v / (1 - v), v the mean
    squared error of the levels (0.363 at 1 bit, 0.117 at 2, 0.0345 at 3, 0.0095 at 4). One bit is DRIVE.
    Sent: bits an entry, a number a block, and the rotation's seed (8 bytes).

    Unbiased where R is uniformly random, which it is below D = 128. Above, three randomised Hadamard transforms stand
    for it, with a bias that 4,000 draws do not show (less than 0.01 |x|), also where one entry is 1,000 times the
    others. Omega is of full blocks; of one that is filled up with zeros the error is less.

    Args:
        bits: of an entry, 1 to 8.
    """

    is_unbiased: ClassVar[bool] = True

    bits: int = checked(partial(check_bits, least=1, most=8), default=1, name="EDEN", static=True)

    def encode(self, x: Array, key: Any, common: Any) -> tuple[Packed, Array, Array]:
        # the number of each entry's level, the scale of each block, and the seed of the rotation
        words = jax.random.key_data(key)
        rows, exponents = _scaled(blocks(x, row_size(x.size)))
        rotated = _rotated(rows, words)
        norms = jnp.linalg.norm(rows, axis=1, keepdims=True)
        levels = jnp.asarray(levels_of_normal(self.bits), rows.dtype)
        z = math.sqrt(rows.shape[1]) * rotated / jnp.where(norms > 0, norms, 1)
        nearest = jnp.searchsorted((levels[1:] + levels[:-1]) / 2, z).astype(jnp.int32)
        dot = jnp.sum(rotated * levels[nearest], axis=1)
        scales = jnp.where(norms[:, 0] > 0, norms[:, 0] ** 2 / jnp.where(dot > 0, dot, 1), 0)
        return Packed(nearest, self.bits), jnp.ldexp(scales, exponents), words

    def decode(self, sent: tuple[Packed, Array, Array], like: jax.ShapeDtypeStruct, common: Any) -> Array:
        # levels, rotated back and scaled
        nearest, scales, words = sent
        levels = jnp.asarray(levels_of_normal(self.bits), like.dtype)
        return from_blocks(_rotated(levels[nearest.value] * scales[:, None], words, back=True), like)

    def error(self, size: int) -> float:
        kept = float(np.sum(_masses(levels_of_normal(self.bits)) * levels_of_normal(self.bits) ** 2))
        return 1 / kept - 1


@cache
def levels_of_normal(bits: int) -> np.ndarray:
    """The 2^bits levels of least mean squared error for the standard normal distribution (Lloyd 1982, Max 1960)."""
    normal, count = NormalDist(), 2**bits
    levels = np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)])
    for _ in range(4000):
        ends = np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])
        density = np.exp(-(ends**2) / 2) / math.sqrt(2 * math.pi)
        levels = (density[:-1] - density[1:]) / _masses(levels)
    return levels


def _masses(levels: np.ndarray) -> np.ndarray:
    """The probability that a level is the nearest one."""
    ends = (levels[1:] + levels[:-1]) / 2
    below = np.array([0.0, *(NormalDist().cdf(float(x)) for x in ends), 1.0])
    return np.diff(below)


def _scaled(rows: Array) -> tuple[Array, Array]:
    """Rows over a power of two each, whose squares neither under- nor overflow, and its exponents; no bit is lost."""
    exponents = jnp.frexp(jnp.max(jnp.abs(rows), axis=1))[1]
    return jnp.ldexp(rows, -exponents[:, None]), exponents


def _rotated(rows: Array, words: Array, back: bool = False) -> Array:
    """R of each row, or R'. After one Hadamard transform an entry that is alone is in equal parts, and the levels drop
    what lies beside it: a bias of up to |x|. After two it is 0.04 |x| (D = 256, one bit), after three none is seen."""
    key, size = jax.random.wrap_key_data(words), rows.shape[1]
    if size < _FEWEST_FOR_HADAMARD:
        # normal numbers, the same ones in every type; LAPACK's Q alone is not uniform, its signs are of its making
        bits = jax.random.bits(key, (size, size), jnp.uint32) >> 9
        normal = jax.scipy.special.erfinv((2 * bits.astype(rows.dtype) + 1) / 2**23 - 1)
        rotation = orthonormal(normal) * random_signs(jax.random.fold_in(key, 1), (size,), rows.dtype)
        return rows @ (rotation.T if back else rotation)
    signs = random_signs(key, (_HADAMARDS, size), rows.dtype)
    for sign in reversed(signs) if back else signs:
        rows = hadamard(rows) * sign if back else hadamard(rows * sign)
    return rows


@module
class Chain(Compressor):
    """A compressor that sends fewer numbers, whose numbers a second one sends in fewer bits.

        c = first(x),   sent: c with second(v) in place of its numbers v

    Unbiased if both are: omega = (1 + omega_1) (1 + omega_2) - 1. Else the mean error is at most
    1 - delta_1 (1 - e_2), e_2 the bound of the second: below 1 where e_2 is, as of EDEN from 2 bits on; QSGD with few
    bits is not. Sent: what both send; places go as they are.

    Args:
        first: `TopK`, `RandomK` or `PowerSGD`.
        second: `Cast`, `Sign`, `QSGD` or `EDEN`.
    """

    first: Compressor = static()
    second: Compressor = static()

    def __post_init__(self) -> None:
        for name, given, kinds in (
            ("first", self.first, (TopK, RandomK, PowerSGD)),
            ("second", self.second, (Cast, Sign, QSGD, EDEN)),
        ):
            if not isinstance(given, kinds):
                known = ", ".join(kind.__name__ for kind in kinds)
                raise InvalidInput(f"Chain: {name} = {shown(given)} must be one of {known}")

    @property
    def is_unbiased(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.first.is_unbiased and self.second.is_unbiased

    def fits(self, shape: tuple[int, ...]) -> bool:
        return self.first.fits(shape)

    def encode(self, x: Array, key: Any, common: Any) -> Any:
        sent = self.first.encode(x, key, common)
        leaves, structure = jax.tree.flatten(sent, is_leaf=_is_packed)
        return structure.unflatten(
            [
                v if _is_packed(v) else Encoded.of(self.second, v, jax.random.fold_in(key, i), common, 1.0)
                for i, v in enumerate(leaves)
            ]
        )

    def decode(self, sent: Any, like: jax.ShapeDtypeStruct, common: Any) -> Array:
        def plain(v: Any) -> Any:
            return v.decode(common) if isinstance(v, Encoded) else v

        parts = jax.tree.map(plain, sent, is_leaf=lambda v: isinstance(v, Encoded) or _is_packed(v))
        return self.first.decode(parts, like, common)

    def error(self, size: int) -> float:
        one, two = self.first.error(size), self.second.error(size)
        if self.is_unbiased:
            return (1 + one) * (1 + two) - 1
        return 1 - (1 - one) * (1 - two) if two < 1 and not self.first.is_unbiased else math.inf


def _is_packed(x: Any) -> bool:
    return isinstance(x, Packed)


# Squared norms of client updates that the server takes from what it decodes, in place of what clients send.


def decoded_squared_norm(update: Any, common: Any) -> Scalar:
    """An unbiased estimate of |D_i|^2 from the codes of D_i: each leaf's |Q(x)|^2 / (1 + omega), omega its bound."""
    leaves = jax.tree.leaves(update, is_leaf=lambda x: isinstance(x, Encoded))
    parts = []
    for i, x in enumerate(leaves):
        is_code = isinstance(x, Encoded)
        decoded = x.decode(jax.random.fold_in(common, i)) if is_code else x
        parts.append(jnp.sum(decoded**2) / (1 + x.compressor.error(decoded.size) if is_code else 1))
    return sum(parts[1:], parts[0])


def with_squared_norm(message: Any, value: Any) -> Any:
    """A message with `value` in each field that claims to be |D_i|^2."""
    changed, count = updated_squared_norm(message, value)
    if not count:
        raise InvalidInput(
            "norms = 'decoded' is for methods whose server steps by |D_i|^2, such as FedExP or FedDuAdam"
        )
    return changed


def updated_squared_norm(part: Any, value: Any) -> tuple[Any, int]:
    """A message with `value` in each field that claims to be |D_i|^2, and how many there are."""
    if not is_module(part):
        return part, 0
    changes, count = {}, 0
    for f in dataclasses.fields(part):
        claim = f.metadata.get("claim")
        if claim is not None and claim.of_delta is trees.squared_norm:
            changes[f.name], count = value, count + 1
        elif not f.metadata.get("static"):
            inner, found = updated_squared_norm(getattr(part, f.name), value)
            if found:
                changes[f.name], count = inner, count + found
    return (replace(part, **changes) if changes else part), count
