"""Names of clients that are not kept one by one (millions of them take no memory), and checks of arrays of examples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, overload

import numpy as np

from fedsolve.core.errors import InvalidInput, of_type, shown
from fedsolve.core.trees import as_array, missing, to_numpy
from fedsolve.folders.untrusted import to_nfc


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
    if column.dtype.kind == "f" and np.abs(column).max() >= (
        most := 2.0 ** (np.finfo(column.dtype).nmant + 1)
    ):
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
    kinds = {_kind(value) for value in values}
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


def _kind(value: object) -> str:
    for kind, types in {"bool": bool | np.bool_, "int": Integral, "float": Real, "str": str}.items():
        if isinstance(value, types):
            return kind
    return type(value).__name__
