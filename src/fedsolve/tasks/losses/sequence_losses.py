"""Losses and metrics of models that predict each next token: y is x moved on by one, padded at its end.

The loss is the mean over sequences of each one's mean over its tokens: a mean over a client's examples, as the
objective of every method is. The metrics are what the field reports: means over the tokens of all sequences together.
Padding counts in neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.core.types import Params
from fedsolve.tasks.losses.losses import CrossEntropy, Model, OfOutputs, Pooled
from fedsolve.tasks.targets import Classes, Targets
from fedsolve.tasks.task import Examples


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
        """The targets that it takes: a token for each of the model's outputs, and padding."""
        return Classes(self.model(params, batch[0]).shape[-1], self.padding)

    def labels(self, outputs: Array) -> Array:
        """The token of the largest logit at each position, the first of equal ones, int32 (n, time).

        Args:
            outputs: logits (n, time, vocabulary).

        Returns:
            Integers (n, time).
        """
        return jnp.argmax(outputs, axis=-1).astype(jnp.int32)

    def of(self, outputs: Array, y: Array) -> Array:
        """The mean over the positions of each example."""
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
        """How many tokens each sequence has, shape (n,)."""
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
