"""Names of clients that are not kept one by one: millions of them take no memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload


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
