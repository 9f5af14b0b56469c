"""An encoder of token sequences as BERT has it, and the classifier on the mean of its outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedsolve.core.errors import InvalidInput, check_range
from fedsolve.tasks.models.layers import Affine, dense, dense_of, layer_norm, unit_norm
from fedsolve.tasks.networks.attention import NORMAL, attention, check_sizes

PADDING = 0
"""The token that is none: nothing attends to it, and the mean leaves it out."""


class EncoderLayer(NamedTuple):
    """Attention and two dense layers, each added to its input and then normalised.

    Attributes:
        query: (width, width), as key, value and mix.
        key: what queries are compared with.
        value: what attention takes the mean of.
        mix: what attention's result goes through.
        norm1: after attention, (width,).
        up: (inner, width).
        down: (width, inner).
        norm2: after the dense layers.
    """

    query: Affine
    key: Affine
    value: Affine
    mix: Affine
    norm1: Affine
    up: Affine
    down: Affine
    norm2: Affine


class EncoderParams(NamedTuple):
    """Parameters of `Encoder`.

    Attributes:
        words: a row a token, (vocabulary, width).
        positions: what is added at each position, (positions, width).
        segment: what is added at all, (width,): BERT's first kind of token, the only one of single texts.
        norm: after the sum of the three.
        layers: a tuple of `EncoderLayer`.
        head: a dense layer from the mean to the logits.
    """

    words: Any
    positions: Any
    segment: Any
    norm: Affine
    layers: tuple[EncoderLayer, ...]
    head: Affine


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
        """Normal weights of deviation 0.02, zero biases, norms with scale 1 and shift 0; the head is 0."""
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
        up, down = (
            dense_of(NORMAL, k[4], self.width, self.inner),
            dense_of(NORMAL, k[5], self.inner, self.width),
        )
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
        """Logits of shape (n, classes)."""
        there = (x != PADDING)[..., None]
        total = jnp.sum(jnp.where(there, self.outputs(params, x), 0), axis=1)
        return dense(params.head, total / jnp.maximum(jnp.sum(there, axis=1), 1))
