"""Shapes, orders of axes, parts and joints; what is a view in PyTorch is a new value here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput
from fedsolve.pytorch.operations.operands import axes_of, default_dtype, index_dtype, is_floating, type_of
from fedsolve.pytorch.reference import FixedRandom, are_fixed
from fedsolve.pytorch.translation.arrays import jax_dtype
from fedsolve.pytorch.translation.registry import operation, operations

operations(
    {
        "diagonal": jnp.diagonal,
        "flip": lambda x, dims: jnp.flip(x, tuple(dims)) if len(dims) else x,
        "index_select": lambda x, dim, index: jnp.take(x, index.reshape(-1), dim) if x.ndim else x,
        "permute": jnp.transpose,
        "repeat": jnp.tile,
        "scatter.src": lambda x, dim, index, src: _spot(x, dim, index).set(_source(src, index, x)),
        "scatter.value": lambda x, dim, index, value: _spot(x, dim, index).set(_source(value, index, x)),
        "scatter_add": lambda x, dim, index, src: _spot(x, dim, index).add(_source(src, index, x)),
        "select.int": lambda x, dim, index: lax.index_in_dim(x, index, dim, keepdims=False),
        "select_scatter": lambda x, src, dim, index: _part_of(x, dim, index).set(src.astype(x.dtype)),
        "slice_scatter": lambda x, src, dim=0, start=None, end=None, step=1: _part_of(
            x, dim, slice(start, end, step)
        ).set(src.astype(x.dtype)),
        "split_with_sizes": lambda x, sizes, dim=0: tuple(jnp.split(x, np.cumsum(sizes)[:-1].tolist(), dim)),
        "unsqueeze": jnp.expand_dims,
        "view": jnp.reshape,
    }
)


def _part_of(x: Array, dim: int, index: int | slice) -> Any:
    place: list[int | slice] = [slice(None)] * x.ndim
    place[dim] = index
    return x.at[tuple(place)]


@operation("aten.expand.default")
def expand(x: Array, size: Sequence[int], *, implicit: bool = False) -> Array:
    # -1 keeps a length
    new = len(size) - x.ndim
    return jnp.broadcast_to(x, [x.shape[i - new] if n == -1 else n for i, n in enumerate(size)])


@operation("aten.squeeze.dim", "aten.squeeze.dims")
def squeeze(x: Array, dim: int | Sequence[int] | None = None) -> Array:
    # an empty list of axes squeezes none, None all
    axes = () if dim is not None and not isinstance(dim, int) and not len(dim) else axes_of(dim, x.ndim)
    return jnp.squeeze(x, tuple(a for a in axes if x.shape[a] == 1))


@operation("aten.slice.Tensor")
def part(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    low, high, _ = slice(start, end, step).indices(x.shape[dim])
    return lax.slice_in_dim(x, low, max(low, high), step, dim)


@operation("aten.cat.default")
def cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    # arrays of shape (0,) count for nothing
    dtype = reduce(jnp.promote_types, [x.dtype for x in tensors])
    kept = [x.astype(dtype) for x in tensors if x.shape != (0,)] or [tensors[0].astype(dtype)]
    return jnp.concatenate(kept, dim)


@operation("aten.as_strided.default")
def as_strided(
    x: Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Array:
    # the array is taken as contiguous
    places = np.full((), storage_offset or 0)
    for length, step in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(length) * step
    return jnp.reshape(x, -1)[places]


@operation("aten.unfold.default")
def unfold(x: Array, dimension: int, size: int, step: int) -> Array:
    # windows come along a new last axis
    starts = np.arange(0, x.shape[dimension] - size + 1, step)
    windows = jnp.take(x, starts[:, None] + np.arange(size), dimension % x.ndim)
    return jnp.moveaxis(windows, dimension % x.ndim + 1, -1)


# Entries read and written at places that are themselves tensors, rows of a table, and orders of entries.


@operation("aten.index.Tensor")
def index(x: Array, indices: Sequence[Array | None]) -> Array:
    return x[places(indices, "index")]


def places(indices: Sequence[Array | None], name: str) -> tuple[Array | slice, ...]:
    # a mask is refused: the size of its result depends on data
    if any(i is not None and i.dtype == bool for i in indices):
        raise InvalidInput(
            f"aten.{name} by a mask has a size that depends on the data: write torch.where(mask, x, 0) instead"
        )
    return tuple(slice(None) if i is None else i for i in indices)


@operation("aten.gather.default")
def gather(x: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    # out[i, j, ...] = x[i, index[i, j, ...], ...] with `dim` = 1
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
    # stable whether or not it is asked for
    if x.ndim == 0:
        return x, jnp.zeros((), index_dtype())
    order = jnp.argsort(x, dim, stable=True, descending=descending)
    return jnp.take_along_axis(x, order, dim), order.astype(index_dtype())


@operation("aten.topk.default")
def topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    # equal ones stay in their order
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
    # the row of `padding_idx` has no gradient, one that does not exist is NaN
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
    # sums (mode 0) or means (1) of the rows of a bag, which reaches from one offset to the next; returns
    # these, the bag of each index, and the sizes of bags
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
    # a boolean mask becomes a `where`, whose shape does not depend on the data
    values = values.astype(x.dtype)
    if fits_a_mask(x, indices, values):
        mask = jnp.expand_dims(indices[-1], (*range(len(indices) - 1), *range(-_behind(x, indices), 0)))
        return jnp.where(mask, x + values if accumulate else values, x)
    spot = x.at[places(indices, "index_put")]
    return spot.add(values) if accumulate else spot.set(values)


def fits_a_mask(x: Any, indices: Sequence[Any], values: Any) -> bool:
    # the same values go wherever the mask holds, so that it does not matter how often it does
    *before, mask = indices
    boolean = mask is not None and str(mask.dtype).endswith("bool") and all(i is None for i in before)
    return boolean and values.ndim <= _behind(x, indices)


def _behind(x: Any, indices: Sequence[Any]) -> int:
    # axes behind those of the mask
    return x.ndim - (len(indices) - 1) - indices[-1].ndim


@operation("aten.scatter_reduce.two")
def scatter_reduce(
    x: Array, dim: int, index: Array, src: Array, reduce: str, *, include_self: bool = True
) -> Array:
    # PyTorch's gradient: entries that are equal to the extreme share it
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
    # along `dim` the index says where; along the other axes entries stay where they are
    if x.ndim == 0:
        return jnp.reshape(x, 1).at[index] if index.ndim else x.at[()]
    grid = [
        np.arange(n).reshape([-1 if a == b else 1 for b in range(x.ndim)]) for a, n in enumerate(index.shape)
    ]
    return x.at[tuple(index if a == dim % x.ndim else g for a, g in enumerate(grid))]


def _source(src: Any, index: Array, x: Array) -> Array:
    # the part of a source that an index reaches; a number is everywhere
    if isinstance(src, bool | int | float):
        return jnp.full(index.shape, src, x.dtype)
    return src[tuple(map(slice, index.shape))].astype(x.dtype)


@operation("aten.masked_scatter.default")
def masked_scatter(x: Array, mask: Array, source: Array) -> Array:
    # the k-th place where the mask holds gets the k-th entry of the source
    x, mask = jnp.broadcast_arrays(x, mask)
    number = jnp.cumsum(mask.reshape(-1)) - 1
    return jnp.where(mask, source.reshape(-1)[number].reshape(x.shape).astype(x.dtype), x)


def _beyond(x: Array, reduce: str) -> Any:
    # the neutral element of a maximum or minimum
    limits = jnp.finfo(x.dtype) if is_floating(x) else jnp.iinfo(x.dtype)
    return limits.min if reduce == "amax" else limits.max


# New and converted tensors, and random ones from a JAX key: other draws than PyTorch's, of the same distributions.

operations(
    {
        # floating numbers are rounded towards 0 to become integers
        "_to_copy": lambda x, *, dtype=None, **_: x if dtype is None else x.astype(jax_dtype(dtype)),
        "copy": lambda x, src, non_blocking=False: jnp.broadcast_to(src.astype(x.dtype), x.shape),
        "fill.Scalar": lambda x, value: jnp.broadcast_to(jnp.asarray(value, x.dtype), x.shape),
        "full": lambda size, value, *, dtype=None, **_: jnp.full(
            tuple(size), value, jax_dtype(dtype) or type_of(value)
        ),
        "full_like": lambda x, value, *, dtype=None, **_: jnp.full(
            x.shape, value, jax_dtype(dtype) or x.dtype
        ),
        "scalar_tensor": lambda s, *, dtype=None, **_: jnp.asarray(s, jax_dtype(dtype) or default_dtype()),
    }
)


@operation("aten.arange.start_step")
def arange(start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **_: Any) -> Array:
    whole = all(isinstance(v, int) for v in (start, end, step))
    return jnp.arange(start, end, step, jax_dtype(dtype) or (index_dtype() if whole else default_dtype()))


@operation("aten.empty.memory_format", "aten.empty_permuted.default", "aten.empty_strided.default")
def empty(size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Array:
    # PyTorch leaves the entries undefined; the layout in memory does not matter here
    return jnp.zeros(tuple(size), jax_dtype(dtype) or default_dtype())


@operation("aten.dropout.default", random=True)
def dropout(x: Array, p: float, train: bool, *, key: Array | None) -> Array:
    return native_dropout(x, p, train, key=key)[0]


@operation("aten.native_dropout.default", random=True)
def native_dropout(x: Array, p: float, train: bool | None, *, key: Array | None) -> tuple[Array, Array]:
    if train is False or p == 0:
        return x, jnp.ones(x.shape, bool)
    kept = _drawn(key).bernoulli(1 - p, x.shape)
    return jnp.where(kept, x / (1 - p), 0) if p < 1 else jnp.zeros_like(x), kept


@operation("aten.alpha_dropout.default", random=True)
def alpha_dropout(
    x: Array, p: float, train: bool, *, key: Array | None, shape: tuple[int, ...] | None = None
) -> Array:
    # keeps mean 0 and variance 1 of a self-normalising network (Klambauer et al. 2017, section 3); `shape` is
    # that of the draws
    if not train or p == 0:
        return x
    if p == 1:
        return jnp.zeros_like(x)
    low = -1.7580993408473766
    a = ((low**2 * p + 1) * (1 - p)) ** -0.5
    kept = _drawn(key).bernoulli(1 - p, x.shape if shape is None else shape)
    return jnp.where(kept, x * a, low * a) - low * a * p


def _by_channel(x: Array) -> tuple[int, ...]:
    return (*x.shape[:2], *[1] * (x.ndim - 2))


def _uniform_like(x: Array, *, dtype: torch.dtype | None = None, key: Array | None, **_: Any) -> Array:
    return _drawn(key).uniform(x.shape, jax_dtype(dtype) or x.dtype)


def _normal_like(x: Array, *, dtype: torch.dtype | None = None, key: Array | None, **_: Any) -> Array:
    return _drawn(key).normal(x.shape, jax_dtype(dtype) or x.dtype)


operations(
    {
        "bernoulli.p": lambda x, p=0.5, *, key, **_: _drawn(key).bernoulli(p, x.shape).astype(x.dtype),
        "exponential": lambda x, rate=1.0, *, key, **_: -jnp.log1p(-_uniform_like(x, key=key)) / rate,
        "feature_alpha_dropout": lambda x, p, train, *, key: alpha_dropout(
            x, p, train, key=key, shape=_by_channel(x)
        ),
        "feature_dropout": lambda x, p, train, *, key: (
            x * dropout(jnp.ones(_by_channel(x), x.dtype), p, train, key=key)
        ),
        "normal_functional": lambda x, mean=0.0, std=1.0, *, key, **_: mean + std * _normal_like(x, key=key),
        "rand": lambda size, *, dtype=None, key, **_: _drawn(key).uniform(
            size, jax_dtype(dtype) or default_dtype()
        ),
        "rand_like": _uniform_like,
        "randint.low": lambda low, high, size, *, dtype=torch.int64, key, **_: (
            _drawn(key).randint(size, low, high).astype(jax_dtype(dtype))
        ),
        "randn": lambda size, *, dtype=None, key, **_: _drawn(key).normal(
            size, jax_dtype(dtype) or default_dtype()
        ),
        "randn_like": _normal_like,
        "randperm": lambda n, *, dtype=torch.int64, key, **_: (
            _drawn(key).permutation(n).astype(jax_dtype(dtype))
        ),
        "uniform": lambda x, low=0.0, high=1.0, *, key, **_: low + (high - low) * _uniform_like(x, key=key),
    },
    random=True,
)


@operation("aten.rrelu_with_noise_functional.default", random=True)
def rrelu(
    x: Array,
    noise: Array,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    *,
    generator: None = None,
    key: Array | None = None,
) -> tuple[Array, Array]:
    # in training the slope below 0 is uniform on [lower, upper], in evaluation their mean; returns x and the
    # slopes
    if not training:
        return jnp.where(x > 0, x, x * ((lower + upper) / 2)), noise
    drawn = lower + (upper - lower) * _drawn(key).uniform(x.shape, x.dtype)
    slopes = jnp.where(x > 0, jnp.ones_like(x), drawn)
    return x * slopes, slopes


class _drawn:
    """Draws by one key."""

    def __init__(self, key: Array | None) -> None:
        self._key = key

    def __getattr__(self, name: str) -> Any:
        if are_fixed():
            return getattr(FixedRandom, name)
        return lambda *arguments: getattr(jax.random, name)(self._key, *arguments)
