"""Fixed point: numbers of known size times a power of two, rounded to whole numbers at random."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.types import Scalar
from fedsolve.core.wire import Ring
from fedsolve.methods.secure.ring import from_ring, to_ring

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


class Number(NamedTuple):
    """A leaf of a message: its path, how it is reduced, its bits, its bound, and f, where 2^-f is a unit."""

    name: str
    by: str
    bits: int
    bound: float
    exponent: int


def encode_leaf(x: Array, number: Number, weight: Scalar, key: Any, fine: Array) -> tuple[Ring, Array]:
    """A leaf as ring elements round(2^f w clip(x, -B, B)), and how many of its numbers were clipped.

    Args:
        x: floating-point numbers of any shape.
        number: of the leaf.
        weight: w, in [0, 1].
        key: of the rounding.
        fine: 0, or NaN for a message that is not finite; its type is that of the message.
    """
    within = jnp.clip(x, -number.bound, number.bound).astype(fine.dtype)
    scaled = weight * within * 2.0**number.exponent
    clipped = jnp.sum(within != x).astype(fine.dtype)
    return to_ring(round_at_random(scaled, key), fine, number.bits), clipped


def decode_leaf(ring: Ring, number: Number, divisor: Scalar, dtype: Any) -> Array:
    """The mean of a leaf, from the sum of its ring elements and that of the weights."""
    return from_ring(ring, dtype) * 2.0**-number.exponent / divisor
