"""Attention."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.pytorch.operations.layers.activations import safe_softmax, softmax
from fedsolve.pytorch.operations.tensors.randomness import dropout
from fedsolve.pytorch.translation.registry import operation


@operation("aten.scaled_dot_product_attention.default", random=True)
def scaled_dot_product_attention(
    query: Array,
    keys: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    key: Array | None = None,
) -> Array:
    """Softmax of scaled products of queries and keys, times values: (..., length, features).

    A mask is True where a key counts, or is added to the products; a query without any key gives 0. With `enable_gqa`
    several query heads share one of keys.
    """
    if enable_gqa:
        shared = query.shape[-3] // keys.shape[-3]
        keys, value = jnp.repeat(keys, shared, -3), jnp.repeat(value, shared, -3)
    factor = float(query.shape[-1]) ** -0.5 if scale is None else scale
    scores = jnp.matmul(query * factor, jnp.swapaxes(keys, -1, -2))
    if is_causal:
        attn_mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if attn_mask is None:
        weights = softmax(scores, -1)
    else:
        scores = jnp.where(attn_mask, scores, -jnp.inf) if attn_mask.dtype == bool else scores + attn_mask
        weights = safe_softmax(scores, -1)
    return jnp.matmul(dropout(weights, dropout_p, True, key=key), value)
