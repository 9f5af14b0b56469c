"""What transformers share: blocks of attention and dense layers, norms before them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.tasks.models.layers import Affine, check_rate, dense, dense_of, dropout, layer_norm, unit_norm

NORMAL = jax.nn.initializers.normal(0.02)


class AttentionBlock(NamedTuple):
    """Attention and two dense layers, each with a norm before and its input around it.

    Attributes:
        norm1: before attention, (width,).
        attention: queries, keys and values in one matrix, (3 width, width).
        mix: what attention's result goes through, (width, width).
        norm2: before the dense layers.
        up: (4 width, width).
        down: (width, 4 width).
    """

    norm1: Affine
    attention: Affine
    mix: Affine
    norm2: Affine
    up: Affine
    down: Affine


class TransformerParams(NamedTuple):
    """Parameters of `ViT` and `CausalTransformer`.

    Attributes:
        embedding: of patches a dense layer, of tokens a table (vocabulary, width).
        positions: what is added at each position, (positions, width).
        blocks: a tuple of `AttentionBlock`.
        norm: before the output.
        output: a dense layer to the logits.
    """

    embedding: Any
    positions: Any
    blocks: tuple[AttentionBlock, ...]
    norm: Affine
    output: Affine


def init_transformer(
    key: Array, embedding: Any, positions: int, width: int, blocks: int, out: int
) -> TransformerParams:
    """Normal weights of deviation 0.02, zero biases; norms with scale 1 and shift 0."""
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
    """Positions, blocks and the last norm."""
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
    """Multi-head attention of each position to all, or to itself and those before it."""
    time = x.shape[1]
    queries, keys, values = jnp.moveaxis(dense(block.attention, x).reshape(*x.shape[:2], 3, heads, -1), 2, 0)
    seen = jnp.tri(time, dtype=bool) if causal else None
    return dense(block.mix, attention(queries, keys, values, seen).reshape(x.shape))


def attention(
    queries: Array, keys: Array, values: Array, seen: Array | None = None, hidden: Any = -jnp.inf
) -> Array:
    """Scaled dot-product attention (Vaswani et al. 2017); JAX's own computes in float32 whatever its inputs are.

    Args:
        queries: (n, time, heads, width of a head), as keys and values.
        keys: what queries are compared with.
        values: what the mean is taken of.
        seen: true where a query may attend to a key, of a shape that broadcasts to (n, heads, time, time); None
            where each attends to all.
        hidden: the score of any other pair; finite where a query may have nothing to attend to.

    Returns:
        The mean of the values for each query, (n, time, heads, width of a head).
    """
    scores = jnp.einsum("nqhd,nkhd->nhqk", queries, keys) / math.sqrt(queries.shape[-1])
    if seen is not None:
        scores = jnp.where(seen, scores, hidden)
    return jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), values)


def check_transformer(model: Any, *names: str) -> None:
    """Check sizes: integers from 1, heads that divide the width, a rate of dropout.

    Raises:
        InvalidInput: another value.
    """
    check_sizes(model, *names, "width", "layers", "heads")
    object.__setattr__(model, "dropout", check_rate("dropout", model.dropout))


def check_sizes(model: Any, *names: str) -> None:
    """Raise `InvalidInput` unless the fields of a model are integers from 1, and its heads divide its width."""
    for name in names:
        check_integer(name, getattr(model, name), 1)
    if model.width % model.heads:
        raise InvalidInput(
            f"heads = {model.heads} does not divide width = {model.width}: give a divisor of it"
        )
