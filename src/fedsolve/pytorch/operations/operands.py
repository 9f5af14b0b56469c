"""What operations make of their arguments: types by PyTorch's rules, axes, and rows of padding, which must not count.

A tensor with axes outranks one without, and that a Python number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jaxtyping import Array

from fedsolve.pytorch.translation.arrays import jax_dtype

Operand = Array | bool | int | float | complex


def default_dtype() -> Any:
    # the type of a floating result of integers
    return jax_dtype(torch.get_default_dtype())


def result_type(*values: Operand) -> Any:
    # as `torch.result_type`
    tensors, scalars, numbers = [], [], []
    for value in values:
        if isinstance(value, bool | int | float | complex):
            numbers.append(type_of(value))
        else:
            (tensors if value.ndim else scalars).append(value.dtype)
    ranked = [reduce(jnp.promote_types, kinds) for kinds in (tensors, scalars, numbers) if kinds]
    return reduce(lambda lower, higher: _outranked(higher, lower), reversed(ranked))


def promoted(*values: Operand) -> list[Array]:
    dtype = result_type(*values)
    return [jnp.asarray(value, dtype) for value in values]


def promoted_floating(*values: Operand) -> list[Array]:
    # the common type, which is the default floating one where that is of integers
    return [floating(value) for value in promoted(*values)]


def floating(x: Array) -> Array:
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(default_dtype())


def is_floating(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def index_dtype() -> Any:
    # PyTorch's int64, as far as this run has it
    return jax_dtype(torch.int64)


def summed_dtype(x: Array, dtype: torch.dtype | None) -> Any:
    # of a sum or product: PyTorch adds integers up in int64
    if dtype is not None:
        return jax_dtype(dtype)
    return x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else index_dtype()


def axes_of(dims: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    # axes counted from the front; None and an empty list are all of them
    if dims is None:
        return tuple(range(ndim))
    listed = [dims] if isinstance(dims, int) else list(dims)
    return tuple(d % max(ndim, 1) for d in listed if ndim) if listed else tuple(range(ndim))


def same_everywhere(values: int | Sequence[int], count: int) -> list[int]:
    # a list of one number stands for all `count` axes
    listed = [values] if isinstance(values, int) else list(values)
    return listed * count if len(listed) == 1 else listed


def type_of(value: Any) -> Any:
    # the type that PyTorch gives a Python number
    if isinstance(value, bool):
        return jnp.dtype(bool)
    if isinstance(value, int):
        return index_dtype()
    return default_dtype() if isinstance(value, float) else jax.dtypes.canonicalize_dtype(jnp.complex128)


def _outranked(higher: Any, lower: Any) -> Any:
    # the higher rank decides, unless its kind (bool < integer < floating < complex) is the lesser
    if jnp.issubdtype(lower, jnp.complexfloating) and jnp.issubdtype(higher, jnp.floating):
        return jnp.promote_types(higher, jnp.complex64)
    return jnp.promote_types(higher, lower) if _kind(lower) > _kind(higher) else higher


def _kind(dtype: Any) -> int:
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next(i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind))


Weights = Mapping[int, Array] | None
"""By axis 0 or 1 for each entry along it, shape (length,); None where all entries count."""


def along_dim(arguments: Mapping[str, Any], ndim: int) -> tuple[int, ...]:
    # the axes that the argument `dim` names, all where there is none
    dim = arguments.get("dim")
    return axes_of(None if isinstance(dim, bool) else dim, ndim)


def all_but_channels(arguments: Mapping[str, Any], ndim: int) -> tuple[int, ...]:
    return (0, *range(2, ndim))


def last_axis(arguments: Mapping[str, Any], ndim: int) -> tuple[int, ...]:
    # over which a product of matrices sums
    return (ndim - 1,)


def counted(weights: Weights, axes: Sequence[int], ndim: int) -> Array | None:
    # a mask of `ndim` axes that broadcasts; None if everything along these axes counts
    found = [
        lax.expand_dims(w > 0, [a for a in range(ndim) if a != axis])
        for axis, w in (weights or {}).items()
        if axis in axes
    ]
    return reduce(jnp.logical_and, found) if found else None


def filled(x: Array, weights: Weights, axes: Sequence[int], value: Any) -> Array:
    # x with a value in place of the entries that do not count
    counts = counted(weights, axes, x.ndim)
    return x if counts is None else jnp.where(counts, x, jnp.asarray(value, x.dtype))


def number_of(x: Array, weights: Weights, axes: Sequence[int]) -> Any:
    # an int where everything counts, else a scalar array
    sizes = [x.shape[a] for a in axes]
    counts = counted(weights, axes, x.ndim)
    if counts is None:
        return reduce(int.__mul__, sizes, 1)
    every = jnp.broadcast_to(counts, [x.shape[a] if a in axes else 1 for a in range(x.ndim)])
    return jnp.sum(every)


def lowest(x: Array) -> Any:
    # the neutral element of a maximum
    if x.dtype == bool:
        return False
    return -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min


def highest(x: Array) -> Any:
    # the neutral element of a minimum
    if x.dtype == bool:
        return True
    return jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).max
