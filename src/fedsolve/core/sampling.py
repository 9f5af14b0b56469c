"""Client sampling: how the cohort of each round is drawn."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from fractions import Fraction
from functools import cache
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Bool, Float, Int, UInt32

from fedsolve.core.errors import InvalidInput, check_integer, check_range
from fedsolve.core.trees import as_array, is_not_traced
from fedsolve.core.types import Scalar, module, static

__all__ = ["Bernoulli", "Sampling", "Scheme", "Trace", "Uniform", "Weighted"]

# The interface of a sampling, who takes part in a round; random orders and draws, also of minibatches.
#
# Orders do not depend on padding, in the forms that are fastest to compile into a round (benchmarks/FINDINGS.md): up
# to a few hundred places comparing all draws with one another beats any sort on a CPU; the ranks of independent draws
# are themselves a uniform permutation.

_RANK_UP_TO = 256
_SHUFFLED_UP_TO = 4096
DIFFERENT_EPOCHS = 1024
"""After so many epochs of one round the orders repeat."""


def shuffled(
    key: Array, client: Scalar, epoch: Scalar, capacity: int, count: Scalar, take: int
) -> Int[Array, " take"]:
    """The first `take` places of a client's random order of 0 .. count - 1; beyond count they hold anything."""
    # the order depends on the key, the client, the epoch and the count alone, not on the capacity >= count:
    # padding changes nothing
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
    # Threefry at the counters (client + 1, epoch and index): one hash where folding keys would take three
    # counters whose first word is 0 are those of `jax.random` with the same key, hence the + 1. The epoch has
    # ten bits (`DIFFERENT_EPOCHS`).
    low = jnp.uint32(epoch) * jnp.uint32(1 << 22) + index.astype(jnp.uint32)
    high = jnp.broadcast_to(jnp.uint32(client) + jnp.uint32(1), low.shape)
    return threefry_2x32(jax.random.key_data(key), jnp.concatenate([high, low]))[: len(index)]


def choose(key: Array, population: int, size: int) -> Int[Array, " size"]:
    """`size` of `population` numbers uniformly without replacement, in random order."""
    # its cost is that of `size` numbers where it `is_few`, else that of all
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
    """Whether so many of a population are drawn by themselves, without a look at the others."""
    # populations up to 4,096 are always shuffled whole, so that their cohorts stay what they have always been
    return population > _SHUFFLED_UP_TO and 16 * size <= population


def _first_different(key: Array, population: Scalar, size: int) -> Int[Array, " size"]:
    # the first `size` different numbers of a sequence of independent uniform ones, of at least 16 `size`
    # words of 32 bits beyond the last multiple of the population are skipped, so that its law is exact. The
    # sequence is a quarter and 64 longer than `size`: it is too short, and number 0 comes twice, with a chance
    # below 10^-50 (a binomial tail: up to 10^8 clients a number is skipped with chance 1/16 + 10^8 / 2^32 at
    # most).
    length = size + size // 4 + 64
    population = jnp.asarray(population, jnp.uint32)
    bits = jax.random.bits(key, (length,), jnp.uint32)
    over = (jnp.uint32(2**32 - 1) % population + 1) % population  # words beyond the last multiple
    fits = bits <= jnp.uint32(2**32 - 1) - over
    none = population.astype(jnp.int32)
    return different(jnp.where(fits, (bits % population).astype(jnp.int32), none), none)[0][:size]


def different(numbers: Int[Array, " length"], none: Scalar) -> tuple[Int[Array, " length"], Scalar]:
    """The different numbers of a sequence in the order in which they first come, zeros after them, and how many."""
    # those that are `none`, above all others, are left out
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
    if check_integer("clients_per_round", size, 1) > population:
        raise InvalidInput(
            f"clients_per_round = {size} but the task has {population} clients: choose at most {population}"
        )


def check_everyone(name: str, sampling: Any, population: int, instead: str) -> None:
    drawn = sampling.expected(population)
    if drawn is None or drawn < population:
        few = "" if drawn is None else f", and the sampling draws {drawn:g}"
        given = f"{name} needs all {population} clients in each round{few}"
        raise InvalidInput(f"{given}: leave clients_per_round and sampling out, or take {instead}")


def is_small(size: Any, population: int) -> bool:
    """Whether so many are drawn at the cost of a cohort; a size that is no integer above 0 is left to `check`."""
    return isinstance(size, int) and size > 0 and is_few(size, population)


def as_given(name: str, values: Any) -> Any:
    """What a user gave as an array: lists become one, anything else stays as it is."""
    return as_array(name, values) if isinstance(values, list | tuple) else values


# Samplings in which all clients have the same chance: so many of them, or each on its own.

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
            present = _below(self.p, key, population)
            order = true_first(present)
            return order, present[order]
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
    # booleans of shape (count,), each true with probability floor(2^64 p) / 2^64: whole numbers are compared
    # a uniform float has 23 bits and is 0 with chance 2^-23: it is below any p, however small
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


_BITS = 160  # of the likeliest number's weight, in whole numbers
_NEGLIGIBLE = 2**70  # weights below are left out: 2^-90 of it


def draw_binomial(key: Array, trials: int, p: float) -> Scalar:
    """How many of so many independent trials succeed, each with probability p in (0, 1), by inversion."""
    # each probability P(X <= k) is right to 2^-64; the number is at most `most_successes`
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
    # the least number k with floor(2^64 P(X <= k)) > 0, and these whole numbers from there on, all below 2^64 - 1
    # weights follow from one another, w(k + 1) / w(k) = (n - k) / (k + 1) p / (1 - p), from the likeliest number on
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


# A sampling in proportion to weights: clients one after another without replacement, at the cost of a cohort.
#
# A sequence of independent draws in proportion to the weights, of which repeats are skipped, has the law of drawing
# one by one among those who are left. Which draws are a client's is worked out once, for the whole population.


@module
class Weighted(Sampling):
    """Weighted sampling: `size` clients without replacement, drawn one by one in proportion to weights.

    Of up to 4,096 clients, or where a cohort has more than a sixteenth of them, those of the smallest exponential
    numbers divided by their weights; else the different ones of a sequence of draws: the same law, at the cost of a
    cohort. A client whose weight is 10^-15 of another's is still drawn as often as the law says.

    Attributes:
        weights: an array or a list, shape (clients,), at least 0, more than `size` - 1 of them positive.
        size: clients per round.

    Raises:
        InvalidInput: weights that are no array of numbers.
    """

    never_empty: ClassVar[bool] = True
    weights: Array
    size: int = static()
    _bounds: Any = dataclasses.field(init=False, repr=False, default=None)
    _logs: Any = dataclasses.field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", as_given("sampling weights", self.weights))
        w = np.asarray(self.weights) if is_not_traced(self.weights) else np.zeros(0)
        if w.dtype.kind not in "iuf" or w.ndim != 1 or not (w > 0).any():
            return  # traced, or `check`'s to refuse
        object.__setattr__(self, "_logs", logs_of(w))
        if is_small(self.size, len(w)):
            object.__setattr__(self, "_bounds", bounds_of(w))

    def draw(self, key: Array, round: Scalar, population: int) -> tuple[Array, Array]:
        """Draw clients; they are listed in the order of the draw."""
        here = jnp.ones(self.size, bool)
        logs = jnp.log(self.weights) if self._logs is None else jnp.asarray(self._logs)
        if self._bounds is not None:
            return successively(key, jnp.asarray(self._bounds), logs, self.size), here
        return in_turn(key, logs, self.size), here

    def check(self, population: int) -> None:
        """Raise `InvalidInput` unless there is a non-negative weight per client, and enough of them are positive."""
        check_size(self.size, population)
        w = np.asarray(self.weights)
        if w.shape != (population,) or not np.isfinite(w).all() or (w < 0).any():
            raise InvalidInput(
                f"sampling weights of shape {w.shape} must be {population} finite numbers >= 0"
            )
        if (w > 0).sum() < self.size:
            raise InvalidInput(
                f"clients_per_round = {self.size} but only {(w > 0).sum()} weights are positive"
            )


_TAG_REST = 0xB1770000  # beyond all counters at which cohorts are drawn from the key
# of 64 bits that are some client's; rounding never makes them more than all
_WORDS = 2.0**64 * (1 - 2.0**-20)


def bounds_of(weights: Float[np.ndarray, " clients"]) -> UInt32[np.ndarray, "2 clients"]:
    """Below which word of 64 bits the draws of each client end, as their upper and lower halves."""
    # each client's chance is right to 2^-52 of it and 2^-64 of all
    share = np.asarray(weights, np.float64) / np.max(weights)
    ends = np.cumsum((share / share.sum() * _WORDS).astype(np.uint64))
    return np.stack([ends >> np.uint64(32), ends & np.uint64(2**32 - 1)]).astype(np.uint32)


def logs_of(weights: Float[np.ndarray, " clients"]) -> Float[np.ndarray, " clients"]:
    """Logarithms of the weights as parts of the largest, in float64: float32 has no weight of 1e-50."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.asarray(weights, np.float64) / np.max(weights))


def successively(
    key: Array, bounds: UInt32[Array, "2 clients"], logs: Float[Array, " clients"], size: int
) -> Int[Array, " size"]:
    """`size` different clients, drawn one by one in proportion to weights, in the order in which they were drawn."""
    # where few clients have most of the weight the sequence can be too short: the rest is then drawn from all
    # who are left, which costs what the population does
    # bounds: as `bounds_of` gives them
    population = bounds.shape[1]
    high, low = jax.random.bits(key, (2, 2 * size + 64), jnp.uint32)
    clients, count = different(_client_of(high, low, bounds), population)
    clients = clients[:size]

    def filled() -> Array:
        place = jnp.arange(size)
        seen = jnp.where(place < count, clients, population)
        others = logs.at[seen].set(-jnp.inf, mode="drop")
        rest = in_turn(jax.random.fold_in(key, _TAG_REST), others, size)
        return jnp.where(place < count, clients, rest[place - count])

    return lax.cond(count >= size, lambda: clients, filled)


def in_turn(key: Array, logs: Float[Array, " clients"], size: int) -> Int[Array, " size"]:
    """`size` different clients in the order of E_i / w_i, E_i exponential: the law of drawing them one by one."""
    # each chance is right to 2^-64 of the largest, and to the rounding of the logarithms. It costs what the
    # population does.
    high, low = jax.random.bits(key, (2, *logs.shape), jnp.uint32)
    return lax.top_k(logs - jnp.log(exponentials(high, low, logs.dtype)), size)[1]


def exponentials(
    high: UInt32[Array, " clients"], low: UInt32[Array, " clients"], dtype: jnp.dtype
) -> Float[Array, " clients"]:
    """Exponential numbers from words of 64 bits, above 0 and finite, whose two tails are right to 2^-64."""
    # `jax.random.gumbel` and `exponential` take a uniform number of 23 bits: what is rarer than 2^-23 never
    # happens. Here the last bit says which half a number lies in, the others how far it lies from 0 or 1.
    nearer = low >> 1
    end = (high.astype(dtype) + (nearer.astype(dtype) + 0.5) * 2.0**-31) * 2.0**-33
    return jnp.where(low % 2 == 1, -jnp.log(end), -jnp.log1p(-end))


def _client_of(high: Array, low: Array, bounds: Array) -> Array:
    # the first client whose bound lies above a word, the population where none does: by halving what is left
    first = jnp.zeros(high.shape, jnp.int32)
    population = bounds.shape[1]
    for step in reversed([2**i for i in range(population.bit_length())]):
        last = jnp.minimum(first + step, population) - 1  # of those that may lie below
        up, down = bounds[0, last], bounds[1, last]
        below = (up < high) | ((up == high) & (down <= low))
        first = jnp.where(below & (first + step <= population), first + step, first)
    return first


# A sampling among the clients that an availability trace shows.


@module
class Trace(Sampling):
    """Sampling from an availability trace: at most `size` clients, uniformly among those available in the round.

    Of more than 4,096 clients, where a cohort has at most a sixteenth of them, at the cost of a cohort: who is there in
    which row is listed once.

    Attributes:
        available: an array or lists, shape (period, clients), booleans; round t looks at row t mod period.
        size: clients per round at most; fewer where fewer are available, perhaps none.

    Raises:
        InvalidInput: a trace that is no array.
    """

    available: Bool[Array, "period clients"]
    size: int = static()
    _listed: Any = dataclasses.field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "available", as_given("availability trace", self.available))
        trace: Any = np.asarray(self.available) if is_not_traced(self.available) else np.zeros(0)
        if trace.dtype == bool and trace.ndim == 2 and is_small(self.size, trace.shape[1]):
            ends = np.cumsum([0, *trace.sum(axis=1)])
            if ends[-1] < 2**31:  # what a list's places are counted in
                object.__setattr__(
                    self, "_listed", (np.nonzero(trace)[1].astype(np.int32), ends.astype(np.int32))
                )

    def draw(self, key: Array, round: Scalar, population: int) -> tuple[Array, Array]:
        """Draw available clients in random order, at most `size`."""
        if self._listed is not None:
            clients, ends = (jnp.asarray(a) for a in self._listed)
            row = round % (len(ends) - 1)
            place, here = choose_at_most(key, ends[row + 1] - ends[row], self.size)
            return clients.at[ends[row] + place].get(mode="clip"), here
        trace = jnp.asarray(self.available)
        row = trace[round % trace.shape[0]]
        order = choose(key, population, population)
        first = true_first(row[order])[: self.size]
        return order[first], row[order][first]

    def at_best(self, population: int) -> float:
        """The clients of the round in which most are available, at most `size`."""
        return min(self.size, int(np.asarray(self.available).sum(axis=1).max()))

    def check(self, population: int) -> None:
        check_size(self.size, population)
        shape = np.shape(self.available)
        if np.asarray(self.available).dtype != bool:
            raise InvalidInput("availability trace must hold booleans")
        if len(shape) != 2 or shape[1] != population or shape[0] < 1:
            raise InvalidInput(f"availability trace has shape {shape}: it must be (period, {population})")
        self.check_rounds(shape[0])

    def check_rounds(self, rounds: int) -> None:
        trace = np.asarray(self.available)
        if not trace[:rounds].any():
            which = f"the first {rounds} rounds" if rounds < len(trace) else "any round"
            raise InvalidInput(
                f"the availability trace shows no client in {which}: no client would take part"
            )
