"""Learning rate schedules: rates that depend on the round or on a run's evaluations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.building import number
from fedsolve.core.errors import InvalidInput, check_range, is_plain_number, shown
from fedsolve.core.metric_direction import improvements, signed
from fedsolve.core.types import Scalar, is_module, module, replace, static

__all__ = [
    "Exponential",
    "FromOptax",
    "InverseSqrt",
    "Rate",
    "Reacting",
    "ReduceOnPlateau",
    "Schedule",
    "as_rate",
    "rate_at",
]


class Schedule(ABC):
    """Base class of learning rate schedules; rounds count from 0."""

    @abstractmethod
    def __call__(self, round: Scalar) -> Scalar:
        """The rate in a round.

        Args:
            round: its number, from 0; it may be traced.

        Returns:
            The rate, shape ().
        """


if TYPE_CHECKING:
    Rate: TypeAlias = Scalar | Schedule | Callable[[Any], Any]
else:
    Rate = Scalar | Schedule
    """A learning rate: a number, a schedule of this module, or a function of the round, such as optax's.

    A number, above 0, is the rate of every round. A function takes the number of the round, from 0, and returns its
    rate, shape ():

        fs.FedAvg(0.1)
        fs.FedAvg(optax.cosine_decay_schedule(0.1, decay_steps=200))
        fs.FedAvg(lambda round: 0.1 / (1 + round))

    A rate can also react to a metric. This one is halved when the validation loss has not improved for five
    evaluations:

        fs.FedAvg(fs.schedules.ReduceOnPlateau(0.1, "validation_loss", factor=0.5, patience=5))
    """


@module
class Exponential(Schedule):
    """Exponential decay, initial x decay^round; `decay` = 0.998 is FedExP's and FedDuA's choice on images.

    Attributes:
        initial: the rate of round 0, above 0.
        decay: the factor a round, in (0, 1].

    Raises:
        InvalidInput: a number out of its range.

    >>> float(Exponential(0.1, 0.5)(2))
    0.025
    """

    initial: Scalar = number(above=0)
    decay: Scalar = number(above=0, at_most=1)

    def __call__(self, round: Scalar) -> Scalar:
        return self.initial * self.decay**round


@module
class InverseSqrt(Schedule):
    """Inverse square root decay, initial / sqrt(round + 1).

    Attributes:
        initial: the rate of round 0, above 0.

    Raises:
        InvalidInput: an initial rate that is not positive and finite.

    >>> round(float(InverseSqrt(0.1)(3)), 6)
    0.05
    """

    initial: Scalar = number(above=0)

    def __call__(self, round: Scalar) -> Scalar:
        return self.initial / jnp.sqrt(jnp.asarray(round) + 1.0)


@module
class FromOptax(Schedule):
    """Any optax schedule, a function of the round; another schedule compiles another program.

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
        return self.function(as_count(round))


class Reacting(Schedule):
    """Base class of schedules that react to a run's evaluations, without recompilation.

    After each evaluation, that of the initial model included, the next rounds have the schedule that `after` makes.
    Each seed of a run and each trial of a sweep reacts to evaluations of its own. One of yours:

    >>> @module
    ... class BoldDriver(Reacting):  # a twentieth more after each step down, half after each step up
    ...     rate: Scalar
    ...
    ...     def __call__(self, round):
    ...         return self.rate
    ...
    ...     def after(self, evaluations):
    ...         down = np.diff(evaluations["train_loss"]) < 0
    ...         return replace(self, rate=self.rate * np.prod(np.where(down, 1.05, 0.5)))
    >>> round(float(BoldDriver(0.1).after({"train_loss": np.array([1.0, 1.1, 0.9])}).rate), 6)
    0.0525
    """

    @abstractmethod
    def after(self, evaluations: Mapping[str, np.ndarray]) -> Self:
        """The schedule of the rounds that follow the last evaluation.

        It is asked of the schedule that the run was given, never of what it returned before, and must follow from that
        and the evaluations alone: a resumed run then goes on with the same bits.

        Args:
            evaluations: all so far, as columns of shape (evaluations,): round, train_loss, test_accuracy, ..., as a
                callback sees them, without `seconds`, which no two runs share. NaN where the model was not finite.

        Returns:
            One of the same class, whose leaves have the same shapes.
        """


@module
class ReduceOnPlateau(Reacting):
    """Reduce the rate by `factor` whenever a metric has not improved for `patience` evaluations.

    As PyTorch's `ReduceLROnPlateau` and that of Keras; `patience` counts as Keras's and as that of
    `fedsolve.callbacks.EarlyStopping`, of which PyTorch's allows one more. The evaluation of the initial model is the
    first to compare with. Reacting to test data, the result is no estimate for new data any more: let validation
    examples decide (`Task.hold_out`).

    Attributes:
        initial: the rate until it is lowered, above 0.
        metric: a column of the evaluations; of accuracies and the like more is better, of all else less.
        patience: so many evaluations in a row without a better one lower the rate, at least 1; then they are counted
            anew.
        factor: by which it is multiplied, in (0, 1).
        min_delta: by how much an evaluation must be better to count, at least 0.
        min_lr: the rate falls no further, in (0, initial]; PyTorch's stops at about 1e-8, too.

    Raises:
        InvalidInput: a number out of its range; of a run, a metric that it does not measure (the nearest is named).

    >>> losses = {"train_loss": np.array([1.0, 0.5, 0.6, 0.5, 0.4])}
    >>> ReduceOnPlateau(0.1, "train_loss", patience=2, factor=0.5).after(losses).initial
    0.05
    """

    initial: Scalar = number(above=0)
    metric: str = static()
    patience: Scalar = number(at_least=1, whole=True)
    factor: Scalar = number(default=0.1, above=0, below=1)
    min_delta: Scalar = number(default=0.0, at_least=0)
    min_lr: Scalar = 1e-8

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str):
            raise InvalidInput(f"metric = {shown(self.metric)} must be a metric's name, such as 'train_loss'")
        most = float(self.initial) if is_plain_number(self.initial) else None
        check_range("min_lr", self.min_lr, above=0, at_most=most)

    def __call__(self, round: Scalar) -> Scalar:
        return self.initial

    def after(self, evaluations: Mapping[str, np.ndarray]) -> ReduceOnPlateau:
        """The schedule of the rounds that follow.

        Args:
            evaluations: all so far, as columns.

        Returns:
            One whose `initial` is the rate that it has come to.

        Raises:
            InvalidInput: the metric is none of them.
        """
        values = signed(self.metric, evaluations, type(self).__name__)
        # from the first number on: what is unknown lowers nothing
        values = values[np.cumsum(values > -np.inf) > 0]
        if not len(values):
            return self
        better = improvements(values, float(self.min_delta))
        waited = np.diff([*better, len(values)]) - 1  # evaluations after each better one, until the next
        lowered = int((waited // int(self.patience)).sum())
        rate = float(self.initial) * float(self.factor) ** lowered
        return replace(self, initial=max(rate, float(self.min_lr)))


def as_rate(name: str, value: Rate) -> Rate:
    """Check a rate: numbers must be finite and positive; functions become schedules.

    Args:
        name: what errors call it.
        value: a number above 0, a schedule, or a function of the round (from 0) as optax's schedules are.

    Returns:
        The number or the schedule itself, or a `FromOptax` of the function.

    Raises:
        InvalidInput: a rate that is not positive and finite, a function that fails on a round's number or gives
            something else than one real number, a schedule whose class is no module, or none of these.
    """
    if isinstance(value, Schedule):
        if not is_module(value):
            raise InvalidInput(
                f"{name}: the class {type(value).__name__} is not a module: put @module (fedsolve.core.types) above it"
            )
        return value
    if callable(value):
        _check_schedule(name, value)
        return FromOptax(value)
    check_range(name, value, above=0)
    return value


def _check_schedule(name: str, function: Callable[[Scalar], Scalar]) -> None:
    # raise `InvalidInput` unless a function gives one real number for a round
    try:
        rate = jax.eval_shape(function, jax.ShapeDtypeStruct((), jnp.int32))
    except Exception as error:
        raise InvalidInput(
            f"{name} = {shown(function)} fails on a round's number ({type(error).__name__}): "
            "give a positive number or a schedule, a function of the round"
        ) from error
    if getattr(rate, "shape", None) != () or not jnp.issubdtype(rate.dtype, jnp.floating):
        raise InvalidInput(f"{name} = {shown(function)} gives {shown(rate)}, not one real number for a round")


def rate_at(value: Rate, round: Scalar) -> Scalar:
    """The rate in a round.

    Args:
        value: a number or a schedule.
        round: the round, from 0; it may be traced.

    Returns:
        A scalar; the number itself where it is no schedule.
    """
    if not isinstance(value, Schedule):
        return cast("Scalar", value)  # a function is a schedule where a method keeps it: see `as_rate`
    return value(as_count(round) if isinstance(round, jax.Array) else round)


def as_count(number: Any) -> Array:
    """Integers as JAX's widest: of int32 optax's schedules make rates of float32, in a float64 run too."""
    return jnp.asarray(number, int)
