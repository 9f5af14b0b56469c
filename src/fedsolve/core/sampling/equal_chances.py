"""Samplings in which all clients have the same chance: so many of them, or each on its own."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.checks import check_range
from fedsolve.core.sampling.binomial import draw_binomial, most_successes
from fedsolve.core.sampling.sampling import Sampling, Scheme, check_size
from fedsolve.core.sampling.shuffle import choose, is_few, true_first
from fedsolve.core.types import Scalar, module, static

TAG_SECOND_WORD = 0xB1750000  # beyond all counters at which cohorts are drawn from the key
TAG_NUMBER = 0xB1760000


@module
class Uniform(Sampling):
    """`size` clients uniformly without replacement: the default of every paper here.

    Attributes:
        size: clients of a round, 1 to all; part of the program.
    """

    never_empty: ClassVar[bool] = True
    scheme: ClassVar[Scheme] = "fixed"
    size: int = static()

    def draw(self, key: Array, round: Scalar, population: int) -> tuple[Array, Array]:
        """A uniform subset; all clients in order if size = population."""
        if self.size == population:
            return jnp.arange(population), jnp.ones(population, bool)
        return choose(key, population, self.size), jnp.ones(self.size, bool)

    def check(self, population: int) -> None:
        """1 <= size <= population."""
        check_size(self.size, population)


@module
class Bernoulli(Sampling):
    """Each client takes part with probability p, independently; a cohort may be empty.

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
        """A cohort of random size; the cost of a round grows with the size drawn."""
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
        """p N."""
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
