"""Losses and metrics of models that predict each next token: y is x moved on by one, padded at its end.

An example counts once, however long it is: its value is the mean over its positions that are no padding, 0 where all
are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.checks import check_integer
from fedsolve.errors import InvalidInput
from fedsolve.tasks.losses import CrossEntropy, Model, OfOutputs


@dataclass(frozen=True)
class NextToken(OfOutputs):
    """Mean over positions of -log softmax(model(x))[y], in nats: logits (n, time, vocabulary), y (n, time).

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

    def of(self, outputs: Array, y: Array) -> Array:
        """The mean over the positions of each example."""
        return _mean(self._at_each(outputs, y), y, self.padding)

    def _at_each(self, outputs: Array, y: Array) -> Array:
        _check(outputs, y)
        rows = outputs.reshape(-1, outputs.shape[-1])
        return CrossEntropy(self.model).of(rows, y.reshape(-1)).reshape(y.shape)


@dataclass(frozen=True)
class BitsPerToken(NextToken):
    """`NextToken` in bits: of a model of characters, bits per character.

    Attributes:
        model: (params, x of shape (n, time)) -> logits (n, time, vocabulary), such as `LSTM`.
        padding: the token of y that is none, at least 0; None if every token counts.
    """

    def of(self, outputs: Array, y: Array) -> Array:
        """The mean over the positions of each example."""
        return super().of(outputs, y) / math.log(2)


@dataclass(frozen=True)
class NextTokenAccuracy(NextToken):
    """Share of positions whose largest logit is the next token's (the first of equal logits counts).

    Attributes:
        model: (params, x of shape (n, time)) -> logits (n, time, vocabulary), such as `LSTM`.
        padding: the token of y that is none, at least 0; None if every token counts.
    """

    def _at_each(self, outputs: Array, y: Array) -> Array:
        _check(outputs, y)
        return (jnp.argmax(outputs, axis=-1) == y).astype(outputs.dtype)


def _mean(values: Array, y: Array, padding: int | None) -> Array:
    if padding is None:
        return jnp.mean(values, axis=-1)
    counts = y != padding
    return jnp.sum(jnp.where(counts, values, 0), axis=-1) / jnp.maximum(jnp.sum(counts, axis=-1), 1)


def _check(outputs: Array, y: Array) -> None:
    if outputs.shape[:-1] != y.shape or y.ndim != 2:
        raise InvalidInput(
            f"logits have shape {outputs.shape}, next tokens {y.shape}: give (n, time, vocabulary) and (n, time)"
        )
