"""A sampling in proportion to weights: clients one after another without replacement, at the cost of a cohort.

A sequence of independent draws in proportion to the weights, of which repeats are skipped, has the law of drawing one
by one among those who are left. Which draws are a client's is worked out once, for the whole population.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, UInt32

from fedsolve.core.errors import InvalidInput
from fedsolve.core.sampling.sampling import Sampling, as_given, check_size, different, is_small
from fedsolve.core.trees import is_not_traced
from fedsolve.core.types import Scalar, module, static


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
    """Below which word of 64 bits the draws of each client end, as their upper and lower halves.

    Each client's chance is right to 2^-52 of it and 2^-64 of all.
    """
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
    """`size` different clients, drawn one by one in proportion to weights, in the order in which they were drawn.

    Args:
        key: a random key.
        bounds: as `bounds_of` gives them.
        logs: logarithms of the weights.
        size: how many.

    Where few clients have most of the weight the sequence can be too short: the rest is then drawn from all who are
    left, which costs what the population does.
    """
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
    """`size` different clients in the order of E_i / w_i, E_i exponential: the law of drawing them one by one.

    Each chance is right to 2^-64 of the largest, and to the rounding of the logarithms. It costs what the population
    does.

    Args:
        key: a random key.
        logs: logarithms of the weights, -inf for those that are never drawn.
        size: how many, at most those that can be drawn.
    """
    high, low = jax.random.bits(key, (2, *logs.shape), jnp.uint32)
    return lax.top_k(logs - jnp.log(exponentials(high, low, logs.dtype)), size)[1]


def exponentials(
    high: UInt32[Array, " clients"], low: UInt32[Array, " clients"], dtype: jnp.dtype
) -> Float[Array, " clients"]:
    """Exponential numbers from words of 64 bits, above 0 and finite, whose two tails are right to 2^-64.

    `jax.random.gumbel` and `exponential` take a uniform number of 23 bits: what is rarer than 2^-23 never happens.
    Here the last bit says which half a number lies in, the others how far it lies from 0 or 1.
    """
    nearer = low >> 1
    end = (high.astype(dtype) + (nearer.astype(dtype) + 0.5) * 2.0**-31) * 2.0**-33
    return jnp.where(low % 2 == 1, -jnp.log(end), -jnp.log1p(-end))


def _client_of(high: Array, low: Array, bounds: Array) -> Array:
    """The first client whose bound lies above a word, the population where none does: by halving what is left."""
    first = jnp.zeros(high.shape, jnp.int32)
    population = bounds.shape[1]
    for step in reversed([2**i for i in range(population.bit_length())]):
        last = jnp.minimum(first + step, population) - 1  # of those that may lie below
        up, down = bounds[0, last], bounds[1, last]
        below = (up < high) | ((up == high) & (down <= low))
        first = jnp.where(below & (first + step <= population), first + step, first)
    return first
