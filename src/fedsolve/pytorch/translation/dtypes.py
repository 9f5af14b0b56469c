"""PyTorch's types in JAX; the type in which a module computes is the one of the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

_RUN: ContextVar[tuple[torch.dtype, Any] | None] = ContextVar("run", default=None)


@contextmanager
def computing(own: torch.dtype, run: Any) -> Iterator[None]:
    """Inside, the type `own` of a module's parameters means the type `run` of the parameters it is given."""
    token = _RUN.set((own, jnp.dtype(run)))
    try:
        yield
    finally:
        _RUN.reset(token)


def jax_dtype(dtype: torch.dtype | None) -> Any:
    """The JAX type of a PyTorch one, None for None; 64-bit types become 32-bit ones where JAX has them off.

    >>> jax_dtype(torch.int32), jax_dtype(None)
    (dtype('int32'), None)
    """
    if dtype is None:
        return None
    run = _RUN.get()
    if run is not None and dtype == run[0]:
        return run[1]
    if run is not None and dtype.is_complex and dtype == run[0].to_complex():
        return jnp.result_type(run[1], jnp.complex64)
    name = str(dtype).removeprefix("torch.")
    return jax.dtypes.canonicalize_dtype(jnp.dtype(name))


_NARROW = (torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32)


def of_data(array: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A copy of data as PyTorch has them: floating numbers in a type, integers as int64; bytes and truths as they are.

    PyTorch takes no narrower integers for labels and few for arithmetic; bytes may be images.
    """
    t = torch.tensor(np.asarray(array))
    if t.is_floating_point():
        return t.to(dtype)
    return t.long() if t.dtype in _NARROW else t


def as_traced(value: Any, traced: Any) -> Any:
    """An input of a program in the width of integers in which it was traced (`of_data`).

    Args:
        value: an array.
        traced: what PyTorch knows of the input: a tensor, or None.
    """
    wide = getattr(traced, "dtype", None) == torch.int64 and jnp.issubdtype(value.dtype, jnp.integer)
    return value.astype(jax_dtype(torch.int64)) if wide else value


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """A copy of a tensor's values as a NumPy array; bfloat16 keeps its type."""
    tensor = tensor.detach().cpu().resolve_conj()
    if tensor.dtype == torch.bfloat16:
        return tensor.float().numpy().astype(jnp.bfloat16)
    return tensor.numpy().copy()
