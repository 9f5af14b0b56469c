"""Who takes part in a round. A sampling is pluggable: `draw` returns padded client ids and who is present."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from fedsolve.core.checks import as_array, check_integer, check_range
from fedsolve.core.errors import InvalidInput
from fedsolve.core.sampling.binomial import draw_binomial, most_successes
from fedsolve.core.sampling.shuffle import choose, choose_at_most, is_few, true_first
from fedsolve.core.sampling.weighted_sampling import bounds_of, in_turn, logs_of, successively
from fedsolve.core.trees import is_not_traced
from fedsolve.core.types import Scalar, module, static

__all__ = [
    "Bernoulli",
    "Sampling",
    "Scheme",
    "Trace",
    "Uniform",
    "Weighted",
]

Scheme = Literal["fixed", "poisson", "other"]

TAG_SECOND_WORD = 0xB1750000  # beyond all counters at which cohorts are drawn from the key
TAG_NUMBER = 0xB1760000


class Sampling(ABC):
    """Draws the cohort of each round; present clients are best listed first, so that idle chunks are skipped.

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
        """Ids of the cohort, each at most once, padded to a fixed capacity, and which of them are present.

        Args:
            key: a random key of the round.
            round: its number, from 0.
            population: clients N.

        Returns:
            Integers (capacity,) and booleans (capacity,).
        """

    def started(self, round: Scalar) -> Any:
        """What `Cohort.started` is in a round: None where all begin with its broadcast.

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
        """Raise `InvalidInput` if it is known that no client takes part in so many rounds.

        Args:
            rounds: of a run.

        Raises:
            InvalidInput: none does.
        """
        return

    def expected(self, population: int) -> float | None:
        """Clients of a round on average (the most of them, where a trace limits them); None if it cannot say.

        Args:
            population: clients N.

        Returns:
            A number in 0 .. N, or None.
        """
        return getattr(self, "size", None)

    def at_best(self, population: int) -> float | None:
        """Clients of the largest cohort where all are listed, of a cohort on average where its size is random.

        Args:
            population: clients N.

        Returns:
            A number in 0 .. N, or None.
        """
        return self.expected(population)


def _check_size(size: Any, population: int) -> None:
    if check_integer("clients_per_round", size, 1) > population:
        raise InvalidInput(
            f"clients_per_round = {size} but the task has {population} clients: choose at most {population}"
        )


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
        _check_size(self.size, population)


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


def _small(size: Any, population: int) -> bool:
    """Whether so many are drawn at the cost of a cohort; a size that is none is `check`'s to refuse."""
    return isinstance(size, int) and size > 0 and is_few(size, population)


@module
class Weighted(Sampling):
    """`size` clients without replacement, drawn one by one in proportion to weights.

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
        object.__setattr__(self, "weights", _given_array("sampling weights", self.weights))
        w = np.asarray(self.weights) if is_not_traced(self.weights) else np.zeros(0)
        if w.dtype.kind not in "iuf" or w.ndim != 1 or not (w > 0).any():
            return  # traced, or `check`'s to refuse
        object.__setattr__(self, "_logs", logs_of(w))
        if _small(self.size, len(w)):
            object.__setattr__(self, "_bounds", bounds_of(w))

    def draw(self, key: Array, round: Scalar, population: int) -> tuple[Array, Array]:
        """Clients in the order in which they were drawn."""
        here = jnp.ones(self.size, bool)
        logs = jnp.log(self.weights) if self._logs is None else jnp.asarray(self._logs)
        if self._bounds is not None:
            return successively(key, jnp.asarray(self._bounds), logs, self.size), here
        return in_turn(key, logs, self.size), here

    def check(self, population: int) -> None:
        """One non-negative weight per client, enough of them positive."""
        _check_size(self.size, population)
        w = np.asarray(self.weights)
        if w.shape != (population,) or not np.isfinite(w).all() or (w < 0).any():
            raise InvalidInput(
                f"sampling weights of shape {w.shape} must be {population} finite numbers >= 0"
            )
        if (w > 0).sum() < self.size:
            raise InvalidInput(
                f"clients_per_round = {self.size} but only {(w > 0).sum()} weights are positive"
            )


@module
class Trace(Sampling):
    """At most `size` clients uniformly among those that an availability trace shows in this round.

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
        object.__setattr__(self, "available", _given_array("availability trace", self.available))
        trace: Any = np.asarray(self.available) if is_not_traced(self.available) else np.zeros(0)
        if trace.dtype == bool and trace.ndim == 2 and _small(self.size, trace.shape[1]):
            ends = np.cumsum([0, *trace.sum(axis=1)])
            if ends[-1] < 2**31:  # what a list's places are counted in
                object.__setattr__(
                    self, "_listed", (np.nonzero(trace)[1].astype(np.int32), ends.astype(np.int32))
                )

    def draw(self, key: Array, round: Scalar, population: int) -> tuple[Array, Array]:
        """Available clients in random order, cut to `size`."""
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
        """Clients of the round in which most are available, at most `size`."""
        return min(self.size, int(np.asarray(self.available).sum(axis=1).max()))

    def check(self, population: int) -> None:
        """The trace has one column per client."""
        _check_size(self.size, population)
        shape = np.shape(self.available)
        if np.asarray(self.available).dtype != bool:
            raise InvalidInput("availability trace must hold booleans")
        if len(shape) != 2 or shape[1] != population or shape[0] < 1:
            raise InvalidInput(f"availability trace has shape {shape}: it must be (period, {population})")
        self.check_rounds(shape[0])

    def check_rounds(self, rounds: int) -> None:
        """Somebody is there in one of so many rounds.

        Args:
            rounds: of a run.

        Raises:
            InvalidInput: nobody is.
        """
        trace = np.asarray(self.available)
        if not trace[:rounds].any():
            which = f"the first {rounds} rounds" if rounds < len(trace) else "any round"
            raise InvalidInput(
                f"the availability trace shows no client in {which}: no client would take part"
            )


def _given_array(name: str, values: Any) -> Any:
    """Lists as an array; anything else as it is."""
    return as_array(name, values) if isinstance(values, list | tuple) else values


def _present_first(present: Array) -> tuple[Array, Array]:
    order = true_first(present)
    return order, present[order]


def __dir__() -> list[str]:
    return sorted(__all__)
