"""A causal transformer of sequences of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float, Int

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks.models.layers import dense
from fedsolve.tasks.networks.attention import (
    NORMAL,
    TransformerParams,
    check_transformer,
    init_transformer,
    transform,
)
from fedsolve.tasks.networks.recurrent import check_tokens


@dataclass(frozen=True)
class CausalTransformer:
    """A decoder (Vaswani et al. 2017): learned positions, norms before attention and dense layers, GELU.

    Logits of the token after each position. What follows a position cannot reach it, so sequences padded at their
    end need a mask in the loss alone.

    Attributes:
        vocabulary: tokens, numbered from 0.
        length: the longest sequence, at least 1.
        width: numbers of a position; the dense layers between have four times as many.
        layers: blocks of attention and dense layers; at least 1.
        heads: of attention; must divide the width; at least 1.
        dropout: rate after the embedding, attention and dense layers, at least 0 and below 1.

    Raises:
        InvalidInput: a number out of its range, heads that do not divide the width; when it is used, a longer sequence
            or one without a position.
    """

    vocabulary: int
    length: int = 80
    width: int = 128
    layers: int = 2
    heads: int = 4
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_transformer(self, "vocabulary", "length")

    @property
    def asks(self) -> frozenset[str]:
        """A key where it drops anything (`fedsolve.tasks.loss_arguments`)."""
        return frozenset({"key"} if self.dropout else ())

    def init(self, key: Array) -> TransformerParams:
        """Normal weights of deviation 0.02, zero biases; norms with scale 1 and shift 0."""
        k1, k2 = jax.random.split(key)
        table = NORMAL(k1, (self.vocabulary, self.width))
        return init_transformer(k2, table, self.length, self.width, self.layers, self.vocabulary)

    def __call__(
        self, params: TransformerParams, x: Int[Array, "n time"], key: Array | None = None
    ) -> Float[Array, "n time vocabulary"]:
        """Logits (n, time, vocabulary); with a key for dropout in training, without one in evaluation."""
        check_tokens(x)
        if x.shape[1] > self.length:
            raise InvalidInput(f"sequences have {x.shape[1]} positions, the model length = {self.length}")
        return dense(
            params.output, transform(params, params.embedding[x], self.heads, self.dropout, key, True)
        )
