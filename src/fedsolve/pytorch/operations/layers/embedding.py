"""Rows of a table."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput
from fedsolve.pytorch.operations.tensors.promotion import index_dtype
from fedsolve.pytorch.translation.registry import operation


@operation("aten.embedding.default")
def embedding(
    weight: Array,
    indices: Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Array:
    """The rows of a table at indices; that of `padding_idx` has no gradient, one that does not exist is NaN."""
    _plain(scale_grad_by_freq)
    rows = jnp.take(weight, indices, 0)
    if padding_idx < 0:
        return rows
    return jnp.where((indices == padding_idx)[..., None], jax.lax.stop_gradient(rows), rows)


@operation("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Array, Array, Array]:
    """Sums (mode 0) or means (1) of rows, a bag from each offset to the next; the bag of each index; sizes of bags."""
    _plain(scale_grad_by_freq)
    if mode not in (0, 1):
        raise InvalidInput("EmbeddingBag(mode='max') is not translated: use mode='sum' or 'mean'")
    rows = embedding(weight, indices, padding_idx)
    rows = rows if per_sample_weights is None else rows * per_sample_weights[:, None]
    counted = indices != padding_idx
    rows = jnp.where(counted[:, None], rows, 0)
    bags = len(offsets) - include_last_offset
    bag = jnp.searchsorted(offsets[:bags], jnp.arange(len(indices)), side="right") - 1
    sums = jax.ops.segment_sum(rows, bag, bags)
    sizes = jax.ops.segment_sum(counted.astype(index_dtype()), bag, bags)
    if mode == 1:
        sums = sums / jnp.maximum(sizes, 1)[:, None].astype(sums.dtype)
    return sums, bag.astype(index_dtype()), sizes


def _plain(scale_grad_by_freq: bool) -> None:
    if scale_grad_by_freq:
        raise InvalidInput("Embedding(scale_grad_by_freq=True) is not translated: set it to False")
