"""The types in which a model's leaves are stored: frozen ones as narrow as they are given, trained ones in 32 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.errors import InvalidInput, is_one_of, shown, unknown
from fedsolve.core.trees import named_leaves
from fedsolve.core.types import Params
from fedsolve.core.xla.narrow import Narrow, is_narrow

FROZEN_DTYPES = ("bfloat16", "float16", "int8")
_LARGEST = 127  # of int8, symmetric: -128 is not used


def in_int8(leaf: Any) -> Narrow:
    """A matrix in 8 bits: int8 in [-127, 127], and a scale for each index of the first axis."""
    # Each entry is at most scale / 2 away from the one that was rounded, apart from rounding in the type of the
    # product.
    wide = np.asarray(leaf, np.float32)
    largest = np.abs(wide).max(axis=tuple(range(1, wide.ndim)), keepdims=True, initial=0)
    scale = np.where(largest > 0, largest / np.float32(_LARGEST), np.float32(1))
    return Narrow(np.clip(np.rint(wide / scale), -_LARGEST, _LARGEST).astype(np.int8), scale)


def is_half(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4


def widened(leaf: Any, dtype: Any) -> Any:
    # a leaf as it is computed with; one of 32 bits or more, or of integers, stays as it is
    if is_narrow(leaf):
        return leaf.widened(dtype)
    return leaf.astype(dtype) if is_half(leaf) else leaf


def given_again(leaf: Any, dtype: Any) -> Any:
    # a stored leaf in the type in which it was given
    return widened(leaf, np.float32).astype(dtype) if is_narrow(leaf) or leaf.dtype != dtype else leaf


def master(leaf: Any) -> Any:
    # of a leaf that trains: 16 bits become 32, which changes no number
    return leaf.astype(np.float32) if is_half(leaf) else leaf


def narrowed(frozen: Params, to: str | None) -> Params:
    """Frozen leaves in the type that they are stored in, as they are where `to` is None."""
    # `InvalidInput` for an unknown type, numbers that are not finite, or that are infinite in float16.
    if to is None:
        return frozen
    if not is_one_of(to, FROZEN_DTYPES):
        raise unknown("type of frozen leaves", str(to), FROZEN_DTYPES)
    paths, leaves = named_leaves(frozen)
    new = [_narrow(path, leaf, to) for path, leaf in zip(paths, leaves, strict=True)]
    return jax.tree.structure(frozen).unflatten(new)


def _narrow(path: str, leaf: Any, to: str) -> Any:
    if not jnp.issubdtype(leaf.dtype, jnp.floating) or (to == "int8" and leaf.ndim < 2):
        return leaf
    with np.errstate(over="ignore"):
        new = in_int8(leaf) if to == "int8" else leaf.astype(to)
    if not all(np.isfinite(np.asarray(x, np.float32)).all() for x in (leaf, *jax.tree.leaves(new))):
        raise InvalidInput(
            f"frozen_dtype = '{to}': {path or 'the model'} has a number that is not finite, or not in {to}; give "
            "finite ones, or frozen_dtype = 'bfloat16'"
        )
    return new


def check_some_frozen(to: str | None, frozen: Any, remedy: str) -> None:
    if to is not None and not frozen:
        raise InvalidInput(f"frozen_dtype = {shown(to)} and no leaf is frozen: {remedy}")


@dataclass(frozen=True)
class Assembled:
    """Trained leaves -> the model as it was given: those of 16 bits are rounded to their own types."""

    # trained leaves -> the same model, in which they keep the types of the run
    exact: Callable[[Params], Params]
    halves: Sequence[Any]  # for each trained leaf its own type of 16 bits, None for another

    def __call__(self, trained: Params) -> Params:
        leaves, structure = jax.tree.flatten(trained)
        rounded = [x if t is None else x.astype(t) for x, t in zip(leaves, self.halves, strict=True)]
        return self.exact(structure.unflatten(rounded))


def assembled(exact: Callable[[Params], Params], own: Sequence[Any]) -> Callable[[Params], Params]:
    # own: the types of the trained leaves as they were given
    halves = tuple(t if t.itemsize < 4 else None for t in own)
    return Assembled(exact, halves) if any(halves) else exact


def unrounded(assemble: Callable[[Params], Params]) -> Callable[[Params], Params]:
    # what a task's `assemble` does, but for the rounding of trained leaves
    return getattr(assemble, "exact", assemble)
