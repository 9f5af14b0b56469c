"""Losses and metrics that are no means over examples: they follow from sums, or need whole sets of examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput
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
        """The value of a batch, shape ()."""
        return of_batch(self, self.each(params, batch, key), weights)


def of_batch(function: Any, each: Array, weights: Array | None = None) -> Array:
    """The value of a batch from what its examples add; 0, without a gradient, where nothing of them counts.

    Args:
        function: it has `of_sums`.
        each: of shape (n, k).
        weights: 0 or 1 for each example, shape (n,); None where all count.
    """
    if weights is not None:
        each = jnp.where(weights[:, None] > 0, each, 0)
    return value_or_zero(function, jnp.sum(each, axis=0))


def value_or_zero(function: Any, sums: Array) -> Array:
    """The value from sums, shape (k,); 0, without a gradient, where nothing counts."""
    empty = nothing_counts(function.of_sums(sums), sums)
    # at sums of 1 the value has a derivative, which is then multiplied by 0
    return jnp.where(empty, 0, function.of_sums(jnp.where(empty, 1, sums)))


def nothing_counts(value: Array, sums: Array) -> Array:
    """Whether a value is 0 / 0: no number, though the sums, last axis (k,), are."""
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
