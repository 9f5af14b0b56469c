"""Weights of classes in a loss of labels: the weighted mean, as PyTorch's `nn.CrossEntropyLoss(weight=...)` has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.trees import as_array
from fedsolve.core.types import Batch, Params
from fedsolve.tasks.losses.sums import of_batch


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
        """The arguments that it asks for (`fedsolve.tasks.loss_arguments`)."""
        return super().asks | (frozenset() if self.class_weights is None else {"weights"})  # pyright: ignore

    @property
    def of_sums(self) -> Callable[[Array], Array]:
        """Sums over examples -> the weighted mean; an `AttributeError` without weights: it is a mean over examples."""
        if self.class_weights is None:
            raise AttributeError("of_sums")
        return _weighted_mean

    @property
    def size(self) -> Callable[[Array], Array]:
        """Sums over examples -> the sum of their weights; an `AttributeError` without weights."""
        if self.class_weights is None:
            raise AttributeError("size")
        return _sum_of_weights

    def weighted(self, own: Array, is_label: Array) -> Array:
        """Each example's loss, shape (n,); with weights of classes what it adds to the two sums, (n, 2).

        Args:
            own: the losses, shape (n,).
            is_label: which class each example is of, booleans (classes, n).
        """
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
        """The mean over the batch, weighted by class where weights are given, shape ()."""
        if self.class_weights is None:
            return super().__call__(params, batch, key)  # pyright: ignore
        return of_batch(self, self.each(params, batch, key), weights)  # pyright: ignore


def check_class_weights(values: Any) -> tuple[float, ...]:
    """Weights of classes as plain numbers.

    Raises:
        InvalidInput: what is no row of finite numbers of at least 0, some above it.
    """
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
