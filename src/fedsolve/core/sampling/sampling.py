"""The interface of a sampling, who takes part in a round; random orders and draws, also of minibatches.

Orders do not depend on padding, in the forms that are fastest to compile into a round (benchmarks/FINDINGS.md): up to a
few hundred places comparing all draws with one another beats any sort on a CPU; the ranks of independent draws are
themselves a uniform permutation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Bool, Int

from fedsolve.core.arrays.leaf import as_array
from fedsolve.core.checks import check_integer
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Scalar

_RANK_UP_TO = 256
_SHUFFLED_UP_TO = 4096
DIFFERENT_EPOCHS = 1024
"""After so many epochs of one round the orders repeat."""


def shuffled(
    key: Array, client: Scalar, epoch: Scalar, capacity: int, count: Scalar, take: int
) -> Int[Array, " take"]:
    """The first `take` places of a client's random order of 0 .. count - 1; beyond count they hold anything.

    The order depends on the key, the client, the epoch and the count alone, not on the capacity >= count:
    padding changes nothing.
    """
    index = jnp.arange(capacity, dtype=jnp.int32)
    bits = _bits_at(key, client, epoch, index)
    inside = index < count
    if capacity > _RANK_UP_TO:
        # the sort is stable, so a padded place never comes before a real one; its inverse are the ranks
        order = lax.sort((jnp.where(inside, bits, jnp.uint32(0xFFFFFFFF)), index), num_keys=1)[1]
        return jnp.zeros_like(index).at[order].set(index, unique_indices=True)[:take]
    mine, place = bits[:take, None], index[:take, None]
    before = inside & ((bits < mine) | ((bits == mine) & (index < place)))
    return jnp.sum(before, axis=1, dtype=jnp.int32)


def _bits_at(key: Array, client: Scalar, epoch: Scalar, index: Array) -> Array:
    """Threefry at the counters (client + 1, epoch and index): one hash where folding keys would take three.

    Counters whose first word is 0 are those of `jax.random` with the same key, hence the + 1. The epoch has ten
    bits (`DIFFERENT_EPOCHS`).
    """
    low = jnp.uint32(epoch) * jnp.uint32(1 << 22) + index.astype(jnp.uint32)
    high = jnp.broadcast_to(jnp.uint32(client) + jnp.uint32(1), low.shape)
    return threefry_2x32(jax.random.key_data(key), jnp.concatenate([high, low]))[: len(index)]


def choose(key: Array, population: int, size: int) -> Int[Array, " size"]:
    """`size` of `population` numbers uniformly without replacement, in random order.

    Its cost is that of `size` numbers where it `is_few`, else that of all.
    """
    if is_few(size, population):
        return _first_different(key, population, size)
    bits = jax.random.bits(key, (population,), jnp.uint32)
    # top_k is fast for float32 alone: 30 random bits as positive normal floats, in the order of the bits
    scores = lax.bitcast_convert_type((bits >> 2) + jnp.uint32(0x00800000), jnp.float32)
    return lax.top_k(scores, size)[1]


def choose_at_most(key: Array, count: Scalar, size: int) -> tuple[Int[Array, " size"], Bool[Array, " size"]]:
    """`size` of `count` numbers uniformly without replacement, all where there are fewer, and which are some."""

    def shuffled() -> tuple[Array, Array]:
        inside = jnp.arange(16 * size) < count
        order = jnp.argsort(jnp.where(inside, jax.random.bits(key, inside.shape) >> 1, jnp.uint32(2**31)))[
            :size
        ]
        return order.astype(jnp.int32), inside[order]

    def drawn() -> tuple[Array, Array]:
        return _first_different(key, count, size), jnp.ones(size, bool)

    return lax.cond(count < 16 * size, shuffled, drawn)


def is_few(size: int, population: int) -> bool:
    """Whether so many of a population are drawn by themselves, without a look at the others.

    Populations up to 4,096 are always shuffled whole, so that their cohorts stay what they have always been.
    """
    return population > _SHUFFLED_UP_TO and 16 * size <= population


def _first_different(key: Array, population: Scalar, size: int) -> Int[Array, " size"]:
    """The first `size` different numbers of a sequence of independent uniform ones, of at least 16 `size`.

    Words of 32 bits beyond the last multiple of the population are skipped, so that its law is exact. The sequence is
    a quarter and 64 longer than `size`: it is too short, and number 0 comes twice, with a chance below 10^-50
    (a binomial tail: up to 10^8 clients a number is skipped with chance 1/16 + 10^8 / 2^32 at most).
    """
    length = size + size // 4 + 64
    population = jnp.asarray(population, jnp.uint32)
    bits = jax.random.bits(key, (length,), jnp.uint32)
    over = (jnp.uint32(2**32 - 1) % population + 1) % population  # words beyond the last multiple
    fits = bits <= jnp.uint32(2**32 - 1) - over
    none = population.astype(jnp.int32)
    return different(jnp.where(fits, (bits % population).astype(jnp.int32), none), none)[0][:size]


def different(numbers: Int[Array, " length"], none: Scalar) -> tuple[Int[Array, " length"], Scalar]:
    """The different numbers of a sequence in the order in which they first come, zeros after them, and how many.

    Those that are `none`, above all others, are left out.
    """
    length = len(numbers)
    # the sort is stable: of equal numbers the one that came first is new
    value, position = lax.sort((numbers, jnp.arange(length, dtype=jnp.int32)), num_keys=1)
    new = (value < none) & jnp.concatenate([jnp.ones(1, bool), value[1:] != value[:-1]])
    ordered = lax.sort((jnp.where(new, position, length), jnp.where(new, value, 0)), num_keys=1)[1]
    return ordered, jnp.sum(new, dtype=jnp.int32)


def true_first(flags: Array) -> Int[Array, " places"]:
    """The places of booleans of shape (places,): those that are true, then the others, each in order."""
    index = jnp.arange(len(flags), dtype=jnp.int32)
    before = jnp.cumsum(flags, dtype=jnp.int32)
    target = jnp.where(flags, before - 1, before[-1] + index - before)
    return jnp.zeros_like(index).at[target].set(index, unique_indices=True)


Scheme = Literal["fixed", "poisson", "other"]
"""Kind of sampling for privacy accounting: a fixed number of clients, independent draws, or neither."""


class Sampling(ABC):
    """Base class of client samplings, which draw the cohort of each round.

    `draw` should list present clients first, so that idle chunks are skipped.

    Attributes:
        never_empty: every cohort has a client; then no care for empty ones is compiled.
        scheme: what it is to a privacy accountant: so many clients uniformly (`fixed`), each on its own with one
            probability (`poisson`), or neither.
    """

    never_empty: ClassVar[bool] = False
    scheme: ClassVar[Scheme] = "other"

    @abstractmethod
    def draw(
        self, key: Array, round: Scalar, population: int
    ) -> tuple[Int[Array, " capacity"], Bool[Array, " capacity"]]:
        """Draw the ids of a cohort, each at most once, padded to a fixed capacity, and a mask of those present.

        Args:
            key: a random key of the round.
            round: its number, from 0.
            population: clients N.

        Returns:
            Integers (capacity,) and booleans (capacity,).
        """

    def started(self, round: Scalar) -> Any:
        """The value of `Cohort.started` in a round; None if all clients start from this round's broadcast.

        Args:
            round: its number, from 0.

        Returns:
            (ids, versions) as `Cohort.started` has them, or None.
        """
        return None

    def check(self, population: int) -> None:
        """Raise `InvalidInput` if the sampling does not fit the population.

        Args:
            population: clients N.

        Raises:
            InvalidInput: it does not fit; what would.
        """
        return

    def check_rounds(self, rounds: int) -> None:
        """Raise `InvalidInput` if no client can take part in this number of rounds.

        Args:
            rounds: of a run.

        Raises:
            InvalidInput: none does.
        """
        return

    def expected(self, population: int) -> float | None:
        """The expected number of clients in a round (at most, for a trace); None if it is unknown.

        Args:
            population: clients N.

        Returns:
            A number in 0 .. N, or None.
        """
        return getattr(self, "size", None)

    def at_best(self, population: int) -> float | None:
        """The size of the largest cohort if sizes are listed, or the average size if they are random.

        Args:
            population: clients N.

        Returns:
            A number in 0 .. N, or None.
        """
        return self.expected(population)


def check_size(size: Any, population: int) -> None:
    """Raise `InvalidInput` unless the size of a cohort is an integer from 1 to the population."""
    if check_integer("clients_per_round", size, 1) > population:
        raise InvalidInput(
            f"clients_per_round = {size} but the task has {population} clients: choose at most {population}"
        )


def is_small(size: Any, population: int) -> bool:
    """Whether so many are drawn at the cost of a cohort; a size that is no integer above 0 is left to `check`."""
    return isinstance(size, int) and size > 0 and is_few(size, population)


def as_given(name: str, values: Any) -> Any:
    """What a user gave as an array: lists become one, anything else stays as it is."""
    return as_array(name, values) if isinstance(values, list | tuple) else values
