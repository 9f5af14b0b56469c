"""Clients one after another without replacement, in proportion to weights, at the cost of a cohort.

A sequence of independent draws in proportion to the weights, of which repeats are skipped, has the law of drawing one
by one among those who are left. Which draws are a client's is worked out once, for the whole population.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, UInt32

from fedsolve.shuffle import different

_TAG_REST = 0xB1770000  # beyond all counters at which cohorts are drawn from the key
_WORDS = 2.0**64 * (
    1 - 2.0**-20
)  # of 64 bits that are some client's; rounding never makes them more than all


def bounds_of(weights: Float[np.ndarray, " clients"]) -> UInt32[np.ndarray, "2 clients"]:
    """Below which word of 64 bits the draws of each client end, as their upper and lower halves.

    Each client's chance is right to 2^-52 of it and 2^-64 of all.
    """
    share = np.asarray(weights, np.float64) / np.max(weights)
    ends = np.cumsum((share / share.sum() * _WORDS).astype(np.uint64))
    return np.stack([ends >> np.uint64(32), ends & np.uint64(2**32 - 1)]).astype(np.uint32)


def successively(
    key: Array, bounds: UInt32[Array, "2 clients"], weights: Float[Array, " clients"], size: int
) -> Int[Array, " size"]:
    """`size` different clients, drawn one by one in proportion to weights, in the order in which they were drawn.

    Where few clients have most of the weight the sequence can be too short: the rest is then drawn from all who are
    left, which costs what the population does.
    """
    population = bounds.shape[1]
    high, low = jax.random.bits(key, (2, 2 * size + 64), jnp.uint32)
    clients, found = different(_client_of(high, low, bounds), population)
    clients = clients[:size]

    def filled() -> Array:
        place = jnp.arange(size)
        seen = jnp.where(place < found, clients, population)
        random = jax.random.gumbel(jax.random.fold_in(key, _TAG_REST), (population,), mode="high")
        scores = (jnp.log(weights) + random).at[seen].set(-jnp.inf, mode="drop")
        rest = lax.top_k(scores, size)[1]
        return jnp.where(place < found, clients, rest[place - found])

    return lax.cond(found >= size, lambda: clients, filled)


def _client_of(high: Array, low: Array, bounds: Array) -> Array:
    """The first client whose bound lies above a word, the population where none does: by halving what is left."""
    first = jnp.zeros(high.shape, jnp.int32)
    population = bounds.shape[1]
    for step in reversed([2**i for i in range(population.bit_length())]):
        last = jnp.minimum(first + step, population) - 1  # of those that may lie below
        up, down = bounds[0, last], bounds[1, last]
        below = (up < high) | ((up == high) & (down <= low))
        first = jnp.where(below & (first + step <= population), first + step, first)
    return first
