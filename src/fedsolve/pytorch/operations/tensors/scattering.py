"""Entries written at places that are themselves tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput
from fedsolve.pytorch.operations.tensors.indexing import gather, places
from fedsolve.pytorch.operations.tensors.promotion import is_floating
from fedsolve.pytorch.translation.registry import operation


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
