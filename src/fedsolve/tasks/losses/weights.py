"""Losses and metrics that are no means over examples: they follow from sums, or need whole sets of examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_flag, shown
from fedsolve.core.trees import as_array
from fedsolve.core.types import Batch, Params, Scalar
from fedsolve.tasks.leaves import WithFrozen
from fedsolve.tasks.loss_arguments import asked, call


@dataclass(frozen=True)
class OfSums:
    """Base class of losses and metrics that are computed from sums over examples, such as a weighted mean.

    Its value is `value(sum of what the examples add)`: of a minibatch in training, whose padding adds nothing; in
    evaluation of all examples of a set, and of each client's. So it must not change when every example is given
    twice. A batch in which nothing counts (0 / 0) has the loss 0 and no gradient; a set of which nothing counts has
    the value NaN. Any object with the methods `each` and `of_sums` is taken in the same way.

    Attributes:
        adds: (params, batch) -> what each example adds, shape (n, k); with an argument `key=None` where it draws.
        value: the sums, shape (k,) -> the value, shape ().

    Raises:
        InvalidInput: adds or value is no function.

    >>> weighted = OfSums(
    ...     lambda w, batch: jnp.stack([batch.x[:, 1] * (batch.x[:, 0] - w) ** 2, batch.x[:, 1]], axis=1),
    ...     lambda sums: sums[0] / sums[1],
    ... )
    """

    adds: Callable[..., Array]
    value: Callable[[Array], Scalar]

    def __post_init__(self) -> None:
        for name, value in (("adds", self.adds), ("value", self.value)):
            if not callable(value):
                raise InvalidInput(f"{name} = {value!r} of OfSums must be a function")

    @property
    def asks(self) -> frozenset[str]:
        """The further arguments that it needs (`fedsolve.tasks.loss_arguments`)."""
        return asked(self.adds, "adds") | {"weights"}

    def each(self, params: Params, batch: Batch, key: Array | None = None) -> Array:
        """The contribution of each example to the sums.

        Args:
            params: the model.
            batch: examples, arrays of shape (n, ...).
            key: for what is drawn in training; None in evaluation.

        Returns:
            Shape (n, k).
        """
        return self.adds(params, batch, **({"key": key} if "key" in asked(self.adds) else {}))

    def of_sums(self, sums: Array) -> Array:
        """The value from the sums of any examples.

        Args:
            sums: of what they add, shape (k,).

        Returns:
            Shape (); NaN where nothing of them counts.
        """
        return jnp.asarray(self.value(sums))

    def __call__(
        self, params: Params, batch: Batch, key: Array | None = None, weights: Array | None = None
    ) -> Scalar:
        return of_batch(self, self.each(params, batch, key), weights)


def of_batch(function: Any, each: Array, weights: Array | None = None) -> Array:
    # each: what the examples add, (n, k); weights: 0 or 1 for each example, (n,), None where all count
    if weights is not None:
        each = jnp.where(weights[:, None] > 0, each, 0)
    return value_or_zero(function, jnp.sum(each, axis=0))


def value_or_zero(function: Any, sums: Array) -> Array:
    # from sums, (k,); 0, without a gradient, where nothing counts
    empty = nothing_counts(function.of_sums(sums), sums)
    # at sums of 1 the value has a derivative, which is then multiplied by 0
    return jnp.where(empty, 0, function.of_sums(jnp.where(empty, 1, sums)))


def nothing_counts(value: Array, sums: Array) -> Array:
    # 0 / 0: no number, though the sums, last axis (k,), are
    return jnp.isnan(value) & jnp.all(jnp.isfinite(sums), axis=-1)


@dataclass(frozen=True)
class Whole:
    """A metric of the outputs on all examples of a set at once, such as scikit-learn's scores.

    Attributes:
        outputs: (params, batch) -> one array, or a tuple of arrays, with a row for each example of the batch; in
            jax.numpy. It runs compiled, a few examples at a time; it must not mix examples.
        score: the same arrays for the whole set, as NumPy arrays, in the order of the set -> a number. It runs on
            the host.

    Raises:
        InvalidInput: outputs or score is no function.

    >>> from sklearn.metrics import f1_score
    >>> f1 = Whole(lambda w, batch: (batch.y, batch.x @ w > 0), f1_score)
    """

    outputs: Callable[[Params, Batch], Any]
    score: Callable[..., Any]

    def __post_init__(self) -> None:
        for name, value in (("outputs", self.outputs), ("score", self.score)):
            if not callable(value):
                raise InvalidInput(f"{name} = {value!r} of Whole must be a function")


# Weights of classes in a loss of labels: the weighted mean, as PyTorch's `nn.CrossEntropyLoss(weight=...)` has it.


class ClassWeighted:
    """What a loss of labels does with `class_weights`; None: every example counts alike.

    Each example has the weight of its class, and the loss of a batch is the sum of weighted losses over the sum of
    weights; in evaluation that of all examples of a set, and of each client's.
    """

    class_weights: Sequence[float] | np.ndarray | None

    def __post_init__(self) -> None:
        if self.class_weights is not None:
            object.__setattr__(self, "class_weights", check_class_weights(self.class_weights))

    @property
    def asks(self) -> frozenset[str]:
        return super().asks | (frozenset() if self.class_weights is None else {"weights"})  # pyright: ignore

    @property
    def of_sums(self) -> Callable[[Array], Array]:
        # sums -> the weighted mean; an `AttributeError` without weights: the loss is then a mean over
        # examples
        if self.class_weights is None:
            raise AttributeError("of_sums")
        return _weighted_mean

    @property
    def size(self) -> Callable[[Array], Array]:
        # sums -> the sum of weights; an `AttributeError` without weights
        if self.class_weights is None:
            raise AttributeError("size")
        return _sum_of_weights

    def weighted(self, own: Array, is_label: Array) -> Array:
        # own: losses (n,); is_label: which class each example is of, booleans (classes, n). Returns the
        # losses, or with weights what each example adds to the two sums, (n, 2)
        if self.class_weights is None:
            return own
        if len(is_label) != len(self.class_weights):
            raise InvalidInput(
                f"class_weights = {shown(self.class_weights)} are {len(self.class_weights)} for {len(is_label)} "
                "classes: give a number for each"
            )
        column = jnp.asarray(self.class_weights, own.dtype)[:, None]
        weights = jnp.sum(jnp.where(is_label, column, 0), axis=0)
        return jnp.stack([weights * own, weights], axis=1)

    def __call__(
        self, params: Params, batch: Batch, key: Array | None = None, weights: Array | None = None
    ) -> Array:
        if self.class_weights is None:
            return super().__call__(params, batch, key)  # pyright: ignore
        return of_batch(self, self.each(params, batch, key), weights)  # pyright: ignore


DISTORTED = "class weights distort probabilities: see fs.metrics.Calibration and fs.metrics.recalibrate"


def check_class_weights(values: Any) -> tuple[float, ...]:
    weights = as_array("class_weights", values)
    numbers = weights.ndim == 1 and len(weights) > 1 and weights.dtype.kind in "iuf"
    if not numbers or not ((weights >= 0) & (weights < float("inf"))).all() or not weights.any():
        raise InvalidInput(
            f"class_weights = {shown(values)} must be a number for each class, at least 0 and not all 0, such as "
            "(1.0, 9.0)"
        )
    return tuple(float(x) for x in weights)


def _weighted_mean(sums: Array) -> Array:
    return sums[0] / sums[1]


def _sum_of_weights(sums: Array) -> Array:
    return sums[1]


# A metric that follows from sums over examples: what examples add, their sums, and the columns that these make.


_MOST = 2.0**53
"""Sums up to which examples are counted exactly."""


@dataclass(frozen=True, kw_only=True)
class SumMetric(ABC):
    """A metric of a model's outputs and the targets.

    Attributes:
        weighted: whether examples count by their weights, the third field of a batch (x, y, weight); else alike.

    Class attributes:
        columns: what the names of its columns have behind the metric's name.
    """

    weighted: bool = False
    columns: ClassVar[tuple[str, ...]] = ("",)
    more_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_flag("weighted", self.weighted)

    @property
    @abstractmethod
    def width(self) -> int:
        """How many sums there are."""

    @abstractmethod
    def each(self, outputs: Array, targets: Array, weights: Array | None = None) -> Array:
        """What is to be known of each example, floats (n, c).

        Of outputs (n, ...), targets (n,) or (n, 1), and weights >= 0, (n,), or None; `InvalidInput` for other shapes.
        """

    @abstractmethod
    def totals(self, each: Array, group: Array, groups: int) -> Array:
        """The sums over the examples of each group, such as a client, floats (groups, width).

        Of what `each` gave, (n, c), and the number of each example's group, (n,).
        """

    @abstractmethod
    def of_sums(self, sums: Array) -> Array:
        """The columns, from sums (width,) over any examples; NaN where nothing counts, as F1 without positives."""

    @abstractmethod
    def counted(self, sums: np.ndarray) -> np.ndarray:
        """Weights of examples that sums stand for, in each of the ways in which the sums count them."""

    def check_sums(self, sums: np.ndarray, examples: int) -> None:
        """Raise `InvalidInput` unless sums are some over at most so many examples."""
        if sums.shape != (self.width,):
            raise InvalidInput(f"{sums.size} sums, not the {self.width} of {self!r}")
        if not np.isfinite(sums).all() or (sums < 0).any():
            wrong = sums[~np.isfinite(sums) | (sums < 0)][0]
            raise InvalidInput(f"a sum of {wrong:.6g}, not a number of at least 0")
        counted = float(np.max(self.counted(sums)))
        if counted > (_MOST if self.weighted else examples):
            raise InvalidInput(f"sums over {counted:.6g} examples, of {examples}")


@dataclass(frozen=True)
class OnModel:
    """A metric of a model's outputs as one of parameters and a batch, as tasks have them."""

    metric: SumMetric  # of outputs and targets
    model: Callable[..., Any]  # (params, inputs) -> outputs

    @property
    def columns(self) -> tuple[str, ...]:
        return self.metric.columns

    @property
    def width(self) -> int:
        return self.metric.width

    @property
    def asks(self) -> frozenset[str]:
        return asked(self.model, "the model") & {"buffers"}

    @property
    def of(self) -> Callable[[Array, Array], Array]:
        # `each` from outputs and targets; an `AttributeError` where weights are due, too
        if self.metric.weighted:
            raise AttributeError("of")
        return self.metric.each

    def each(self, params: Params, batch: Batch, buffers: Any = None) -> Array:
        needed = 3 if self.metric.weighted else 2
        if not isinstance(batch, tuple | list) or len(batch) < needed:
            raise InvalidInput(
                f"{self.metric!r} takes examples ({', '.join(('x', 'y', 'weight')[:needed])}): give a client's arrays "
                "as such a tuple"
            )
        outputs = call(self.model, params, batch[0], buffers=buffers)[0]
        return self.metric.each(outputs, batch[1], batch[2] if self.metric.weighted else None)

    def totals(self, each: Array, group: Array, groups: int) -> Array:
        return self.metric.totals(each, group, groups)

    def of_sums(self, sums: Array) -> Array:
        return self.metric.of_sums(sums)

    def __call__(self, params: Params, batch: Batch, buffers: Any = None) -> Array:
        each = self.each(params, batch, buffers)
        return self.of_sums(self.totals(each, jnp.zeros(len(each), jnp.int32), 1)[0])[0]


@dataclass(frozen=True)
class _OfAssembled:
    """A function of assembled parameters as one of those that train."""

    outputs: Callable[..., Any]  # (assembled parameters, inputs) -> outputs
    assemble: Callable[[Params], Params]  # trained parameters -> the assembled ones

    @property
    def asks(self) -> frozenset[str]:
        return asked(self.outputs, "the model")

    def __call__(self, params: Params, x: Any, **given: Any) -> Any:
        trained = params.trained if isinstance(params, WithFrozen) else params
        return self.outputs(self.assemble(trained), x, **given)


def outputs_of(outputs: Callable[..., Any] | None, assemble: Callable[[Params], Params]) -> Any:
    # what `Task.outputs` says, as losses and metrics call it
    return outputs and _OfAssembled(outputs, assemble)


def on_model(metrics: Any, model: Callable[..., Any] | None, remedy: str) -> Any:
    # metrics of `fs.metrics` are put on a model; `remedy` says what to give where there is none
    if not isinstance(metrics, Mapping) or not any(isinstance(m, SumMetric) for m in metrics.values()):
        return metrics
    if model is None:
        name = next(name for name, m in metrics.items() if isinstance(m, SumMetric))
        raise InvalidInput(f"metric {name} = {metrics[name]!r} takes the model's outputs: give {remedy}")
    return {name: OnModel(m, model) if isinstance(m, SumMetric) else m for name, m in metrics.items()}


def refuse_weighted(metrics: Mapping[str, Any]) -> None:
    # a batch of (inputs, targets) has no weights
    for name, metric in metrics.items():
        if isinstance(metric, SumMetric) and metric.weighted:
            raise InvalidInput(
                f"metric {name} = {metric!r} takes weights of examples, and a batch is (inputs, targets): leave "
                "weighted out"
            )


def scores_of(outputs: Array, targets: Array, what: str) -> tuple[Array, Array]:
    # the score for the second of two classes, (n,), and whether that is the example's class
    if outputs.ndim == 2 and outputs.shape[1] == 2:
        score = outputs[:, 1] - outputs[:, 0]
    elif outputs.size == outputs.shape[0]:
        score = outputs.reshape(-1)
    else:
        raise InvalidInput(
            f"{what} is a metric of two classes: the model has outputs of shape {outputs.shape}, not (n,), (n, 1) or "
            "(n, 2)"
        )
    return score, labels_of(outputs, targets, what) > 0


def labels_of(outputs: Array, targets: Array, what: str) -> Array:
    # shape (n,)
    if targets.size != outputs.shape[0]:
        raise InvalidInput(
            f"{what} takes one label an example: targets have shape {targets.shape} for {outputs.shape[0]} examples"
        )
    return targets.reshape(-1)


def columns_of_each(score: Array, other: Array, weights: Array | None) -> Array:
    # (n, 3); the last is the example's weight
    dtype = score.dtype if jnp.issubdtype(score.dtype, jnp.floating) else jnp.zeros(()).dtype
    weight = jnp.ones(len(score), dtype) if weights is None else weights.reshape(-1)
    return jnp.stack([score.astype(dtype), other.astype(dtype), weight.astype(dtype)], axis=1)
