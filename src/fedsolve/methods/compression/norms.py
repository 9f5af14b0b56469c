"""Squared norms of client updates that the server takes from what it decodes, in place of what clients send."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Scalar, is_module, replace
from fedsolve.methods.compression.compressor import Encoded


def decoded_squared_norm(update: Any, common: Any) -> Scalar:
    """An unbiased estimate of |D_i|^2 from the codes of D_i: each leaf's |Q(x)|^2 / (1 + omega), omega its bound.

    Args:
        update: codes in place of large leaves.
        common: the round's randomness (`round_key`).

    Returns:
        A number, shape ().
    """
    leaves = jax.tree.leaves(update, is_leaf=lambda x: isinstance(x, Encoded))
    parts = []
    for i, x in enumerate(leaves):
        is_code = isinstance(x, Encoded)
        decoded = x.decode(jax.random.fold_in(common, i)) if is_code else x
        parts.append(jnp.sum(decoded**2) / (1 + x.compressor.error(decoded.size) if is_code else 1))
    return sum(parts[1:], parts[0])


def with_squared_norm(message: Any, value: Any) -> Any:
    """A message with `value` in each field that claims to be |D_i|^2.

    Raises:
        InvalidInput: there is none.
    """
    changed, count = _replaced(message, value)
    if not count:
        raise InvalidInput(
            "norms = 'decoded' is for methods whose server steps by |D_i|^2, such as FedExP or FedDuAdam"
        )
    return changed


def updated_squared_norm(message: Any, value: Any) -> Any:
    """A message with `value` in each field that claims to be |D_i|^2, if there is one."""
    return _replaced(message, value)[0]


def _replaced(part: Any, value: Any) -> tuple[Any, int]:
    if not is_module(part):
        return part, 0
    changes, count = {}, 0
    for f in dataclasses.fields(part):
        claim = f.metadata.get("claim")
        if claim is not None and claim.of_delta is trees.squared_norm:
            changes[f.name], count = value, count + 1
        elif not f.metadata.get("static"):
            inner, found = _replaced(getattr(part, f.name), value)
            if found:
                changes[f.name], count = inner, count + found
    return (replace(part, **changes) if changes else part), count
