"""A sampling in proportion to weights."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput
from fedsolve.core.sampling.sampling import Sampling, as_given, check_size, is_small
from fedsolve.core.sampling.weighted_sampling import bounds_of, in_turn, logs_of, successively
from fedsolve.core.trees import is_not_traced
from fedsolve.core.types import Scalar, module, static


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
        object.__setattr__(self, "weights", as_given("sampling weights", self.weights))
        w = np.asarray(self.weights) if is_not_traced(self.weights) else np.zeros(0)
        if w.dtype.kind not in "iuf" or w.ndim != 1 or not (w > 0).any():
            return  # traced, or `check`'s to refuse
        object.__setattr__(self, "_logs", logs_of(w))
        if is_small(self.size, len(w)):
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
