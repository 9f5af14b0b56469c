"""What the examples of several clients must have in common: structure, shapes, and a type that holds all numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from fedsolve.core.arrays.precision import is_rounded
from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.core.types import Batch
from fedsolve.data.examples import in_words


def check_list(name: str, given: object, of: str) -> None:
    """Raise `InvalidInput`, with what to give in place of it, unless something with clients is a list."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        return
    instead = f": give list({name})" if hasattr(given, "__next__") else ""
    if isinstance(given, Mapping):
        instead = f": give FederatedData with list({name}.values()) and names=list(map(str, {name}))"
    raise InvalidInput(f"{name} = {of_type(given)} must be a list, {of}{instead}")


def same_form(client: Batch, first: Batch, name: str, of: str) -> int:
    """How many examples a client has; `InvalidInput` unless its fields are as the first client's, of one length."""
    leaves = jax.tree_util.tree_leaves_with_path(client)
    for path, leaf in leaves:
        if not leaf.ndim:
            raise InvalidInput(
                f"{jax.tree_util.keystr(path)} of {name} is one number: give arrays with a row an example, of a list "
                "np.array(rows)"
            )
    if jax.tree.structure(client) != jax.tree.structure(first):
        raise InvalidInput(f"{name} is {in_words(client)}, {of} is {in_words(first)}: give all the same")
    for (path, leaf), own in zip(leaves, jax.tree.leaves(first), strict=True):
        if leaf.shape[1:] != own.shape[1:]:
            where = f"{jax.tree_util.keystr(path)} of {name}".strip()
            raise InvalidInput(
                f"{where} has rows of shape {leaf.shape[1:]}, of {of} {own.shape[1:]}: give all the same"
            )
    lengths = {len(leaf) for _, leaf in leaves}
    if len(lengths) != 1:
        raise InvalidInput(f"the fields of {name} have different lengths {sorted(lengths)}")
    return lengths.pop()


def one_type(path: str, parts: Sequence[np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Clients' arrays packed, in the smallest type that holds all of theirs; `InvalidInput` if it would round one."""
    try:
        packed = np.concatenate(parts)
    except TypeError:
        kinds = ", ".join(sorted({str(part.dtype) for part in parts}))
        raise InvalidInput(
            f"field {path} has types {kinds}, which have none in common: give all one"
        ) from None
    for i, part in enumerate(parts):
        if is_rounded(part, packed.dtype):
            raise InvalidInput(
                f"field {path} of {names[i]} has type {part.dtype} and integers beyond 2^53, which {packed.dtype}, the "
                "type of all clients together, would round: give all clients one type"
            )
    return packed
