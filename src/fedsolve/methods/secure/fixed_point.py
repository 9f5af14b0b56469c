"""Numbers in fixed point, rounded at random, as elements of the integers modulo 2^32 or 2^64."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.core.types import Params, Scalar
from fedsolve.core.wire import Ring


class Coder(ABC):
    """How client updates become whole numbers that are added up, and what their sum means.

    A method that a `Secure` wraps may offer one as `update_coder`, for the field `delta` of its message: noise that
    clients share is such. Without one, updates are sent in fixed point. `most` is the largest size of one whole
    number of one client, noise included; `beside` names scalars of the message that follow from the update and are
    sent with it.
    """

    most: float

    @property
    def beside(self) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def encode(self, update: Params, round: Scalar, client: Scalar) -> list[Array]:
        """The whole numbers of a client update, as floating-point arrays; round and client are no secret."""

    def noise(self, numbers: list[Array], key: Any) -> list[Array]:
        """Whole numbers that a simulation's client adds, of the shapes of `numbers`; a deployment's draws its own."""
        return [jnp.zeros_like(x) for x in numbers]

    @abstractmethod
    def decode(self, sums: list[Array], clients: Scalar, like: Params, round: Scalar) -> list[Array]:
        """The leaves of the mean client update, of shapes and types of `like`, and the means of `beside`, from sums."""


# Whole numbers as elements of the integers modulo 2^32 or 2^64, and back.
#
# Elements of 64 bits are four limbs of 16 bits in words of 32: limbs of up to 65,535 clients add up without a carry,
# so that no program needs 64-bit integers.

_LIMB, _BASE, _MASK = 16, 2.0**16, 0xFFFF
LIMBS = 4
MOST_CLIENTS = 2**16 - 1
"""Clients whose elements of 64 bits may be added up."""


def to_ring(numbers: Array, fine: Array, bits: int) -> Ring:
    """Whole numbers of size below 2^(bits - 1) as ring elements; negative ones are 2^bits less."""
    # `numbers` are floating-point; `fine` is 0, or NaN where they are of a message that is not finite.
    numbers = jnp.where(jnp.isnan(fine), 0, numbers)
    if bits == 32:
        return Ring(lax.bitcast_convert_type(numbers.astype(jnp.int32), jnp.uint32), fine, bits)
    rest, limbs = jnp.abs(numbers), []
    for i in reversed(range(LIMBS)):  # exact: each step takes the leading digits off a number
        limb = jnp.floor(rest / _BASE**i)
        rest = rest - limb * _BASE**i
        limbs.append(limb.astype(jnp.uint32))
    digits = jnp.stack(limbs[::-1], axis=-1)
    return Ring(jnp.where((numbers < 0)[..., None], _negated(digits), digits), fine, bits)


def from_ring(ring: Ring, dtype: Any) -> Array:
    """The whole numbers of ring elements or of their sum, as floating-point numbers, rounded to their type."""
    if ring.bits == 32:
        return lax.bitcast_convert_type(ring.value, jnp.int32).astype(dtype)
    digits = _normalised(ring.value)
    is_negative = digits[..., -1] >= 2 ** (_LIMB - 1)
    size = jnp.where(is_negative[..., None], _normalised(_negated(digits)), digits).astype(dtype)
    value = sum(size[..., i] * _BASE**i for i in reversed(range(LIMBS)))
    return jnp.where(is_negative, -value, value)


def _negated(digits: Array) -> Array:
    return (_MASK - digits).at[..., 0].add(jnp.uint32(1))


def _normalised(limbs: Array) -> Array:
    """Limbs below 2^16 of the same number modulo 2^64, from limbs of up to 32 bits."""
    carry, digits = jnp.zeros_like(limbs[..., 0]), []
    for i in range(LIMBS):
        total = limbs[..., i] + carry
        digits.append(total & _MASK)
        carry = total >> _LIMB
    return jnp.stack(digits, axis=-1)


# Fixed point: numbers of known size times a power of two, rounded to whole numbers at random.

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
    """
    f = min(math.floor(math.log2(2.0 ** (bits - 1) / (clients * bound))) + 1, _EXPONENTS)
    while clients * math.ceil(math.ldexp(bound, f)) >= 2 ** (bits - 1):
        f -= 1
    return f


def round_at_random(x: Array, key: Any) -> Array:
    """Each number rounded down or up, so that its mean is the number itself; whole numbers stay."""
    # Of a number that is large for its type the fraction is 0, and nothing is added to it.
    whole = jnp.floor(x)
    return whole + (jax.random.uniform(key, x.shape, x.dtype) < x - whole).astype(x.dtype)


class Number(NamedTuple):
    """A leaf of a message: its path, how it is reduced, its bits, its bound, and f, where 2^-f is a unit."""

    name: str
    by: str
    bits: int
    bound: float
    exponent: int


def encode_leaf(x: Array, number: Number, weight: Scalar, key: Any, fine: Array) -> tuple[Ring, Array]:
    """A leaf as ring elements round(2^f w clip(x, -B, B)), w in [0, 1], and how many of its numbers were clipped."""
    # `fine` is 0, or NaN for a message that is not finite; its type is that of the message.
    within = jnp.clip(x, -number.bound, number.bound).astype(fine.dtype)
    scaled = weight * within * 2.0**number.exponent
    clipped = jnp.sum(within != x).astype(fine.dtype)
    return to_ring(round_at_random(scaled, key), fine, number.bits), clipped


def decode_leaf(ring: Ring, number: Number, divisor: Scalar, dtype: Any) -> Array:
    """The mean of a leaf, from the sum of its ring elements and that of the weights."""
    return from_ring(ring, dtype) * 2.0**-number.exponent / divisor
