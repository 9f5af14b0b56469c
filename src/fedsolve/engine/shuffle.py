"""Random permutations that do not depend on padding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from fedsolve.types import Scalar


def shuffled(key: Array, capacity: int, count: Scalar | None = None) -> Int[Array, " capacity"]:
    """A uniform random order of 0 .. count - 1 in the first `count` places of an array of `capacity`.

    The order depends on the key and the count alone, not on the capacity, so padding changes nothing.
    """
    bits = jax.random.bits(key, (capacity,), jnp.uint32)
    index = jnp.arange(capacity, dtype=jnp.int32)
    absent = jnp.zeros(capacity, jnp.uint32) if count is None else (index >= count).astype(jnp.uint32)
    return lax.sort((absent, bits, index), num_keys=3)[2] if count is not None else lax.sort((bits, index))[1]
