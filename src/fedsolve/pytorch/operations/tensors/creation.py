"""New tensors, and tensors in another type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import torch
from jaxtyping import Array

from fedsolve.pytorch.operations.tensors.promotion import default_dtype, index_dtype
from fedsolve.pytorch.translation.dtypes import jax_dtype
from fedsolve.pytorch.translation.registry import operation


@operation("aten._to_copy.default")
def to_copy(x: Array, *, dtype: torch.dtype | None = None, **_: Any) -> Array:
    """x in another type; floating numbers are rounded towards 0 to become integers."""
    return x if dtype is None else x.astype(jax_dtype(dtype))


@operation("aten.full.default")
def full(size: Sequence[int], fill_value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Array:
    """One value everywhere."""
    return jnp.full(tuple(size), fill_value, jax_dtype(dtype) or _type_of(fill_value))


@operation("aten.full_like.default")
def full_like(x: Array, fill_value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Array:
    """One value everywhere, in the shape of x."""
    return jnp.full(x.shape, fill_value, jax_dtype(dtype) or x.dtype)


@operation("aten.fill.Scalar")
def fill(x: Array, value: Any) -> Array:
    """One value everywhere, in the shape and type of x."""
    return jnp.broadcast_to(jnp.asarray(value, x.dtype), x.shape)


@operation("aten.copy.default")
def copy(x: Array, src: Array, non_blocking: bool = False) -> Array:
    """`src` in the shape and type of x."""
    return jnp.broadcast_to(src.astype(x.dtype), x.shape)


@operation("aten.scalar_tensor.default")
def scalar_tensor(s: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Array:
    """A number as a tensor without axes."""
    return jnp.asarray(s, jax_dtype(dtype) or default_dtype())


@operation("aten.arange.start_step")
def arange(start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **_: Any) -> Array:
    """Numbers from a start to below an end by a step."""
    whole = all(isinstance(v, int) for v in (start, end, step))
    return jnp.arange(start, end, step, jax_dtype(dtype) or (index_dtype() if whole else default_dtype()))


@operation("aten.empty.memory_format")
def zeros(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Array:
    """0 everywhere; what PyTorch leaves undefined is 0 too."""
    return jnp.zeros(tuple(size), jax_dtype(dtype) or default_dtype())


@operation("aten.empty_permuted.default", "aten.empty_strided.default")
def empty(
    size: Sequence[int], order: Sequence[int], /, *, dtype: torch.dtype | None = None, **_: Any
) -> Array:
    """0 everywhere; the layout in memory does not matter here."""
    return zeros(size, dtype=dtype)


def _type_of(value: Any) -> Any:
    if isinstance(value, bool):
        return jnp.dtype(bool)
    return index_dtype() if isinstance(value, int) else default_dtype()
