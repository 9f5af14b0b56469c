"""Losses and metrics that are no means over examples: they follow from sums, or need whole sets of examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.trees import as_array
from fedsolve.core.types import Batch, Params, Scalar
from fedsolve.tasks.loss_arguments import asked


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


@dataclass(frozen=True)
class Coupled:
    """A loss of batches of `rows_together` examples each of which depends on the others; of more ones their mean."""

    loss: Callable[..., Scalar]
    rows_together: int

    @property
    def asks(self) -> frozenset[str]:
        return asked(self.loss) & {"key"}

    def each(self, params: Params, batch: Batch, key: Array | None = None) -> Array:
        # of each example that of its batch, (n,)
        rows, given = len(jax.tree.leaves(batch)[0]), {"key": key} if self.asks else {}
        size = (
            self.rows_together if rows % self.rows_together == 0 else rows
        )  # of a few rows on which it is tried
        batches = jax.tree.map(lambda a: a.reshape(-1, size, *a.shape[1:]), batch)
        return jnp.repeat(lax.map(lambda one: self.loss(params, one, **given), batches), size)

    def __call__(self, params: Params, batch: Batch, key: Array | None = None) -> Scalar:
        return jnp.mean(self.each(params, batch, key))


def coupled(
    stated: bool, loss: Callable[..., Any], batch_size: int | None, counts: np.ndarray
) -> Callable[..., Any]:
    # the loss itself where nobody states that it couples examples. counts: of the clients' examples
    check_no_buffers(stated and "buffers" in asked(loss))
    return Coupled(loss, int(counts.max()) if batch_size is None else batch_size) if stated else loss


def check_no_buffers(has: bool) -> None:
    if has:
        raise InvalidInput(
            "couples_examples = True and the loss keeps buffers: take GroupNorm or LayerNorm instead"
        )


def check_coupled(loss: Any, batch_size: int, counts: np.ndarray) -> None:
    # batch_size: of the local steps; padding is an example of no batch
    rows = getattr(loss, "rows_together", None)
    if rows is None:
        return
    if batch_size != rows:
        raise InvalidInput(
            f"the loss couples the examples of batches of {rows}, and local steps have {batch_size}: give the task "
            "batch_size, and clients at least as many examples"
        )
    for client in np.flatnonzero(counts % rows)[:1]:
        raise InvalidInput(
            f"client {client} has {counts[client]} examples and the loss couples those of batches of {rows}: give each "
            "client a multiple of batch_size"
        )


# Weights of classes in a loss of labels: the weighted mean, as PyTorch's `nn.CrossEntropyLoss(weight=...)` has it.


class ClassWeighted:
    """What a loss of labels does with `class_weights`; None: every example counts alike.

    Each example has the weight of its class, and the loss of a batch is the sum of weighted losses over the sum of
    weights; in evaluation that of all examples of a set, and of each client's.
    """

    class_weights: Sequence[float] | np.ndarray | None
    moving = 0  # of the two sums the one that depends on the model

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
