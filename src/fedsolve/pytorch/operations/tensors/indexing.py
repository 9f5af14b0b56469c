"""Entries read at places that are themselves tensors, and orders of entries."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput
from fedsolve.pytorch.operations.tensors.promotion import index_dtype
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
