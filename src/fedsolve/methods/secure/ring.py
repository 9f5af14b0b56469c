"""Whole numbers as elements of the integers modulo 2^32 or 2^64, and back.

Elements of 64 bits are four limbs of 16 bits in words of 32: limbs of up to 65,535 clients add up without a carry, so
that no program needs 64-bit integers.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core.wire import Ring

_LIMB, _BASE, _MASK = 16, 2.0**16, 0xFFFF
LIMBS = 4
MOST_CLIENTS = 2**16 - 1
"""Clients whose elements of 64 bits may be added up."""


def to_ring(numbers: Array, fine: Array, bits: int) -> Ring:
    """Whole numbers of size below 2^(bits - 1) as ring elements; negative ones are 2^bits less.

    Args:
        numbers: floating-point whole numbers of any shape.
        fine: 0, or NaN where they are of a message that is not finite.
        bits: 32 or 64.
    """
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
    """The limbs of 2^64 minus a number; the lowest may be 2^16."""
    return (_MASK - digits).at[..., 0].add(jnp.uint32(1))


def _normalised(limbs: Array) -> Array:
    """Limbs below 2^16 of the same number modulo 2^64, from limbs of up to 32 bits."""
    carry, digits = jnp.zeros_like(limbs[..., 0]), []
    for i in range(LIMBS):
        total = limbs[..., i] + carry
        digits.append(total & _MASK)
        carry = total >> _LIMB
    return jnp.stack(digits, axis=-1)
