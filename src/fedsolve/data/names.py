"""Names of clients that are not kept one by one: millions of them take no memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np

from fedsolve.core.errors import InvalidInput, shown


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
    """Clients' names as given; `InvalidInput` unless they are a list."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidInput(f"names = {shown(names)} must be a list, a name for each client")
    return tuple(names)


def check_names(names: Sequence[Any]) -> None:
    """Raise `InvalidInput` unless clients' names are text, and each client's its own."""
    if isinstance(names, Numbered):
        return
    for i, name in enumerate(names):
        if not isinstance(name, str):
            raise InvalidInput(f"names: client {i} has {shown(name)}: give text for each client")
    if len(set(names)) < len(names):
        seen: dict[str, int] = {}
        for i, name in enumerate(names):
            if seen.setdefault(name, i) != i:
                raise twice(seen[name], i, name)


def check_written_names(text: bytes | memoryview, ends: np.ndarray) -> None:
    """Raise `InvalidInput` unless each of many names, one behind another, is another; it takes 16 bytes a name.

    Args:
        text: the names in UTF-8.
        ends: where each ends, shape (clients,).
    """
    bounds = np.concatenate([[0], ends])
    hashes = np.fromiter((hash(bytes(text[a:b])) for a, b in pairwise(bounds)), np.int64, len(ends))
    order = np.argsort(hashes, kind="stable")
    for k in np.flatnonzero(np.diff(hashes[order]) == 0):
        first, second = sorted(order[k : k + 2].tolist())
        name_bytes, other = (bytes(text[bounds[i] : bounds[i + 1]]) for i in (first, second))
        if name_bytes == other:
            raise twice(first, second, name_bytes.decode())


def twice(first: int, second: int, name: str) -> InvalidInput:
    """The error for two clients of one name."""
    return InvalidInput(
        f"names: clients {first} and {second} are both called {shown(name)}: give each a name of its own"
    )
