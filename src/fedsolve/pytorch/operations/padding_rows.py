"""Operations along the batch where some examples are padding and must not count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.pytorch.operations.promotion import axes_of

Weights = Mapping[int, Array] | None
"""By axis 0 or 1 for each entry along it, shape (length,); None where all entries count."""


def along_dim(arguments: Mapping[str, Any], ndim: int) -> tuple[int, ...]:
    """The axes that the argument `dim` names, all where there is none."""
    dim = arguments.get("dim")
    return axes_of(None if isinstance(dim, bool) else dim, ndim)


def all_but_channels(arguments: Mapping[str, Any], ndim: int) -> tuple[int, ...]:
    """All axes but the second."""
    return (0, *range(2, ndim))


def last_axis(arguments: Mapping[str, Any], ndim: int) -> tuple[int, ...]:
    """The last axis, over which a product of matrices sums."""
    return (ndim - 1,)


def counted(weights: Weights, axes: Sequence[int], ndim: int) -> Array | None:
    """Where entries count, an array of `ndim` axes that broadcasts; None if all along these axes do."""
    found = [
        lax.expand_dims(w > 0, [a for a in range(ndim) if a != axis])
        for axis, w in (weights or {}).items()
        if axis in axes
    ]
    return reduce(jnp.logical_and, found) if found else None


def filled(x: Array, weights: Weights, axes: Sequence[int], value: Any) -> Array:
    """x with a value in place of the entries that do not count."""
    counts = counted(weights, axes, x.ndim)
    return x if counts is None else jnp.where(counts, x, jnp.asarray(value, x.dtype))


def number_of(x: Array, weights: Weights, axes: Sequence[int]) -> Any:
    """How many entries count in each sum along axes: an int, or a scalar array."""
    sizes = [x.shape[a] for a in axes]
    counts = counted(weights, axes, x.ndim)
    if counts is None:
        return reduce(int.__mul__, sizes, 1)
    every = jnp.broadcast_to(counts, [x.shape[a] if a in axes else 1 for a in range(x.ndim)])
    return jnp.sum(every)


def lowest(x: Array) -> Any:
    """What no greatest entry is."""
    if x.dtype == bool:
        return False
    return -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min


def highest(x: Array) -> Any:
    """What no least entry is."""
    if x.dtype == bool:
        return True
    return jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).max
