"""The rates of a run's rounds, checked before they are used: negative, not a number, or 0 in every round."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedsolve.core.errors import InvalidInput
from fedsolve.core.schedules import FromOptax, Reacting, Schedule, as_count
from fedsolve.engine.compute.cast import argument_name
from fedsolve.engine.records.identity import describe

_AT_ONCE = 2**16  # rounds


def check_rates(method: Any, rounds: int) -> None:
    """Evaluate every schedule of a method, compiled as in a run, over all rounds; those that react come later.

    Args:
        method: an algorithm.
        rounds: of the run.

    Raises:
        InvalidInput: the first rate that is negative, infinite or NaN, with its round.
    """
    for path, node in jax.tree_util.tree_leaves_with_path(method, is_leaf=is_schedule):
        if is_schedule(node) and not isinstance(node, Reacting):
            check_schedule(path, node, 0, rounds)


def check_schedule(path: Any, schedule: Schedule, start: int, stop: int) -> None:
    """Raise `InvalidInput` unless a schedule gives rates in rounds start .. stop - 1.

    An argument of an optax function that is no learning rate may be negative. A rate that a run's evaluations have made
    infinite ends it as `Diverged`, which tells it.

    Args:
        path: of the schedule in its method, as JAX gives it.
        schedule: it.
        start, stop: rounds, from 0.
    """
    names = [jax.tree_util.keystr((key,), simple=True) for key in path]
    least = 0.0 if "values" not in names or names[-1] == "learning_rate" else -np.inf
    length = min(_AT_ONCE, 1 << max(0, stop - start - 1).bit_length())  # powers of two: few programs
    for first in range(start, stop, length):
        rounds = np.minimum(np.arange(first, first + length), stop - 1)
        rates = np.asarray(_rates(schedule, as_count(rounds)))
        bad = ~(rates >= least) | (np.isinf(rates) & (not isinstance(schedule, Reacting)))
        if bad.any():
            place = int(bad.argmax())
            what = describe(schedule.function if isinstance(schedule, FromOptax) else schedule)
            raise InvalidInput(
                f"{argument_name(names)} = {what} is {rates[place]:g} in round {rounds[place]} (rounds count from 0): "
                f"a rate must be finite{' and at least 0' if least == 0 else ''}"
            )


def is_schedule(node: Any) -> bool:
    """Whether a part of a method is a schedule."""
    return isinstance(node, Schedule)


@jax.jit
def _rates(schedule: Schedule, rounds: Int[Array, " rounds"]) -> Array:
    return jax.vmap(lambda t: jnp.asarray(schedule(t), float))(rounds)
