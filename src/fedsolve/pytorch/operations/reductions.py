"""Sums, means, extremes and norms along axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.pytorch.dtypes import jax_dtype
from fedsolve.pytorch.operations.elementwise import absolute
from fedsolve.pytorch.operations.promotion import axes_of, index_dtype, is_floating, summed_dtype
from fedsolve.pytorch.registry import operation


@operation("aten.sum.dim_IntList")
def total(x: Array, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """The sum."""
    return jnp.sum(x.astype(summed_dtype(x, dtype)), axes_of(dim, x.ndim), keepdims=keepdim)


@operation("aten.mean.default", "aten.mean.dim")
def mean(x: Array, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """The mean."""
    x = x if dtype is None else x.astype(jax_dtype(dtype))
    return jnp.mean(x, axes_of(dim, x.ndim), keepdims=keepdim)


@operation("aten.prod.default")
def prod(x: Array, *, dtype: Any = None) -> Array:
    """The product of all entries."""
    return jnp.prod(x.astype(summed_dtype(x, dtype)))


@operation("aten.prod.dim_int")
def prod_dim(x: Array, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """The product along an axis."""
    return jnp.prod(x.astype(summed_dtype(x, dtype)), axes_of(dim, x.ndim), keepdims=keepdim)


@operation("aten.var.dim")
def var_unbiased(x: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> Array:
    """The variance, by n - 1 if unbiased."""
    if isinstance(dim, bool):  # the overload of all axes has no `dim`
        dim, unbiased = None, dim
    return var(x, dim, correction=int(unbiased), keepdim=keepdim)


@operation("aten.var.correction")
def var(x: Array, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Array:
    """The sum of squares around the mean over max(n - correction, 0); the correction is 1 where none is given."""
    axes = axes_of(dim, x.ndim)
    around = jnp.square(x - jnp.mean(x, axes, keepdims=True))
    count = x.size // max(jnp.mean(x, axes).size, 1)
    free = max(count - (1 if correction is None else correction), 0)
    return jnp.sum(around, axes, keepdims=keepdim) / free


@operation("aten.var_mean.correction")
def var_mean(
    x: Array, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    """The variance and the mean."""
    return var(x, dim, correction=correction, keepdim=keepdim), mean(x, dim, keepdim)


@operation("aten.std.correction")
def std(x: Array, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Array:
    """The root of the variance; the gradient of one that is 0 is 0."""
    return _safe_root(var(x, dim, correction=correction, keepdim=keepdim))


@operation("aten.std_mean.correction")
def std_mean(
    x: Array, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    """The root of the variance, and the mean."""
    return std(x, dim, correction=correction, keepdim=keepdim), mean(x, dim, keepdim)


@operation("aten.amax.default")
def amax(x: Array, dim: Sequence[int] = (), keepdim: bool = False) -> Array:
    """The greatest entry; equal ones share the gradient."""
    return jnp.max(x, axes_of(dim, x.ndim), keepdims=keepdim)


@operation("aten.amin.default")
def amin(x: Array, dim: Sequence[int] = (), keepdim: bool = False) -> Array:
    """The least entry; equal ones share the gradient."""
    return jnp.min(x, axes_of(dim, x.ndim), keepdims=keepdim)


@operation("aten.max.default")
def maximum_of_all(x: Array) -> Array:
    """The greatest entry of all."""
    return jnp.max(x)


@operation("aten.min.default")
def minimum_of_all(x: Array) -> Array:
    """The least entry of all."""
    return jnp.min(x)


@operation("aten.argmax.default")
def argmax(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """The place of the first greatest entry; a NaN is the greatest."""
    return _place(jnp.argmax, x, dim, keepdim)


@operation("aten.argmin.default")
def argmin(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """The place of the first least entry; a NaN is the least."""
    return _place(jnp.argmin, x, dim, keepdim)


@operation("aten.max.dim")
def max_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The greatest entry along an axis and its place, which gets the gradient."""
    return _taken(x, argmax(x, dim, True), dim, keepdim)


@operation("aten.min.dim")
def min_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The least entry along an axis and its place, which gets the gradient."""
    return _taken(x, argmin(x, dim, True), dim, keepdim)


@operation("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_of(x: Array, dim: Any = None, keepdim: bool = False) -> Array:
    """Whether an entry is not 0."""
    return jnp.any(x, axes_of(dim, x.ndim), keepdims=keepdim)


@operation("aten.cumsum.default")
def cumsum(x: Array, dim: int, *, dtype: Any = None) -> Array:
    """Sums of the first entries along an axis."""
    x = x.astype(summed_dtype(x, dtype))
    return jnp.cumsum(x, dim) if x.ndim else x


@operation("aten.cumprod.default")
def cumprod(x: Array, dim: int, *, dtype: Any = None) -> Array:
    """Products of the first entries along an axis."""
    x = x.astype(summed_dtype(x, dtype))
    return jnp.cumprod(x, dim) if x.ndim else x


@operation("aten.linalg_vector_norm.default")
def vector_norm(
    x: Array, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Array:
    """The norm of entries along axes; the gradient of one that is 0 is 0."""
    x = x if dtype is None else x.astype(jax_dtype(dtype))
    axes = axes_of(dim, x.ndim)
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
