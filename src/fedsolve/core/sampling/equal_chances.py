"""Samplings in which all clients have the same chance: so many of them, or each on its own."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.checks import check_range
from fedsolve.core.sampling.sampling import Sampling, Scheme, check_size, choose, is_few, true_first
from fedsolve.core.types import Scalar, module, static

TAG_SECOND_WORD = 0xB1750000  # beyond all counters at which cohorts are drawn from the key
TAG_NUMBER = 0xB1760000


@module
class Uniform(Sampling):
    """Uniform sampling: `size` clients drawn uniformly without replacement, as in most papers.

    Attributes:
        size: clients of a round, 1 to all; part of the program.
    """

    never_empty: ClassVar[bool] = True
    scheme: ClassVar[Scheme] = "fixed"
    size: int = static()

    def draw(self, key: Array, round: Scalar, population: int) -> tuple[Array, Array]:
        """Draw a uniform subset; all clients in order if size = population."""
        if self.size == population:
            return jnp.arange(population), jnp.ones(population, bool)
        return choose(key, population, self.size), jnp.ones(self.size, bool)

    def check(self, population: int) -> None:
        """Raise `InvalidInput` unless 1 <= size <= population."""
        check_size(self.size, population)


@module
class Bernoulli(Sampling):
    """Poisson sampling: each client takes part independently with probability p; a cohort may be empty.

    The draw is exact to 2^-64, so that a privacy accountant counts what is drawn however small p is. Of more than 4,096
    clients, where no cohort is likely to have a sixteenth of them, the number is drawn first, by the binomial law, then
    so many clients without replacement: the same law, at the cost of a cohort.

    Attributes:
        p: in (0, 1]; part of the program.

    Raises:
        InvalidInput: p is no number in (0, 1].
    """

    scheme: ClassVar[Scheme] = "poisson"
    p: float = static()

    def __post_init__(self) -> None:
        check_range("participation", self.p, above=0, at_most=1)
        object.__setattr__(self, "p", float(self.p))

    def draw(self, key: Array, round: Scalar, population: int) -> tuple[Array, Array]:
        """Draw a cohort of random size; the cost of a round grows with the size."""
        if (most := self._most(population)) is None:
            return _present_first(_below(self.p, key, population))
        number = draw_binomial(jax.random.fold_in(key, TAG_NUMBER), population, self.p)
        return choose(key, population, most), jnp.arange(most) < number

    def _most(self, population: int) -> int | None:
        """Clients of the largest cohort where all cohorts are few, else None."""
        if not is_few(math.ceil(self.p * population), population):
            return None
        most = max(1, most_successes(population, self.p))
        return most if is_few(most, population) else None

    def expected(self, population: int) -> float:
        """The expected size p N."""
        return self.p * population


def _below(p: float, key: Array, count: int) -> Array:
    """Booleans of shape (count,), each true with probability floor(2^64 p) / 2^64: whole numbers are compared.

    A uniform float has 23 bits and is 0 with chance 2^-23: it is below any p, however small.
    """
    bound = int(Fraction(p) * 2**64)
    if bound == 2**64:
        return jnp.ones(count, bool)
    high, low = divmod(bound, 2**32)
    if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        bits = jax.random.bits(key, (count,), jnp.uint64)
        first, second = bits >> 32, bits & (2**32 - 1)
    else:
        first = jax.random.bits(key, (count,), jnp.uint32)
        second = jax.random.bits(jax.random.fold_in(key, TAG_SECOND_WORD), (count,), jnp.uint32)
    high, low = jnp.asarray(high, first.dtype), jnp.asarray(low, second.dtype)
    return (first < high) | ((first == high) & (second < low))


def _present_first(present: Array) -> tuple[Array, Array]:
    order = true_first(present)
    return order, present[order]


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
