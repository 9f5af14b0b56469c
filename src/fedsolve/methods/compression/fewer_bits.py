"""Compressors that send every entry in fewer bits: casts, signs, and quantisers."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, is_one_of
from fedsolve.core.types import module, static
from fedsolve.core.wire import Packed
from fedsolve.core.xla.products import orthonormal
from fedsolve.methods.compression.compressor import Compressor, blocks, check_bits, from_blocks
from fedsolve.methods.compression.hadamard import hadamard, random_signs, row_size

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
        """The array in the shorter type."""
        return x.astype(self.dtype)

    def decode(self, sent: Array, like: jax.ShapeDtypeStruct, common: Any) -> Array:
        """The array in the model's type."""
        return sent.astype(like.dtype)

    def error(self, size: int) -> float:
        """1 - delta = 4^-p."""
        return 4.0 ** -_MANTISSA[self.dtype]


@module
class Sign(Compressor):
    """One bit an entry: the sign, times the mean absolute value (Karimireddy et al. 2019, scaled sign).

    Biased: use it with a memory. Error: delta = |x|_1^2 / (d |x|_2^2), at least 1/d.
    """

    def encode(self, x: Array, key: Any, common: Any) -> tuple[Array, Array]:
        """Whether entries are negative, and their mean absolute value."""
        return x < 0, jnp.mean(jnp.abs(x))

    def decode(self, sent: tuple[Array, Array], like: jax.ShapeDtypeStruct, common: Any) -> Array:
        """Plus or minus the mean."""
        negative, mean = sent
        return jnp.where(negative, -mean, mean).astype(like.dtype)

    def error(self, size: int) -> float:
        """1 - 1/d."""
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

    bits: int = static(default=8)

    def __post_init__(self) -> None:
        check_bits("QSGD", self.bits, 2, 16)

    @property
    def _most(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def encode(self, x: Array, key: Any, common: Any) -> tuple[Packed, Array]:
        """Levels from 0 to 2 s, and the norms of blocks."""
        rows, exponents = _scaled(blocks(x, _QSGD_BLOCK))
        norms = jnp.linalg.norm(rows, axis=1)
        scaled = self._most * jnp.abs(rows) / jnp.where(norms > 0, norms, 1)[:, None]
        levels = jnp.floor(scaled + jax.random.uniform(key, rows.shape, rows.dtype))
        signed = jnp.where(rows < 0, -levels, levels).astype(jnp.int32) + self._most
        # more than s by rounding, or whatever NaN becomes
        levels = jnp.clip(signed, 0, 2 * self._most).ravel()[: x.size]
        return Packed(levels, self.bits), jnp.ldexp(norms, exponents)

    def decode(self, sent: tuple[Packed, Array], like: jax.ShapeDtypeStruct, common: Any) -> Array:
        """Levels times norms."""
        levels, norms = sent
        rows = blocks(levels.value - self._most, _QSGD_BLOCK).astype(like.dtype)
        return from_blocks(rows * (norms / self._most)[:, None], like)

    def error(self, size: int) -> float:
        """Omega of a block."""
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

    bits: int = static(default=1)

    def __post_init__(self) -> None:
        check_bits("EDEN", self.bits, 1, 8)

    def encode(self, x: Array, key: Any, common: Any) -> tuple[Packed, Array, Array]:
        """The number of each entry's level, the scale of each block, and the seed of the rotation."""
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
        """Levels, rotated back and scaled."""
        nearest, scales, words = sent
        levels = jnp.asarray(levels_of_normal(self.bits), like.dtype)
        return from_blocks(_rotated(levels[nearest.value] * scales[:, None], words, back=True), like)

    def error(self, size: int) -> float:
        """Omega of the levels."""
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
