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


class OfOutputs:
    """A mean over examples of something of the model's outputs and the targets.

    `each` gives the examples' own values, which uneven clients and evaluation need; `of` starts from the
    outputs, so that several metrics share one pass of the model.
    """

    model: Model

    def of(self, outputs: Array, y: Array) -> Array:
        """The value of each example, shape (n,), from outputs and targets."""
        raise NotImplementedError

    def each(self, params: Params, batch: Examples) -> Array:
        """The value of each example, shape (n,)."""
        return self.of(self.model(params, batch.x), batch.y)

    def __call__(self, params: Params, batch: Examples) -> Array:
        """The mean over the batch, shape ()."""
        return jnp.mean(self.each(params, batch))


@dataclass(frozen=True)
class CrossEntropy(OfOutputs):
    """Mean of -log softmax(model(x))[y]: logits (n, classes), labels (n,), in nats."""

    model: Model

    def of(self, outputs: Array, y: Array) -> Array:
        """-log softmax(outputs)[y] of each example."""
        logits = outputs.T  # sums over the first axis are the fast ones on a CPU
        own = y == jnp.arange(logits.shape[0])[:, None]
        return jax.nn.logsumexp(logits, axis=0) - jnp.sum(jnp.where(own, logits, 0), axis=0)


@dataclass(frozen=True)
class SquaredError(OfOutputs):
    """Mean of (model(x) - y)^2 over all entries, halved with `half`; outputs and y have the same shape."""

    model: Model
    half: bool = False

    def of(self, outputs: Array, y: Array) -> Array:
        """The mean square over the entries of each example."""
        _check_shapes(outputs, y)
        squares = jnp.mean(jnp.square(outputs - y).reshape(len(outputs), -1), axis=1)
        return 0.5 * squares if self.half else squares


@dataclass(frozen=True)
class Logistic(OfOutputs):
    """Mean of log(1 + exp(-(2 y - 1) m)), m = model(x): margins (n,), labels 0 or 1 (n,), in nats."""

    model: Model

    def of(self, outputs: Array, y: Array) -> Array:
        """log(1 + exp(-m)) of each example of label 1, log(1 + exp(m)) of label 0."""
        _check_shapes(outputs, y)
        return jax.nn.softplus(jnp.where(y > 0, -outputs, outputs))  # neither overflows nor cancels


@dataclass(frozen=True)
class BinaryAccuracy(OfOutputs):
    """Share of examples of label 1 with a margin model(x) > 0, or of label 0 with a margin <= 0."""

    model: Model

    def of(self, outputs: Array, y: Array) -> Array:
        """1 where the margin is on the label's side, else 0."""
        _check_shapes(outputs, y)
        return ((outputs > 0) == (y > 0)).astype(outputs.dtype)


@dataclass(frozen=True)
class Accuracy(OfOutputs):
    """Share of examples whose largest logit is the label's (the first of equal logits counts)."""

    model: Model

    def of(self, outputs: Array, y: Array) -> Array:
        """1 where the largest logit is the label's, else 0."""
        return (jnp.argmax(outputs, axis=-1) == y).astype(outputs.dtype)


@dataclass(frozen=True)
class TopK(OfOutputs):
    """Share of examples whose label is among the k largest logits (the first of equal logits count)."""

    model: Model
    k: int = 5

    def __post_init__(self) -> None:
        check_whole("k", self.k, 1)

    def of(self, outputs: Array, y: Array) -> Array:
        """1 where the label is among the k largest logits, else 0."""
        if self.k > outputs.shape[-1]:
            raise InvalidInput(f"k = {self.k} is more than the {outputs.shape[-1]} classes")
        best = jax.lax.top_k(outputs, self.k)[1]
        return jnp.any(best == y[:, None], axis=-1).astype(outputs.dtype)


def _check_shapes(outputs: Array, y: Array) -> None:
    """One output for each target: (n,) against (n, 1) would broadcast to (n, n)."""
    if outputs.shape != y.shape:
        raise InvalidInput(f"outputs have shape {outputs.shape}, targets {y.shape}: they must agree")


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
