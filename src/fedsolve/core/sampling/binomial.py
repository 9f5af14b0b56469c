"""A binomial number drawn inside a compiled program, with the law that an accountant of privacy counts on."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.types import Scalar

_BITS = 160  # of the likeliest number's weight, in whole numbers
_NEGLIGIBLE = 2**70  # weights below are left out: 2^-90 of it


def draw_binomial(key: Array, trials: int, p: float) -> Scalar:
    """How many of so many independent trials succeed, each with probability p in (0, 1), by inversion.

    Each probability P(X <= k) is right to 2^-64; the number is at most `most_successes`.
    """
    least, bounds = _bounds(trials, p)
    high, low = (jnp.asarray(words, jnp.uint32) for words in divmod(np.array(bounds, np.uint64), 2**32))
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    reached = (high < first) | ((high == first) & (low <= second))
    return least + jnp.sum(reached, dtype=jnp.int32)


def most_successes(trials: int, p: float) -> int:
    """The least number that is exceeded with a probability below 2^-64."""
    least, bounds = _bounds(trials, p)
    return least + len(bounds)


@cache
def _bounds(trials: int, p: float) -> tuple[int, tuple[int, ...]]:
    """The least number k with floor(2^64 P(X <= k)) > 0, and these whole numbers from there on, all below 2^64 - 1.

    Weights follow from one another, w(k + 1) / w(k) = (n - k) / (k + 1) p / (1 - p), from the likeliest number on.
    """
    share = Fraction(p)
    yes, no = share.numerator, share.denominator - share.numerator
    middle = int((trials + 1) * share)
    up, down = [2**_BITS], []
    k = middle
    while k < trials and up[-1] > _NEGLIGIBLE:
        up.append(up[-1] * (trials - k) * yes // ((k + 1) * no))
        k += 1
    k, weight = middle, 2**_BITS
    while k > 0 and weight > _NEGLIGIBLE:
        weight = weight * k * no // ((trials - k + 1) * yes)
        down.append(weight)
        k -= 1
    weights = [*reversed(down), *up]
    total, so_far, bounds = sum(weights), 0, []
    for weight in weights:
        so_far += weight
        bounds.append((so_far << 64) // total)
    first = sum(b == 0 for b in bounds)
    return k + first, tuple(b for b in bounds if 0 < b < 2**64 - 1)
