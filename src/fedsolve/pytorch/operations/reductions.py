"""Sums, means, extremes and norms along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.pytorch.operations.operands import (
    Weights,
    along_dim,
    axes_of,
    counted,
    filled,
    highest,
    index_dtype,
    is_floating,
    lowest,
    number_of,
    summed_dtype,
)
from fedsolve.pytorch.operations.pointwise import absolute
from fedsolve.pytorch.translation.arrays import jax_dtype
from fedsolve.pytorch.translation.registry import operation


def _fold(names: Sequence[str], function: Callable[..., Array], neutral: int) -> None:
    """Register sums or products along axes; what does not count is `neutral`."""

    @operation(*names, mixing=along_dim)
    def fold(
        x: Array, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, weights: Weights = None
    ) -> Array:
        axes = axes_of(dim, x.ndim)
        x = filled(x.astype(summed_dtype(x, dtype)), weights, axes, neutral)
        return function(x, axes, keepdims=keepdim)


def _cumulate(name: str, function: Callable[..., Array], neutral: int) -> None:
    """Register sums or products of the first entries along an axis."""

    @operation(name, mixing=along_dim)
    def cumulate(x: Array, dim: int, *, dtype: Any = None, weights: Weights = None) -> Array:
        x = filled(x.astype(summed_dtype(x, dtype)), weights, axes_of(dim, x.ndim), neutral)
        return function(x, dim) if x.ndim else x


_fold(["aten.sum.dim_IntList"], jnp.sum, 0)
_fold(["aten.prod.default", "aten.prod.dim_int"], jnp.prod, 1)
_cumulate("aten.cumsum.default", jnp.cumsum, 0)
_cumulate("aten.cumprod.default", jnp.cumprod, 1)


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


def _var(x: Array, dim: Any, correction: float | None, keepdim: bool, weights: Weights) -> Array:
    """The sum of squares around the mean over max(n - correction, 0); the correction is 1 where none is given."""
    axes = axes_of(dim, x.ndim)
    around = jnp.square(filled(x - mean(x, dim, True, weights=weights), weights, axes, 0))
    count, less = number_of(x, weights, axes), 1 if correction is None else correction
    free = max(count - less, 0) if isinstance(count, int) else jnp.maximum(count - less, 0).astype(x.dtype)
    return jnp.sum(around, axes, keepdims=keepdim) / free


def _spread(name: str, unbiased_overloads: Sequence[str], rooted: bool, with_mean: bool) -> None:
    """Register the variance, or its root (whose gradient at 0 is 0), alone or before the mean."""

    @operation(f"aten.{name}.correction", mixing=along_dim)
    def by_correction(
        x: Array,
        dim: Any = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
        weights: Weights = None,
    ) -> Any:
        value = _var(x, dim, correction, keepdim, weights)
        value = _safe_root(value) if rooted else value
        return (value, mean(x, dim, keepdim, weights=weights)) if with_mean else value

    @operation(*(f"aten.{name}.{overload}" for overload in unbiased_overloads), mixing=along_dim)
    def by_unbiased(
        x: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, weights: Weights = None
    ) -> Any:
        if isinstance(dim, bool):  # the overload of all axes has no `dim`
            dim, unbiased = None, dim
        return by_correction(x, dim, correction=int(unbiased), keepdim=keepdim, weights=weights)


_spread("var", ["dim"], rooted=False, with_mean=False)
_spread("var_mean", [], rooted=False, with_mean=True)
_spread("std", ["default", "dim"], rooted=True, with_mean=False)
_spread("std_mean", ["default", "dim"], rooted=True, with_mean=True)


def _extreme(
    name: str, value: Callable[..., Array], place: Callable[..., Array], bound: Callable[[Array], Any]
) -> None:
    """Register the greatest or the least entry, its place, and both; what does not count is the `bound`."""

    @operation(f"aten.{name}.default", f"aten.a{name}.default", mixing=along_dim)
    def extreme(x: Array, dim: Any = (), keepdim: bool = False, *, weights: Weights = None) -> Array:
        axes = axes_of(dim, x.ndim)  # equal entries share the gradient
        return value(filled(x, weights, axes, bound(x)), axes, keepdims=keepdim)

    @operation(f"aten.arg{name}.default", mixing=along_dim)
    def where(x: Array, dim: int | None = None, keepdim: bool = False, *, weights: Weights = None) -> Array:
        """The place of the first of equal ones; a NaN is the greatest, and the least."""
        x = filled(x, weights, axes_of(dim, x.ndim), bound(x))
        if x.ndim == 0:
            return jnp.zeros((), index_dtype())
        found = place(x, axis=dim, keepdims=keepdim and dim is not None).astype(index_dtype())
        return found.reshape((1,) * x.ndim) if keepdim and dim is None else found

    @operation(f"aten.{name}.dim", mixing=along_dim)
    def with_place(
        x: Array, dim: int, keepdim: bool = False, *, weights: Weights = None
    ) -> tuple[Array, Array]:
        """The entry, which gets the gradient, and its place."""
        at = where(x, dim, True, weights=weights)
        if x.ndim == 0:
            return x, at
        found = jnp.take_along_axis(x, at, dim)
        return (found, at) if keepdim else (jnp.squeeze(found, dim), jnp.squeeze(at, dim))


_extreme("max", jnp.max, jnp.argmax, lowest)
_extreme("min", jnp.min, jnp.argmin, highest)


@operation("aten.any.default", "aten.any.dim", "aten.any.dims", mixing=along_dim)
def any_of(x: Array, dim: Any = None, keepdim: bool = False, *, weights: Weights = None) -> Array:
    """Whether an entry is not 0."""
    axes = axes_of(dim, x.ndim)
    return jnp.any(filled(x, weights, axes, 0), axes, keepdims=keepdim)


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


def _safe_root(x: Array) -> Array:
    """The square root; the gradient at 0 is 0."""
    zero = x == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, x))) if is_floating(x) else jnp.sqrt(x)
