"""Random orders that do not depend on padding, in the forms that are fastest to compile into a round.

Measured in benchmarks/FINDINGS.md: up to a few hundred places comparing all draws with one another beats
any sort on a CPU; the ranks of independent draws are themselves a uniform permutation.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from fedsolve.types import Scalar

_RANK_UP_TO = 256


def shuffled(key: Array, capacity: int, count: Scalar, take: int) -> Int[Array, " take"]:
    """The first `take` places of a uniform random order of 0 .. count - 1; beyond count they hold anything.

    The order depends on the key and the count alone, not on the capacity >= count: padding changes nothing.
    """
    bits = jax.random.bits(key, (capacity,), jnp.uint32)
    index = jnp.arange(capacity, dtype=jnp.int32)
    inside = index < count
    if capacity > _RANK_UP_TO:
        # the sort is stable, so a padded place never comes before a real one
        return lax.sort((jnp.where(inside, bits, jnp.uint32(0xFFFFFFFF)), index), num_keys=1)[1][:take]
    mine, place = bits[:take, None], index[:take, None]
    before = inside & ((bits < mine) | ((bits == mine) & (index < place)))
    return jnp.sum(before, axis=1, dtype=jnp.int32)


def choose(key: Array, population: int, size: int) -> Int[Array, " size"]:
    """`size` of `population` numbers uniformly without replacement, in random order."""
    bits = jax.random.bits(key, (population,), jnp.uint32)
    # top_k is fast for float32 alone: 30 random bits as positive normal floats, in the order of the bits
    scores = lax.bitcast_convert_type((bits >> 2) + jnp.uint32(0x00800000), jnp.float32)
    return lax.top_k(scores, size)[1]
