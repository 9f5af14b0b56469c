"""The Walsh-Hadamard transform of rows of numbers, and the random signs that make it a random rotation."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

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
