"""Rounding at random to whole numbers whose norm stays within a bound (Kairouz, Liu and Steinke 2021, Section 4.2)."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

_BETA = 2.0**-40
_TRIES = 50


def rounded_norm(norm: float, entries: int, beta: float = _BETA) -> float:
    """The bound on the norm of a rounded vector that one rounding exceeds with probability at most beta.

        min(c + sqrt(d), sqrt(c^2 + d/4 + sqrt(2 log(1/beta)) (c + sqrt(d)/2)))

    Args:
        norm: c, that of the vector is at most this.
        entries: d.
        beta: in (0, 1).
    """
    root = math.sqrt(entries)
    squared = norm**2 + entries / 4 + math.sqrt(-2 * math.log(beta)) * (norm + root / 2)
    return min(norm + root, math.sqrt(squared))


def most_entries(norm: float, bound: float) -> int:
    """The largest number of entries, a power of two, whose `rounded_norm` is within a bound; 0 for none."""
    entries = 1
    while rounded_norm(norm, entries) <= bound:
        entries *= 2
    return entries // 2


def norm_of(rows: Array) -> Array:
    """The norm of an array of two axes: in 32 bits sums of sums are more exact than one sum."""
    return jnp.linalg.norm(jnp.linalg.norm(rows, axis=1))


def round_within(x: Array, bound: float, key: Any) -> Array:
    """The vector rounded down or up at random, each entry without bias, again until its norm is within the bound.

    Rounded towards 0 where 50 tries exceed it, or where it is not finite.

    Args:
        x: floating-point numbers of two axes, norm at most `bound`.
        bound: at least `rounded_norm` of the norm of x, so that no try is expected to fail.
        key: of the rounding.
    """

    def once(tries: Any) -> Array:
        below = jnp.floor(x)
        up = jax.random.uniform(jax.random.fold_in(key, tries), x.shape, x.dtype) < x - below
        return below + up.astype(x.dtype)

    def again(state: tuple[Any, Array]) -> tuple[Any, Array]:
        return state[0] + 1, once(state[0] + 1)

    def exceeds(whole: Array) -> Array:
        return jnp.logical_not(norm_of(whole) <= bound)

    _, whole = lax.while_loop(
        lambda state: (state[0] < _TRIES) & exceeds(state[1]), again, (jnp.int32(1), once(1))
    )
    return jnp.where(exceeds(whole), jnp.trunc(x), whole)
