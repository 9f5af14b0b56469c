"""What the examples of several clients must have in common: names of columns, structure, shapes, and a type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput, is_integer, of_type
from fedsolve.core.trees import as_array, check_same_rows, columns_of, is_rounded
from fedsolve.core.types import Batch
from fedsolve.data.examples import form_text
from fedsolve.folders.untrusted import to_nfc

Columns = tuple[tuple[str, ...] | None, ...]
"""For each leaf in the order of `jax.tree.leaves` the names of its columns, None if they have none; () if none has."""

_SHOWN = 3  # names in an error


def named_arrays(
    name: str, examples: Batch, known: Columns = (), of: str = "the clients before"
) -> tuple[Batch, Columns]:
    # every leaf as an array of numbers, and the names of its columns, those `known` where it has none. Tables
    # (pandas, Polars, Arrow) have names, and are put in the known order; arrays go by position, as do tables
    # whose names are the numbers 0, 1, ..., which pandas gives to those without. `name` is what an error
    # calls the examples, `of` whose the known names are
    paths, structure = jax.tree_util.tree_flatten_with_path(examples)
    known = known if len(known) == len(paths) else (None,) * len(paths)
    arrays: list[np.ndarray] = []
    found: list[tuple[str, ...] | None] = []
    check_same_rows((f"{name} {jax.tree_util.keystr(path)}".strip(), leaf) for path, leaf in paths)
    for (path, leaf), wanted in zip(paths, known, strict=True):
        where = f"{name} {jax.tree_util.keystr(path)}".strip()
        array, labels, own = as_array(where, leaf), [label for label, _ in columns_of(leaf) or ()], None
        if all(map(is_integer, labels)) and sorted(labels) == list(range(len(labels))):
            order = None if labels == sorted(labels) else np.argsort(labels)
        else:
            own = tuple(to_nfc(str(label)) for label in labels)
            order = _order(where, own, wanted, of)
        arrays.append(array if order is None else array[:, order])
        found.append(wanted or own)
    return jax.tree.unflatten(structure, arrays), tuple(found) if any(found) else ()


def in_order(name: str, arrays: Batch, columns: Columns, known: Columns, of: str) -> Batch:
    # arrays with the columns `columns`, put in the order of `known`
    leaves, structure = jax.tree.flatten(arrays)
    for i, order in enumerate(check_same_columns(name, columns, known, of)):
        leaves[i] = leaves[i] if order is None else leaves[i][:, order]
    return jax.tree.unflatten(structure, leaves)


def check_same_columns(name: str, columns: Columns, known: Columns, of: str) -> list[list[int] | None]:
    # where each known column of a leaf stands; None for a leaf in order
    pairs = zip(columns, known, strict=True) if len(columns) == len(known) else ()
    return [None if own is None else _order(name, own, wanted, of) for own, wanted in pairs]


def _order(where: str, own: tuple[str, ...], wanted: tuple[str, ...] | None, of: str) -> list[int] | None:
    # where each wanted name stands; None if they are in order
    places = {label: i for i, label in enumerate(own)}
    if len(places) < len(own):
        twice = next(label for label in own if own.count(label) > 1)
        raise InvalidInput(f"{where} has two columns {twice!r}: give each a name of its own")
    if wanted is None or wanted == own:
        return None
    more, less = [a for a in own if a not in set(wanted)], [a for a in wanted if a not in places]
    if more or less:
        parts = [f"has {_words(more)}"] * bool(more) + [f"lacks {_words(less)}"] * bool(less)
        raise InvalidInput(f"{where} {' and '.join(parts)}, unlike {of}: give the same columns, by name")
    return [places[label] for label in wanted]


def _words(names: Sequence[str]) -> str:
    further = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + further


def check_list(name: str, given: object, of: str) -> None:
    # the error says what to give in place of it
    if isinstance(given, Sequence) and not isinstance(given, str):
        return
    instead = f": give list({name})" if hasattr(given, "__next__") else ""
    if isinstance(given, Mapping):
        instead = f": give FederatedData with list({name}.values()) and names=list(map(str, {name}))"
    raise InvalidInput(f"{name} = {of_type(given)} must be a list, {of}{instead}")


def check_same_form(client: Batch, first: Batch, name: str, of: str) -> int:
    # how many examples the client has
    leaves = jax.tree_util.tree_leaves_with_path(client)
    for path, leaf in leaves:
        if not leaf.ndim:
            raise InvalidInput(
                f"{jax.tree_util.keystr(path)} of {name} is one number: give arrays with a row an example, of a list "
                "np.array(rows)"
            )
    if jax.tree.structure(client) != jax.tree.structure(first):
        raise InvalidInput(f"{name} is {form_text(client)}, {of} is {form_text(first)}: give all the same")
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


def in_common_type(path: str, parts: Sequence[np.ndarray], names: Sequence[str]) -> np.ndarray:
    # packed in the smallest type that holds all of theirs, which must round none
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
