"""Losses and metrics: hashable callables of (params, batch), each a mean over the first axis of the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.data.checks import check_column, check_whole
from fedsolve.errors import InvalidInput
from fedsolve.tasks.task import Examples
from fedsolve.types import Params

Model = Callable[[Params, Any], Array]
"""(params, inputs of shape (n, ...)) -> outputs of shape (n, ...)."""


@dataclass(frozen=True)
class CrossEntropy:
    """Mean of -log softmax(model(x))[y]: logits (n, classes), labels (n,), in nats."""

    model: Model

    def __call__(self, params: Params, batch: Examples) -> Array:
        """The mean over the batch, shape ()."""
        logits = self.model(params, batch.x)
        own = batch.y[:, None] == jnp.arange(logits.shape[-1])
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(own, logits, 0), axis=-1))


@dataclass(frozen=True)
class SquaredError:
    """Mean of (model(x) - y)^2 over all entries, halved with `half`; outputs and y have the same shape."""

    model: Model
    half: bool = False

    def __call__(self, params: Params, batch: Examples) -> Array:
        """The mean over the batch, shape ()."""
        outputs = self.model(params, batch.x)
        if outputs.shape != batch.y.shape:
            raise InvalidInput(
                f"outputs have shape {outputs.shape}, targets {batch.y.shape}: they must agree"
            )
        mean = jnp.mean(jnp.square(outputs - batch.y))
        return 0.5 * mean if self.half else mean


@dataclass(frozen=True)
class Accuracy:
    """Share of examples whose largest logit is the label's (the first of equal logits counts)."""

    model: Model

    def __call__(self, params: Params, batch: Examples) -> Array:
        """The mean over the batch, in [0, 1], shape ()."""
        logits = self.model(params, batch.x)
        return jnp.mean(jnp.argmax(logits, axis=-1) == batch.y, dtype=logits.dtype)


@dataclass(frozen=True)
class TopK:
    """Share of examples whose label is among the k largest logits (the first of equal logits count)."""

    model: Model
    k: int = 5

    def __post_init__(self) -> None:
        check_whole("k", self.k, 1)

    def __call__(self, params: Params, batch: Examples) -> Array:
        """The mean over the batch, in [0, 1], shape ()."""
        logits = self.model(params, batch.x)
        if self.k > logits.shape[-1]:
            raise InvalidInput(f"k = {self.k} is more than the {logits.shape[-1]} classes")
        best = jax.lax.top_k(logits, self.k)[1]
        return jnp.mean(jnp.any(best == batch.y[:, None], axis=-1), dtype=logits.dtype)


def check_labels(y: Any, classes: int) -> np.ndarray:
    """Labels as int32, shape (examples,), all in 0 .. classes - 1.

    Raises:
        InvalidInput: another shape, or the first label that is not a whole number in the range, with its row.

    >>> check_labels([0, 2, 3], 3)
    Traceback (most recent call last):
    ...
    fedsolve.errors.InvalidInput: label 3 in row 2 is outside 0 .. 2 of 3 classes
    """
    labels = check_column("labels", y)
    if not (np.issubdtype(labels.dtype, np.integer) or np.issubdtype(labels.dtype, np.floating)):
        raise InvalidInput(f"labels have type {labels.dtype}: give whole numbers in 0 .. {classes - 1}")
    bad = ~((labels >= 0) & (labels < classes) & (labels == np.floor(labels)))
    if bad.any():
        row = int(np.argmax(bad))
        raise InvalidInput(
            f"label {labels[row]} in row {row} is outside 0 .. {classes - 1} of {classes} classes"
        )
    return labels.astype(np.int32)
