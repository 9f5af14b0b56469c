"""Accuracies and errors of outputs, and losses and metrics of models that predict each next token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.core.types import Params
from fedsolve.data.examples import SparseRows
from fedsolve.tasks.losses.losses import CrossEntropy, Model, OfOutputs, Pooled, check_shapes
from fedsolve.tasks.models.models import as_numbers, dense_rows, flat
from fedsolve.tasks.targets import Classes, Targets
from fedsolve.tasks.task import Examples


@dataclass(frozen=True)
class BinaryAccuracy(OfOutputs):
    """Accuracy of two classes: the fraction of examples with label 1 and model(x) > 0, or label 0 and model(x) <= 0.

    Attributes:
        model: (params, x of shape (n, ...)) -> outputs, a model of `fedsolve.tasks` or any hashable function.
    """

    model: Model

    def of(self, outputs: Array, y: Array) -> Array:
        check_shapes(outputs, y)
        return ((outputs > 0) == (y > 0)).astype(outputs.dtype)


@dataclass(frozen=True)
class Accuracy(OfOutputs):
    """Accuracy: the fraction of examples whose largest logit is the label's (of equal logits, the first).

    Attributes:
        model: (params, x of shape (n, ...)) -> outputs, a model of `fedsolve.tasks` or any hashable function.
    """

    model: Model

    def of(self, outputs: Array, y: Array) -> Array:
        return (jnp.argmax(outputs, axis=-1) == y).astype(outputs.dtype)


@dataclass(frozen=True)
class _AmongLargest(OfOutputs):
    """What counts the k largest outputs of each example."""

    model: Model
    k: int = 5

    def __post_init__(self) -> None:
        check_integer("k", self.k, 1)

    def largest(self, outputs: Array, what: str) -> Array:
        # (n, k); of equal outputs the first count
        if self.k > outputs.shape[-1]:
            raise InvalidInput(f"k = {self.k} is more than the {outputs.shape[-1]} {what}")
        return jax.lax.top_k(outputs, self.k)[1]


@dataclass(frozen=True)
class TopK(_AmongLargest):
    """Top-k accuracy: the fraction of examples whose label is among the k largest logits (of equal logits, the first).

    Attributes:
        model: (params, x of shape (n, ...)) -> outputs, a model of `fedsolve.tasks` or any hashable function.
        k: how many logits, from 1 to the classes.

    Raises:
        InvalidInput: a k that is no integer from 1; when it is used, one above the classes.
    """

    def of(self, outputs: Array, y: Array) -> Array:
        return jnp.any(self.largest(outputs, "classes") == y[:, None], axis=-1).astype(outputs.dtype)


@dataclass(frozen=True)
class RecallAt(_AmongLargest):
    """Recall at k: the mean fraction of an example's tags among the k largest outputs; y is (n, tags), 0 or 1.

    An example counts alike however many tags it has; none to find is all found. (Keras' `Recall(top_k=k)` pools
    the tags of all examples instead.) Of equal outputs the first count. y may be `fs.SparseRows`.

    Attributes:
        model: (params, x of shape (n, ...)) -> outputs, a model of `fedsolve.tasks` or any hashable function.
        k: how many outputs, from 1 to the tags.

    Raises:
        InvalidInput: a k that is no integer from 1; when it is used, one above the tags.
    """

    def of(self, outputs: Array, y: Array) -> Array:
        if isinstance(y, SparseRows):
            y = dense_rows(y, outputs.shape[-1], outputs.dtype)
        check_shapes(outputs, y)
        best = self.largest(outputs, "tags")
        tags = (y > 0).astype(outputs.dtype)
        hits, total = jnp.sum(jnp.take_along_axis(tags, best, axis=-1), axis=-1), jnp.sum(tags, axis=-1)
        return jnp.where(total > 0, hits / jnp.maximum(total, 1), 1)


@dataclass(frozen=True)
class LikeliestSet(OfOutputs):
    """Set accuracy: the fraction of examples whose tags are the most probable of all sets of tags that occur.

    Tags count as independent.

    The outputs are log odds, so the likeliest set has the largest sum of its tags' outputs (of equal ones the
    first). That makes a classifier of tags that are parts of class names.

    Attributes:
        model: (params, x of shape (n, ...)) -> outputs, a model of `fedsolve.tasks` or any hashable function.
        sets: the tags of each set, as numbers.
    """

    model: Model
    sets: tuple[tuple[int, ...], ...]

    def of(self, outputs: Array, y: Array) -> Array:
        check_shapes(outputs, y)
        members = np.zeros((len(self.sets), outputs.shape[-1]), bool)
        for row, tags in zip(members, self.sets, strict=True):
            row[list(tags)] = True
        best = jnp.argmax(members.astype(outputs.dtype) @ outputs.T, axis=0)
        return jnp.all(jnp.asarray(members)[best] == (y > 0), axis=-1).astype(outputs.dtype)


# Losses and metrics of models that predict each next token: y is x moved on by one, padded at its end.
#
# The loss is the mean over sequences of each one's mean over its tokens: a mean over a client's examples, as the
# objective of every method is. The metrics are what the field reports: means over the tokens of all sequences
# together. Padding counts in neither.


@dataclass(frozen=True)
class NextToken(OfOutputs):
    """Next-token loss: mean over sequences of the mean over positions of -log softmax(model(x))[y], in nats.

    Logits are (n, time, vocabulary), y is (n, time). A sequence of padding alone has the loss 0.

    Attributes:
        model: (params, x of shape (n, time)) -> logits (n, time, vocabulary), such as `LSTM`.
        padding: the token of y that is none, at least 0; None if every token counts.

    Raises:
        InvalidInput: a padding that is no integer from 0; when it is used, y of another shape than the logits.
    """

    model: Model
    padding: int | None = 0

    def __post_init__(self) -> None:
        check_integer("padding", self.padding, 0, none="every token counts")

    def targets(self, params: Params, batch: Examples) -> Targets:
        return Classes(self.model(params, batch[0]).shape[-1], self.padding)

    def labels(self, outputs: Array) -> Array:
        return jnp.argmax(outputs, axis=-1).astype(jnp.int32)

    def of(self, outputs: Array, y: Array) -> Array:
        values, counts = jnp.where(self._there(y), self._at_each(outputs, y), 0), self.tokens(y)
        return jnp.sum(values, axis=-1) / jnp.maximum(counts, 1)

    def tokens(self, y: Array) -> Array:
        """The number of positions of each example that are not padding, shape (n,).

        Args:
            y: targets, integers (n, length).

        Returns:
            Integers (n,).
        """
        return jnp.sum(self._there(y), axis=-1)

    def empty(self, batch: Examples) -> np.ndarray:
        """Whether each sequence has length 0, shape (n,); a task refuses these.

        Args:
            batch: x and y, each (n, length).

        Returns:
            bool (n,).
        """
        return np.logical_not(np.any(np.asarray(self._there(batch[1])), axis=-1))

    def _there(self, y: Array) -> Array:
        return jnp.ones(y.shape, bool) if self.padding is None else y != self.padding

    def _at_each(self, outputs: Array, y: Array) -> Array:
        _check(outputs, y)
        rows = outputs.reshape(-1, outputs.shape[-1])
        return CrossEntropy(self.model).of(rows, y.reshape(-1)).reshape(y.shape)


class _OverTokens(Pooled, NextToken):
    """A mean over the tokens of all sequences together."""

    def counts(self, batch: Examples) -> Array:
        return self.tokens(batch[1])


@dataclass(frozen=True)
class BitsPerToken(_OverTokens):
    """Bits per token: mean over all tokens of -log2 softmax(model(x))[y]; bits per character for character models.

    Attributes:
        model: (params, x of shape (n, time)) -> logits (n, time, vocabulary), such as `LSTM`.
        padding: the token of y that is none, at least 0; None if every token counts.
    """

    def _at_each(self, outputs: Array, y: Array) -> Array:
        return super()._at_each(outputs, y) / math.log(2)


@dataclass(frozen=True)
class NextTokenAccuracy(_OverTokens):
    """Next-token accuracy: the fraction of tokens with the largest logit at their position (of equal ones, the first).

    Attributes:
        model: (params, x of shape (n, time)) -> logits (n, time, vocabulary), such as `LSTM`.
        padding: the token of y that is none, at least 0; None if every token counts.
    """

    def _at_each(self, outputs: Array, y: Array) -> Array:
        _check(outputs, y)
        return (jnp.argmax(outputs, axis=-1) == y).astype(outputs.dtype)


def _check(outputs: Array, y: Array) -> None:
    if outputs.shape[:-1] != y.shape or y.ndim != 2:
        raise InvalidInput(
            f"logits have shape {outputs.shape}, next tokens {y.shape}: give (n, time, vocabulary) and (n, time)"
        )


# The error of a reconstruction.


@dataclass(frozen=True)
class ReconstructionError(OfOutputs):
    """Reconstruction error: the mean of (model(x) - y)^2 over all entries of the images y, numbers or bytes / 255.

    Attributes:
        model: (params, x of shape (n, ...)) -> reconstructions of that shape, such as `Autoencoder`.
    """

    model: Model

    def of(self, outputs: Array, y: Array) -> Array:
        if outputs.shape != y.shape:
            raise InvalidInput(
                f"reconstructions have shape {outputs.shape}, images {y.shape}: they must agree"
            )
        return jnp.mean(flat(jnp.square(outputs - as_numbers(y, outputs))), axis=1)
