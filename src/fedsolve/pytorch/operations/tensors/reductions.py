"""Sums, means, extremes and norms along axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.pytorch.operations.layers.padding_rows import (
    Weights,
    along_dim,
    counted,
    filled,
    highest,
    lowest,
    number_of,
)
from fedsolve.pytorch.operations.tensors.elementwise import absolute
from fedsolve.pytorch.operations.tensors.promotion import axes_of, index_dtype, is_floating, summed_dtype
from fedsolve.pytorch.translation.dtypes import jax_dtype
from fedsolve.pytorch.translation.registry import operation


@operation("aten.sum.dim_IntList", mixing=along_dim)
def total(
    x: Array,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    weights: Weights = None,
) -> Array:
    """The sum."""
    axes = axes_of(dim, x.ndim)
    return jnp.sum(filled(x.astype(summed_dtype(x, dtype)), weights, axes, 0), axes, keepdims=keepdim)


@operation("aten.mean.default", "aten.mean.dim", mixing=along_dim)
def mean(
    x: Array,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    weights: Weights = None,
) -> Array:
    """The mean."""
    x = x if dtype is None else x.astype(jax_dtype(dtype))
    axes = axes_of(dim, x.ndim)
    if counted(weights, axes, x.ndim) is None:
        return jnp.mean(x, axes, keepdims=keepdim)
    sums = jnp.sum(filled(x, weights, axes, 0), axes, keepdims=keepdim)
    return sums / jnp.maximum(number_of(x, weights, axes), 1).astype(x.dtype)


@operation("aten.prod.default", mixing=along_dim)
def prod(x: Array, *, dtype: Any = None, weights: Weights = None) -> Array:
    """The product of all entries."""
    return jnp.prod(filled(x.astype(summed_dtype(x, dtype)), weights, range(x.ndim), 1))


@operation("aten.prod.dim_int", mixing=along_dim)
def prod_dim(
    x: Array, dim: int, keepdim: bool = False, *, dtype: Any = None, weights: Weights = None
) -> Array:
    """The product along an axis."""
    axes = axes_of(dim, x.ndim)
    return jnp.prod(filled(x.astype(summed_dtype(x, dtype)), weights, axes, 1), axes, keepdims=keepdim)


@operation("aten.var.dim", mixing=along_dim)
def var_unbiased(
    x: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, weights: Weights = None
) -> Array:
    """The variance, by n - 1 if unbiased."""
    if isinstance(dim, bool):  # the overload of all axes has no `dim`
        dim, unbiased = None, dim
    return var(x, dim, correction=int(unbiased), keepdim=keepdim, weights=weights)


@operation("aten.var.correction", mixing=along_dim)
def var(
    x: Array,
    dim: Any = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    weights: Weights = None,
) -> Array:
    """The sum of squares around the mean over max(n - correction, 0); the correction is 1 where none is given."""
    axes = axes_of(dim, x.ndim)
    around = jnp.square(filled(x - mean(x, dim, True, weights=weights), weights, axes, 0))
    count, less = number_of(x, weights, axes), 1 if correction is None else correction
    free = max(count - less, 0) if isinstance(count, int) else jnp.maximum(count - less, 0).astype(x.dtype)
    return jnp.sum(around, axes, keepdims=keepdim) / free


@operation("aten.var_mean.correction", mixing=along_dim)
def var_mean(
    x: Array,
    dim: Any = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    weights: Weights = None,
) -> tuple[Array, Array]:
    """The variance and the mean."""
    spread = var(x, dim, correction=correction, keepdim=keepdim, weights=weights)
    return spread, mean(x, dim, keepdim, weights=weights)


@operation("aten.std.default", "aten.std.dim", mixing=along_dim)
def std_unbiased(
    x: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, weights: Weights = None
) -> Array:
    """The root of the variance, by n - 1 if unbiased; the gradient of one that is 0 is 0."""
    return _safe_root(var_unbiased(x, dim, unbiased, keepdim, weights=weights))


@operation("aten.std_mean.default", "aten.std_mean.dim", mixing=along_dim)
def std_mean_unbiased(
    x: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, weights: Weights = None
) -> tuple[Array, Array]:
    """The root of the variance, by n - 1 if unbiased, and the mean."""
    axes = None if isinstance(dim, bool) else dim
    return std_unbiased(x, dim, unbiased, keepdim, weights=weights), mean(x, axes, keepdim, weights=weights)


@operation("aten.std.correction", mixing=along_dim)
def std(
    x: Array,
    dim: Any = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    weights: Weights = None,
) -> Array:
    """The root of the variance; the gradient of one that is 0 is 0."""
    return _safe_root(var(x, dim, correction=correction, keepdim=keepdim, weights=weights))


@operation("aten.std_mean.correction", mixing=along_dim)
def std_mean(
    x: Array,
    dim: Any = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    weights: Weights = None,
) -> tuple[Array, Array]:
    """The root of the variance, and the mean."""
    spread = std(x, dim, correction=correction, keepdim=keepdim, weights=weights)
    return spread, mean(x, dim, keepdim, weights=weights)


@operation("aten.amax.default", mixing=along_dim)
def amax(x: Array, dim: Sequence[int] = (), keepdim: bool = False, *, weights: Weights = None) -> Array:
    """The greatest entry; equal ones share the gradient."""
    axes = axes_of(dim, x.ndim)
    return jnp.max(filled(x, weights, axes, lowest(x)), axes, keepdims=keepdim)


@operation("aten.amin.default", mixing=along_dim)
def amin(x: Array, dim: Sequence[int] = (), keepdim: bool = False, *, weights: Weights = None) -> Array:
    """The least entry; equal ones share the gradient."""
    axes = axes_of(dim, x.ndim)
    return jnp.min(filled(x, weights, axes, highest(x)), axes, keepdims=keepdim)


@operation("aten.max.default", mixing=along_dim)
def maximum_of_all(x: Array, *, weights: Weights = None) -> Array:
    """The greatest entry of all."""
    return jnp.max(filled(x, weights, range(x.ndim), lowest(x)))


@operation("aten.min.default", mixing=along_dim)
def minimum_of_all(x: Array, *, weights: Weights = None) -> Array:
    """The least entry of all."""
    return jnp.min(filled(x, weights, range(x.ndim), highest(x)))


@operation("aten.argmax.default", mixing=along_dim)
def argmax(x: Array, dim: int | None = None, keepdim: bool = False, *, weights: Weights = None) -> Array:
    """The place of the first greatest entry; a NaN is the greatest."""
    return _place(jnp.argmax, filled(x, weights, axes_of(dim, x.ndim), lowest(x)), dim, keepdim)


@operation("aten.argmin.default", mixing=along_dim)
def argmin(x: Array, dim: int | None = None, keepdim: bool = False, *, weights: Weights = None) -> Array:
    """The place of the first least entry; a NaN is the least."""
    return _place(jnp.argmin, filled(x, weights, axes_of(dim, x.ndim), highest(x)), dim, keepdim)


@operation("aten.max.dim", mixing=along_dim)
def max_dim(x: Array, dim: int, keepdim: bool = False, *, weights: Weights = None) -> tuple[Array, Array]:
    """The greatest entry along an axis and its place, which gets the gradient."""
    return _taken(x, argmax(x, dim, True, weights=weights), dim, keepdim)


@operation("aten.min.dim", mixing=along_dim)
def min_dim(x: Array, dim: int, keepdim: bool = False, *, weights: Weights = None) -> tuple[Array, Array]:
    """The least entry along an axis and its place, which gets the gradient."""
    return _taken(x, argmin(x, dim, True, weights=weights), dim, keepdim)


@operation("aten.any.default", "aten.any.dim", "aten.any.dims", mixing=along_dim)
def any_of(x: Array, dim: Any = None, keepdim: bool = False, *, weights: Weights = None) -> Array:
    """Whether an entry is not 0."""
    axes = axes_of(dim, x.ndim)
    return jnp.any(filled(x, weights, axes, 0), axes, keepdims=keepdim)


@operation("aten.cumsum.default", mixing=along_dim)
def cumsum(x: Array, dim: int, *, dtype: Any = None, weights: Weights = None) -> Array:
    """Sums of the first entries along an axis."""
    x = filled(x.astype(summed_dtype(x, dtype)), weights, axes_of(dim, x.ndim), 0)
    return jnp.cumsum(x, dim) if x.ndim else x


@operation("aten.cumprod.default", mixing=along_dim)
def cumprod(x: Array, dim: int, *, dtype: Any = None, weights: Weights = None) -> Array:
    """Products of the first entries along an axis."""
    x = filled(x.astype(summed_dtype(x, dtype)), weights, axes_of(dim, x.ndim), 1)
    return jnp.cumprod(x, dim) if x.ndim else x


@operation("aten.linalg_vector_norm.default", mixing=along_dim)
def vector_norm(
    x: Array,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    weights: Weights = None,
) -> Array:
    """The norm of entries along axes; the gradient of one that is 0 is 0."""
    x = x if dtype is None else x.astype(jax_dtype(dtype))
    axes = axes_of(dim, x.ndim)
    x = filled(x, weights, axes, jnp.inf if ord < 0 else 0)
    size = absolute(x)
    if ord == float("inf"):
        return jnp.max(size, axes, keepdims=keepdim)
    if ord == -float("inf"):
        return jnp.min(size, axes, keepdims=keepdim)
    if ord == 0:
        return jnp.sum(x != 0, axes, keepdims=keepdim).astype(x.dtype)
    if ord == 1:
        return jnp.sum(size, axes, keepdims=keepdim)
    if ord == 2:
        return _safe_root(jnp.sum(jnp.square(x), axes, keepdims=keepdim))
    powers = jnp.where(size > 0, jnp.where(size > 0, size, 1) ** ord, 0 if ord > 0 else jnp.inf)
    sums = jnp.sum(powers, axes, keepdims=keepdim)
    plain = (sums > 0) & jnp.isfinite(sums)
    return jnp.where(plain, jnp.where(plain, sums, 1) ** (1 / ord), 0 if ord > 0 else sums * 0)


def _place(function: Any, x: Array, dim: int | None, keepdim: bool) -> Array:
    if x.ndim == 0:
        return jnp.zeros((), index_dtype())
    place = function(x, axis=dim, keepdims=keepdim and dim is not None)
    place = place.astype(index_dtype())
    return place.reshape((1,) * x.ndim) if keepdim and dim is None else place


def _taken(x: Array, place: Array, dim: int, keepdim: bool) -> tuple[Array, Array]:
    if x.ndim == 0:
        return x, place
    value = jnp.take_along_axis(x, place, dim)
    return (value, place) if keepdim else (jnp.squeeze(value, dim), jnp.squeeze(place, dim))


def _safe_root(x: Array) -> Array:
    """The square root; the gradient at 0 is 0."""
    zero = x == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, x))) if is_floating(x) else jnp.sqrt(x)
