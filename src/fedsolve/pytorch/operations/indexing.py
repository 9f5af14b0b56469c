"""Entries read and written at places that are themselves tensors, rows of a table, and orders of entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput
from fedsolve.pytorch.operations.operands import index_dtype, is_floating
from fedsolve.pytorch.translation.registry import operation


@operation("aten.index.Tensor")
def index(x: Array, indices: Sequence[Array | None]) -> Array:
    """The entries at places given axis by axis, None being all."""
    return x[places(indices, "index")]


def places(indices: Sequence[Array | None], name: str) -> tuple[Array | slice, ...]:
    """Indices as NumPy takes them.

    Raises:
        InvalidInput: a mask, whose result has a size that depends on data.
    """
    if any(i is not None and i.dtype == bool for i in indices):
        raise InvalidInput(
            f"aten.{name} by a mask has a size that depends on the data: write torch.where(mask, x, 0) instead"
        )
    return tuple(slice(None) if i is None else i for i in indices)


@operation("aten.index_select.default")
def index_select(x: Array, dim: int, index: Array) -> Array:
    """The entries of one axis in the order of a list of places."""
    return jnp.take(x, index.reshape(-1), dim) if x.ndim else x


@operation("aten.gather.default")
def gather(x: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    """For each place the entry of x that differs from it in one axis, where the index says."""
    if x.ndim == 0:
        return jnp.broadcast_to(x, index.shape)
    dim %= x.ndim
    if index.ndim == 0:
        return x[index]
    x = x[tuple(slice(None) if a == dim else slice(n) for a, n in enumerate(index.shape))]
    return jnp.take_along_axis(x, index, dim)


@operation("aten.sort.default", "aten.sort.stable")
def sort(
    x: Array, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Array, Array]:
    """The entries of an axis in order and where they were; equal ones stay in their order."""
    if x.ndim == 0:
        return x, jnp.zeros((), index_dtype())
    order = jnp.argsort(x, dim, stable=True, descending=descending)
    return jnp.take_along_axis(x, order, dim), order.astype(index_dtype())


@operation("aten.topk.default")
def topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    """The k greatest, or least, entries of an axis and where they were."""
    if x.ndim == 0:
        return x, jnp.zeros((), index_dtype())
    values, order = sort(x, dim, largest)
    return lax.slice_in_dim(values, 0, k, axis=dim), lax.slice_in_dim(order, 0, k, axis=dim)


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


@operation("aten.index_put.default")
def index_put(x: Array, indices: Sequence[Any], values: Array, accumulate: bool = False) -> Array:
    """x with values put at places, or added to what is there."""
    values = values.astype(x.dtype)
    if fits_a_mask(x, indices, values):
        mask = jnp.expand_dims(indices[-1], (*range(len(indices) - 1), *range(-_behind(x, indices), 0)))
        return jnp.where(mask, x + values if accumulate else values, x)
    spot = x.at[places(indices, "index_put")]
    return spot.add(values) if accumulate else spot.set(values)


def fits_a_mask(x: Any, indices: Sequence[Any], values: Any) -> bool:
    """Whether one mask says where the same values go everywhere, so that it does not matter how often it holds."""
    *before, mask = indices
    boolean = mask is not None and str(mask.dtype).endswith("bool") and all(i is None for i in before)
    return boolean and values.ndim <= _behind(x, indices)


def _behind(x: Any, indices: Sequence[Any]) -> int:
    """How many axes stand behind a mask's."""
    return x.ndim - (len(indices) - 1) - indices[-1].ndim


@operation("aten.scatter.src", "aten.scatter.value")
def scatter(x: Array, dim: int, index: Array, src: Any) -> Array:
    """x with entries put where an index says along one axis."""
    return _spot(x, dim, index).set(_source(src, index, x))


@operation("aten.scatter_add.default")
def scatter_add(x: Array, dim: int, index: Array, src: Array) -> Array:
    """x with entries added where an index says along one axis."""
    return _spot(x, dim, index).add(_source(src, index, x))


@operation("aten.scatter_reduce.two")
def scatter_reduce(
    x: Array, dim: int, index: Array, src: Array, reduce: str, *, include_self: bool = True
) -> Array:
    """x with entries joined to it where an index says along one axis, by sum, mean, amax or amin."""
    if reduce not in ("sum", "mean", "amax", "amin"):
        raise InvalidInput(f"scatter_reduce by {reduce!r} is not translated: use sum, mean, amax or amin")
    source = _source(src, index, x)
    ones = jnp.ones(x.shape, x.dtype)
    own = ones if include_self else _spot(ones, dim, index).set(0)  # else only where nothing joins
    count = _spot(own, dim, index)
    if reduce in ("sum", "mean"):
        sums = _spot(jnp.where(own > 0, x, 0), dim, index).add(source)
        counts = jnp.maximum(count.add(jnp.ones_like(source)), 1)
        return sums if reduce == "sum" else sums / counts if is_floating(x) else sums // counts
    start = _spot(jnp.where(own > 0, x, _beyond(x, reduce)), dim, index)
    fixed = lax.stop_gradient(start.max(source) if reduce == "amax" else start.min(source))
    if not is_floating(x):
        return fixed
    ours, theirs = (own > 0) & (x == fixed), source == gather(fixed, dim, index)
    ties = _spot(ours.astype(x.dtype), dim, index).add(theirs.astype(x.dtype))
    shared = _spot(jnp.where(ours, x, 0), dim, index).add(jnp.where(theirs, source, 0)) / ties
    return fixed + (shared - lax.stop_gradient(shared))  # equal entries share the gradient


def _spot(x: Array, dim: int, index: Array) -> Any:
    """Where along `dim` the entries of an index lie; along the other axes they lie where they are."""
    if x.ndim == 0:
        return jnp.reshape(x, 1).at[index] if index.ndim else x.at[()]
    grid = [
        np.arange(n).reshape([-1 if a == b else 1 for b in range(x.ndim)]) for a, n in enumerate(index.shape)
    ]
    return x.at[tuple(index if a == dim % x.ndim else g for a, g in enumerate(grid))]


def _source(src: Any, index: Array, x: Array) -> Array:
    """The part of a source that an index reaches; a number is everywhere."""
    if isinstance(src, bool | int | float):
        return jnp.full(index.shape, src, x.dtype)
    return src[tuple(map(slice, index.shape))].astype(x.dtype)


@operation("aten.masked_scatter.default")
def masked_scatter(x: Array, mask: Array, source: Array) -> Array:
    """x with the entries of a source, one after another, where a mask holds."""
    x, mask = jnp.broadcast_arrays(x, mask)
    number = jnp.cumsum(mask.reshape(-1)) - 1
    return jnp.where(mask, source.reshape(-1)[number].reshape(x.shape).astype(x.dtype), x)


def _beyond(x: Array, reduce: str) -> Any:
    """What no extreme is."""
    limits = jnp.finfo(x.dtype) if is_floating(x) else jnp.iinfo(x.dtype)
    return limits.min if reduce == "amax" else limits.max
