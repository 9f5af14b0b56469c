"""The interface of a sampling: who takes part in a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import jax
from jaxtyping import Array, Bool, Int

from fedsolve.core.arrays.leaf import as_array
from fedsolve.core.checks import check_integer
from fedsolve.core.errors import InvalidInput
from fedsolve.core.sampling.shuffle import is_few
from fedsolve.core.types import Scalar

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

    def training_key(self, run_key: Array, round: Scalar) -> Any:
        """The key from which the local work of a round follows.

        Args:
            run_key: the key of all rounds.
            round: its number, from 0.

        Returns:
            The key of the round; `fedsolve.engine.compute.keys.OrderKeys` if clients have different ones.
        """
        return jax.random.fold_in(run_key, round)

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
