"""Learning rates that depend on the round: a plain number, or a schedule whose parameters are leaves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedsolve.checks import check_range
from fedsolve.errors import InvalidInput, shown
from fedsolve.types import Scalar, module, static


class Schedule(ABC):
    """A rate by round; rounds count from 0."""

    @abstractmethod
    def __call__(self, round: Scalar) -> Scalar:
        """The rate in a round.

        Args:
            round: its number, from 0; it may be traced.

        Returns:
            The rate, shape ().
        """


Rate = Scalar | Schedule
"""A constant rate, or a schedule."""


@module
class Exponential(Schedule):
    """initial x decay^round; `decay` = 0.998 is FedExP's and FedDuA's choice on images.

    Attributes:
        initial: the rate of round 0, above 0.
        decay: the factor a round, in (0, 1].

    Raises:
        InvalidInput: a number out of its range.

    >>> float(Exponential(0.1, 0.5)(2))
    0.025
    """

    initial: Scalar
    decay: Scalar

    def __post_init__(self) -> None:
        check_range("initial", self.initial, above=0)
        check_range("decay", self.decay, above=0, at_most=1)

    def __call__(self, round: Scalar) -> Scalar:
        """The rate in a round."""
        return self.initial * self.decay**round


@module
class InverseSqrt(Schedule):
    """initial / sqrt(round + 1).

    Attributes:
        initial: the rate of round 0, above 0.

    Raises:
        InvalidInput: an initial rate that is not positive and finite.

    >>> round(float(InverseSqrt(0.1)(3)), 6)
    0.05
    """

    initial: Scalar

    def __post_init__(self) -> None:
        check_range("initial", self.initial, above=0)

    def __call__(self, round: Scalar) -> Scalar:
        """The rate in a round."""
        return self.initial / jnp.sqrt(jnp.asarray(round) + 1.0)


@module
class FromOptax(Schedule):
    """Any optax schedule, a function of the round; part of the program, so another one compiles anew.

    Attributes:
        function: round, an integer of shape () -> rate of shape ().

    Raises:
        InvalidInput: it is no function.
    """

    function: Callable[[Scalar], Scalar] = static()

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidInput(
                f"function = {shown(self.function)} of FromOptax must be a function of the round"
            )

    def __call__(self, round: Scalar) -> Scalar:
        """The rate in a round."""
        return self.function(jnp.asarray(round, int))  # int64 in a float64 run: a rate of float64 follows


def as_rate(name: str, value: Rate | Callable[[Scalar], Scalar]) -> Rate:
    """A checked rate: numbers must be finite and positive, plain callables become schedules.

    Args:
        name: what errors call it.
        value: a number above 0, a schedule, or a function of the round (from 0) as optax's schedules are.

    Returns:
        The number or the schedule itself, or a `FromOptax` of the function.

    Raises:
        InvalidInput: a rate that is not positive and finite, a function that fails on a round's number or gives
            something else than one real number, or none of these.
    """
    if isinstance(value, Schedule):
        return value
    if callable(value):
        _check_schedule(name, value)
        return FromOptax(value)
    check_range(name, value, above=0)
    return value


def _check_schedule(name: str, function: Callable[[Scalar], Scalar]) -> None:
    """Raise `InvalidInput` unless a function gives one real number for a round."""
    try:
        found = jax.eval_shape(function, jax.ShapeDtypeStruct((), jnp.int32))
    except Exception as error:
        raise InvalidInput(
            f"{name} = {shown(function)} fails on a round's number ({type(error).__name__}): "
            "give a positive number or a schedule, a function of the round"
        ) from error
    if getattr(found, "shape", None) != () or not jnp.issubdtype(found.dtype, jnp.floating):
        raise InvalidInput(
            f"{name} = {shown(function)} gives {shown(found)}, not one real number for a round"
        )


def rate_at(value: Rate, round: Scalar) -> Scalar:
    """The rate in a round.

    Args:
        value: a number or a schedule.
        round: the round, from 0; it may be traced.

    Returns:
        A scalar; the number itself where it is no schedule.
    """
    return value(round) if isinstance(value, Schedule) else value
