"""Columns and names that clients have in common: names of clients and columns, structure, shapes, and a type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, overload

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput, is_integer, of_type, shown
from fedsolve.core.trees import as_array, check_same_rows, columns_of, is_rounded, missing, to_numpy
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


class Numbered(Sequence[str]):
    """The names of clients that have none of their own: `client 0`, `client 1`, ..."""

    def __init__(self, clients: int) -> None:
        self._clients = clients

    def __len__(self) -> int:
        return self._clients

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        return self._name(range(len(self))[index])

    def _name(self, client: int) -> str:
        return f"client {client}"


def as_names(names: object) -> tuple[Any, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidInput(f"names are {of_type(names)}: give a list, a name for each client")
    return tuple(names)


def check_names(names: Sequence[Any]) -> None:
    if isinstance(names, Numbered):
        return
    for i, name in enumerate(names):
        if not isinstance(name, str):
            raise InvalidInput(f"names: client {i} has {of_type(name)}: give text for each client")
    if len(set(names)) < len(names):
        seen: dict[str, int] = {}
        for i, name in enumerate(names):
            if seen.setdefault(name, i) != i:
                raise duplicate_name(seen[name], i, name)


def check_written_names(text: bytes | memoryview, ends: np.ndarray) -> None:
    # names in UTF-8 one behind another, and where each ends, (clients,). By hashes: 16 bytes a name
    bounds = np.concatenate([[0], ends])
    hashes = np.fromiter((hash(bytes(text[a:b])) for a, b in pairwise(bounds)), np.int64, len(ends))
    order = np.argsort(hashes, kind="stable")
    for k in np.flatnonzero(np.diff(hashes[order]) == 0):
        first, second = sorted(order[k : k + 2].tolist())
        name_bytes, other = (bytes(text[bounds[i] : bounds[i + 1]]) for i in (first, second))
        if name_bytes == other:
            raise duplicate_name(first, second, name_bytes.decode())


def duplicate_name(first: int, second: int, name: str) -> InvalidInput:
    return InvalidInput(
        f"names: clients {first} and {second} are both called {shown(name)}: give each a name of its own"
    )


def as_rows(name: str, values: Any, total: int) -> np.ndarray:
    # int64 (rows,). A boolean mask is refused: as numbers its truths would be rows 0 and 1
    rows = as_array(name, values)
    if rows.ndim != 1:
        raise InvalidInput(f"{name} have shape {rows.shape}: give row numbers, shape (rows,)")
    if len(rows) and rows.dtype.kind not in "iu":
        remedy = "give np.flatnonzero of it" if rows.dtype == bool else "give integers"
        raise InvalidInput(f"{name} are of type {rows.dtype}, not row numbers: {remedy}")
    if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= total):
        bad = int(rows.min()) if int(rows.min()) < 0 else int(rows.max())
        raise InvalidInput(f"{name} hold {bad}: row numbers must lie in 0 to {total - 1}")
    return rows.astype(np.int64)


def check_column(name: str, values: Any) -> np.ndarray:
    # ids, labels or categories (examples,): each stays what it is, and none is missing. Text that may be
    # written in two forms is one (Unicode's NFC). Lists and objects are looked at one by one, since NumPy
    # would make one text or float of 1 and "1", or of integers beyond 64 bits
    if np.ma.is_masked(values):
        raise InvalidInput(f"{name} have masked entries: fill them or leave their rows out")
    column = to_numpy(name, values)
    if column.ndim != 1 or len(column) == 0:
        instead = ", of one-hot labels array.argmax(1)" if column.ndim == 2 else ""
        raise InvalidInput(
            f"{name} have shape {column.shape}: give one for each example, shape (examples,){instead}"
        )
    if isinstance(values, list | tuple) and not any(hasattr(v, "detach") for v in values):
        column = np.fromiter(values, object, len(values))
    none = missing(values if column.dtype != object else column)
    if none.any():
        raise InvalidInput(
            f"{name} have no value for example {int(none.argmax())}: fill it, or leave the example out"
        )
    column = _of_one_type(name, column) if column.dtype.kind in "OS" else column
    most = 2.0 ** (np.finfo(column.dtype).nmant + 1) if column.dtype.kind == "f" else 0.0
    if most and np.abs(column).max() >= most:
        raise InvalidInput(
            f"{name} are {column.dtype} and reach {most:.0f}, where it has one number for several integers: read them "
            "as integers or text"
        )
    if isinstance(column[0], str) and not all(text.isascii() for text in column):
        column = np.fromiter(map(to_nfc, column.tolist()), object, len(column))
    return column


def _of_one_type(name: str, column: np.ndarray) -> np.ndarray:
    # objects of one type have an order; integers and texts go into an array of theirs where that changes none
    values = column.tolist()
    known = {"bool": bool | np.bool_, "int": Integral, "float": Real, "str": str}
    kinds = {next((k for k, of in known.items() if isinstance(x, of)), type(x).__name__) for x in values}
    rounded = kinds == {"int", "float"} and any(abs(value) >= 2**53 for value in values)
    if len(kinds) > 1 and (kinds != {"int", "float"} or rounded):
        raise InvalidInput(
            f"{name} hold labels or ids of several types ({', '.join(sorted(kinds))}), which have no order: make them "
            "all text or all integers"
        )
    if kinds == {"bytes"}:
        try:
            return np.array([value.decode() for value in values], object)
        except UnicodeDecodeError:
            raise InvalidInput(f"{name} are bytes that are no UTF-8: decode them to text") from None
    if kinds <= {"int", "float", "bool"}:  # those beyond 64 bits stay Python's
        numbers = np.array(values)
        return column if kinds == {"int"} and numbers.dtype.kind == "f" else numbers
    try:
        np.unique(column)
    except TypeError:
        raise InvalidInput(
            f"{name} hold {kinds.pop()} objects, which have no order: make them text"
        ) from None
    return column
