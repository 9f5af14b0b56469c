"""Shapes, orders of axes, parts and joints; what is a view in PyTorch is a new value here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.pytorch.operations.operands import axes_of
from fedsolve.pytorch.translation.registry import operation, operations

operations(
    __name__,
    {
        "diagonal": jnp.diagonal,
        "permute": jnp.transpose,
        "repeat": jnp.tile,
        "unsqueeze": jnp.expand_dims,
        "view": jnp.reshape,
    },
)


@operation("aten.expand.default")
def expand(x: Array, size: Sequence[int], *, implicit: bool = False) -> Array:
    """Repeated along axes of length 1 and new ones; -1 keeps a length."""
    new = len(size) - x.ndim
    return jnp.broadcast_to(x, [x.shape[i - new] if n == -1 else n for i, n in enumerate(size)])


@operation("aten.squeeze.dim", "aten.squeeze.dims")
def squeeze(x: Array, dim: int | Sequence[int] | None = None) -> Array:
    """Without axes of length 1, all or some."""
    axes = () if dim is not None and not isinstance(dim, int) and not len(dim) else axes_of(dim, x.ndim)
    return jnp.squeeze(x, tuple(a for a in axes if x.shape[a] == 1))


@operation("aten.select.int")
def select(x: Array, dim: int, index: int) -> Array:
    """One entry along an axis."""
    return lax.index_in_dim(x, index, dim, keepdims=False)


@operation("aten.slice.Tensor")
def part(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    """The entries from a start to an end along an axis."""
    low, high, _ = slice(start, end, step).indices(x.shape[dim])
    return lax.slice_in_dim(x, low, max(low, high), step, dim)


@operation("aten.slice_scatter.default")
def slice_scatter(
    x: Array, src: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    """x with other entries in a slice."""
    place = [slice(None)] * x.ndim
    place[dim] = slice(start, end, step)
    return x.at[tuple(place)].set(src.astype(x.dtype))


@operation("aten.select_scatter.default")
def select_scatter(x: Array, src: Array, dim: int, index: int) -> Array:
    """x with another entry along an axis."""
    place: list[slice | int] = [slice(None)] * x.ndim
    place[dim] = index
    return x.at[tuple(place)].set(src.astype(x.dtype))


@operation("aten.cat.default")
def cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    """Arrays one after another along an axis; those of shape (0,) count for nothing."""
    dtype = reduce(jnp.promote_types, [x.dtype for x in tensors])
    kept = [x.astype(dtype) for x in tensors if x.shape != (0,)] or [tensors[0].astype(dtype)]
    return jnp.concatenate(kept, dim)


@operation("aten.split_with_sizes.default")
def split_with_sizes(x: Array, split_sizes: Sequence[int], dim: int = 0) -> tuple[Array, ...]:
    """Parts of given lengths along an axis."""
    return tuple(jnp.split(x, np.cumsum(split_sizes)[:-1].tolist(), dim))


@operation("aten.flip.default")
def flip(x: Array, dims: Sequence[int]) -> Array:
    """Axes in the reverse order; none where none is named."""
    return jnp.flip(x, tuple(dims)) if len(dims) else x


@operation("aten.as_strided.default")
def as_strided(
    x: Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Array:
    """Entries at regular places of the array laid flat; the array is taken as contiguous."""
    places = np.full((), storage_offset or 0)
    for length, step in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(length) * step
    return jnp.reshape(x, -1)[places]


@operation("aten.unfold.default")
def unfold(x: Array, dimension: int, size: int, step: int) -> Array:
    """Windows of an axis, along a new last axis."""
    starts = np.arange(0, x.shape[dimension] - size + 1, step)
    windows = jnp.take(x, starts[:, None] + np.arange(size), dimension % x.ndim)
    return jnp.moveaxis(windows, dimension % x.ndim + 1, -1)
