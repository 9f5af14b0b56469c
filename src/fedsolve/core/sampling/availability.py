"""A sampling among the clients that an availability trace shows."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from fedsolve.core.errors import InvalidInput
from fedsolve.core.sampling.sampling import (
    Sampling,
    as_given,
    check_size,
    choose,
    choose_at_most,
    is_small,
    true_first,
)
from fedsolve.core.trees import is_not_traced
from fedsolve.core.types import Scalar, module, static


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
        """Raise `InvalidInput` unless the trace has one column for each client."""
        check_size(self.size, population)
        shape = np.shape(self.available)
        if np.asarray(self.available).dtype != bool:
            raise InvalidInput("availability trace must hold booleans")
        if len(shape) != 2 or shape[1] != population or shape[0] < 1:
            raise InvalidInput(f"availability trace has shape {shape}: it must be (period, {population})")
        self.check_rounds(shape[0])

    def check_rounds(self, rounds: int) -> None:
        """Raise `InvalidInput` unless a client is available in one of the rounds.

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
