"""A causal transformer of sequences of tokens, and a vision transformer."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks.models.layers import as_numbers, dense, dense_of
from fedsolve.tasks.networks.attention import (
    NORMAL,
    TransformerParams,
    check_transformer,
    init_transformer,
    transform,
)
from fedsolve.tasks.networks.recurrent import check_tokens


class _Dropping:
    """A model with dropout."""

    dropout: float

    @property
    def asks(self) -> frozenset[str]:
        """A key where it drops anything (`fedsolve.tasks.loss_arguments`)."""
        return frozenset({"key"} if self.dropout else ())


@dataclass(frozen=True)
class CausalTransformer(_Dropping):
    """Transformer decoder (Vaswani et al. 2017) with learned positions, pre-normalisation and GELU.

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


@dataclass(frozen=True)
class ViT(_Dropping):
    """Vision transformer (Dosovitskiy et al. 2021): patches as tokens, learned positions, pre-normalisation, GELU.

    The logits come from the mean over the patches (Beyer et al. 2022). x has shape (n, image, image, inputs), numbers
    or bytes (taken as x / 255).

    Attributes:
        classes: outputs, at least 1.
        image: side of an image in pixels, a multiple of the patch's.
        patch: side of a patch, at least 1.
        inputs: channels of an image: 1 for grey, 3 for colours; at least 1.
        width: numbers of a patch; the dense layers between have four times as many.
        layers: blocks of attention and dense layers; at least 1.
        heads: of attention; must divide the width; at least 1.
        dropout: rate after the embedding, attention and dense layers, at least 0 and below 1.

    Raises:
        InvalidInput: a number out of its range, or one that does not divide another as it must.
    """

    classes: int = 10
    image: int = 32
    patch: int = 4
    inputs: int = 3
    width: int = 192
    layers: int = 6
    heads: int = 3
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_transformer(self, "classes", "image", "patch", "inputs")
        if self.image % self.patch:
            raise InvalidInput(
                f"patch = {self.patch} does not divide image = {self.image}: give a divisor of it"
            )

    def init(self, key: Array) -> TransformerParams:
        """Normal weights of deviation 0.02, zero biases; norms with scale 1 and shift 0."""
        k1, k2 = jax.random.split(key)
        embedding = dense_of(NORMAL, k1, self.patch**2 * self.inputs, self.width)
        return init_transformer(
            k2, embedding, (self.image // self.patch) ** 2, self.width, self.layers, self.classes
        )

    def __call__(self, params: TransformerParams, x: Array, key: Array | None = None) -> Array:
        """Logits of shape (n, classes); with a key for dropout in training, without one in evaluation."""
        side, n = self.image // self.patch, x.shape[0]
        x = as_numbers(x, params.output.weight).reshape(n, side, self.patch, side, self.patch, self.inputs)
        patches = jnp.swapaxes(x, 2, 3).reshape(n, side * side, -1)
        y = transform(params, dense(params.embedding, patches), self.heads, self.dropout, key, False)
        return dense(params.output, jnp.mean(y, axis=1))
