"""Transformers: of sequences of tokens, of images, and an encoder as BERT has it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedsolve.core.errors import InvalidInput, check_integer, check_range
from fedsolve.tasks.models.models import (
    Affine,
    as_numbers,
    check_rate,
    dense,
    dense_of,
    dropout,
    layer_norm,
    unit_norm,
)
from fedsolve.tasks.models.recurrent import check_tokens

NORMAL = jax.nn.initializers.normal(0.02)


class AttentionBlock(NamedTuple):
    """Attention and two dense layers, each with a norm before and its input around it."""

    norm1: Affine  # before attention, (width,)
    attention: Affine  # queries, keys and values in one matrix, (3 width, width)
    mix: Affine  # what attention's result goes through, (width, width)
    norm2: Affine  # before the dense layers
    up: Affine  # (4 width, width)
    down: Affine  # (width, 4 width)


class TransformerParams(NamedTuple):
    """Parameters of `ViT` and `CausalTransformer`."""

    embedding: Any  # of patches a dense layer, of tokens a table (vocabulary, width)
    positions: Any  # what is added at each position, (positions, width)
    blocks: tuple[AttentionBlock, ...]  # a tuple of `AttentionBlock`
    norm: Affine  # before the output
    output: Affine  # a dense layer to the logits


def init_transformer(
    key: Array, embedding: Any, positions: int, width: int, blocks: int, out: int
) -> TransformerParams:
    # weights of deviation 0.02, zero biases; norms with scale 1 and shift 0
    k1, k2, *keys = jax.random.split(key, 2 + blocks)
    return TransformerParams(
        embedding,
        NORMAL(k1, (positions, width)),
        tuple(_block(k, width) for k in keys),
        unit_norm(width),
        dense_of(NORMAL, k2, width, out),
    )


def _block(key: Array, width: int) -> AttentionBlock:
    k1, k2, k3, k4 = jax.random.split(key, 4)
    return AttentionBlock(
        unit_norm(width),
        dense_of(NORMAL, k1, width, 3 * width),
        dense_of(NORMAL, k2, width, width),
        unit_norm(width),
        dense_of(NORMAL, k3, width, 4 * width),
        dense_of(NORMAL, k4, 4 * width, width),
    )


def transform(
    params: TransformerParams,
    x: Float[Array, "n time width"],
    heads: int,
    rate: float,
    key: Array | None,
    causal: bool,
) -> Float[Array, "n time width"]:
    # positions, blocks and the last norm
    count = 1 + 2 * len(params.blocks)
    first, *keys = [None] * count if key is None else jax.random.split(key, count)
    x = dropout(first, rate, x + params.positions[: x.shape[1]])
    for i, block in enumerate(params.blocks):
        y = _attend(block, layer_norm(block.norm1, x), heads, causal)
        x = x + dropout(keys[2 * i], rate, y)
        y = jax.nn.gelu(dense(block.up, layer_norm(block.norm2, x)), approximate=False)
        x = x + dropout(keys[2 * i + 1], rate, dense(block.down, y))
    return layer_norm(params.norm, x)


def _attend(block: AttentionBlock, x: Array, heads: int, causal: bool) -> Array:
    # of each position to all, or to itself and those before it
    time = x.shape[1]
    queries, keys, values = jnp.moveaxis(dense(block.attention, x).reshape(*x.shape[:2], 3, heads, -1), 2, 0)
    seen = jnp.tri(time, dtype=bool) if causal else None
    return dense(block.mix, attention(queries, keys, values, seen).reshape(x.shape))


def attention(
    queries: Array, keys: Array, values: Array, seen: Array | None = None, hidden: Any = -jnp.inf
) -> Array:
    # (Vaswani et al. 2017); JAX's own computes in float32 whatever its inputs are. queries, keys, values, and
    # the result: (n, time, heads, width of a head). seen: true where a query may attend to a key, broadcasts
    # to (n, heads, time, time), None for everywhere. hidden: the score of other pairs, finite where a query
    # may have nothing to attend to
    scores = jnp.einsum("nqhd,nkhd->nhqk", queries, keys) / math.sqrt(queries.shape[-1])
    if seen is not None:
        scores = jnp.where(seen, scores, hidden)
    return jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), values)


def check_transformer(model: Any, *names: str) -> None:
    check_sizes(model, *names, "width", "layers", "heads")
    object.__setattr__(model, "dropout", check_rate("dropout", model.dropout))


def check_sizes(model: Any, *names: str) -> None:
    for name in names:
        check_integer(name, getattr(model, name), 1)
    if model.width % model.heads:
        raise InvalidInput(
            f"heads = {model.heads} does not divide width = {model.width}: give a divisor of it"
        )


# A causal transformer of sequences of tokens, and a vision transformer.


class _Dropping:
    dropout: float

    @property
    def asks(self) -> frozenset[str]:
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
        k1, k2 = jax.random.split(key)
        table = NORMAL(k1, (self.vocabulary, self.width))
        return init_transformer(k2, table, self.length, self.width, self.layers, self.vocabulary)

    def __call__(
        self, params: TransformerParams, x: Int[Array, "n time"], key: Array | None = None
    ) -> Float[Array, "n time vocabulary"]:
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
        k1, k2 = jax.random.split(key)
        embedding = dense_of(NORMAL, k1, self.patch**2 * self.inputs, self.width)
        return init_transformer(
            k2, embedding, (self.image // self.patch) ** 2, self.width, self.layers, self.classes
        )

    def __call__(self, params: TransformerParams, x: Array, key: Array | None = None) -> Array:
        side, n = self.image // self.patch, x.shape[0]
        x = as_numbers(x, params.output.weight).reshape(n, side, self.patch, side, self.patch, self.inputs)
        patches = jnp.swapaxes(x, 2, 3).reshape(n, side * side, -1)
        y = transform(params, dense(params.embedding, patches), self.heads, self.dropout, key, False)
        return dense(params.output, jnp.mean(y, axis=1))


# An encoder of token sequences as BERT has it, and the classifier on the mean of its outputs.

PADDING = 0
"""The token that is none: nothing attends to it, and the mean leaves it out."""


class EncoderLayer(NamedTuple):
    """Attention and two dense layers, each added to its input and then normalised."""

    query: Affine  # (width, width), as key, value and mix
    key: Affine  # what queries are compared with
    value: Affine  # what attention takes the mean of
    mix: Affine  # what attention's result goes through
    norm1: Affine  # after attention, (width,)
    up: Affine  # (inner, width)
    down: Affine  # (width, inner)
    norm2: Affine  # after the dense layers


class EncoderParams(NamedTuple):
    """Parameters of `Encoder`."""

    words: Any  # a row a token, (vocabulary, width)
    positions: Any  # what is added at each position, (positions, width)
    segment: Any  # what is added at all, (width,): BERT's first kind of token, the only one of single texts
    norm: Affine  # after the sum of the three
    layers: tuple[EncoderLayer, ...]  # a tuple of `EncoderLayer`
    head: Affine  # a dense layer from the mean to the logits


@dataclass(frozen=True)
class Encoder:
    """BERT encoder (Devlin et al. 2019), with the mean over a sequence's tokens and a dense layer to logits.

    The sizes by default are those of MiniLM (Wang et al. 2020) with 6 layers: 22,572,692 parameters with a head of 20.
    x are int32 (n, time), time at most `positions`, padded at the end with 0, which is left out everywhere. There is
    no dropout.

    Attributes:
        classes: outputs, at least 1.
        vocabulary: tokens, padding among them; at least 1.
        positions: the longest sequence, at least 1.
        width: numbers of a token, at least 1.
        layers: blocks of attention and dense layers; at least 1.
        heads: of attention; must divide the width; at least 1.
        inner: width of the dense layers between.
        epsilon: of the norms, above 0.

    Raises:
        InvalidInput: a number out of its range, or heads that do not divide the width.
    """

    classes: int = 20
    vocabulary: int = 30_522
    positions: int = 512
    width: int = 384
    layers: int = 6
    heads: int = 12
    inner: int = 1_536
    epsilon: float = 1e-12

    def __post_init__(self) -> None:
        check_sizes(self, "classes", "vocabulary", "positions", "width", "layers", "heads", "inner")
        check_range("epsilon", self.epsilon, above=0)

    def init(self, key: Array) -> EncoderParams:
        # as other transformers; the head is 0
        k1, k2, k3, *keys = jax.random.split(key, 3 + self.layers)
        return EncoderParams(
            NORMAL(k1, (self.vocabulary, self.width)),
            NORMAL(k2, (self.positions, self.width)),
            NORMAL(k3, (self.width,)),
            unit_norm(self.width),
            tuple(self._layer(k) for k in keys),
            Affine(jnp.zeros((self.classes, self.width)), jnp.zeros(self.classes)),
        )

    def _layer(self, key: Array) -> EncoderLayer:
        k = jax.random.split(key, 6)
        q, v, w, m = (dense_of(NORMAL, one, self.width, self.width) for one in k[:4])
        up = dense_of(NORMAL, k[4], self.width, self.inner)
        down = dense_of(NORMAL, k[5], self.inner, self.width)
        return EncoderLayer(q, v, w, m, unit_norm(self.width), up, down, unit_norm(self.width))

    def outputs(self, params: EncoderParams, x: Int[Array, "n time"]) -> Float[Array, "n time width"]:
        """The last layer's outputs at each position; those at padding are meaningless.

        Args:
            params: the encoder's.
            x: tokens, integers (n, time), padding 0.

        Returns:
            Floats (n, time, width).

        Raises:
            InvalidInput: longer sequences than the encoder has positions.
        """
        if x.shape[1] > self.positions:
            raise InvalidInput(f"sequences of {x.shape[1]} tokens: the model has {self.positions} positions")
        there = x != PADDING
        y = params.words[x] + params.positions[: x.shape[1]] + params.segment
        y = layer_norm(params.norm, y, self.epsilon)
        for layer in params.layers:
            y = layer_norm(layer.norm1, y + self._attend(layer, y, there), self.epsilon)
            inner = jax.nn.gelu(dense(layer.up, y), approximate=False)
            y = layer_norm(layer.norm2, y + dense(layer.down, inner), self.epsilon)
        return y

    def _attend(self, layer: EncoderLayer, x: Array, there: Array) -> Array:
        queries, keys, values = (
            dense(part, x).reshape(*x.shape[:2], self.heads, -1)
            for part in (layer.query, layer.key, layer.value)
        )
        # a finite score for padding, since a row of padding alone has nothing to attend to
        mixed = attention(queries, keys, values, there[:, None, None], jnp.finfo(queries.dtype).min)
        return dense(layer.mix, mixed.reshape(x.shape))

    def __call__(self, params: EncoderParams, x: Int[Array, "n time"]) -> Float[Array, "n classes"]:
        there = (x != PADDING)[..., None]
        total = jnp.sum(jnp.where(there, self.outputs(params, x), 0), axis=1)
        return dense(params.head, total / jnp.maximum(jnp.sum(there, axis=1), 1))
