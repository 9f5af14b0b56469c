"""What clients are called: the name that a node gives its site, else the client's number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsolve.core.errors import InvalidInput, shown
from fedsolve.folders.untrusted import to_nfc

LONGEST = 64
"""Characters of the longest name of a site."""
_NUMBERED = re.compile(r"client\s*\d+", re.IGNORECASE)


def numbered(client: int) -> str:
    return f"client {client}"


def check_site(name: Any) -> str:
    """The name of a site, if it can stand in logs, tables and pages."""
    remedy = f'give 1 to {LONGEST} printable characters, such as site="north"'
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST:
        raise InvalidInput(f"site = {shown(name)} is not a name of a site: {remedy}")
    if not name.isprintable() or name != name.strip() or _NUMBERED.fullmatch(name):
        raise InvalidInput(
            f"site = {shown(name)} is not a name of a site: it has line breaks, spaces around it, or is a client's "
            f"number; {remedy}"
        )
    return name


def site_of(node_config: Mapping[str, Any]) -> str:
    """The name of a node's site by its configuration: `site`, else the name of its CSV file `data`, else ''.

    >>> site_of({"client-id": 0, "data": "/data/north.csv"})
    'north'
    """
    if "site" in node_config:
        return check_site(to_nfc(site) if isinstance(site := node_config["site"], str) else site)
    path = Path(str(node_config.get("data", "")))
    try:
        return check_site(to_nfc(path.stem)) if path.suffix.lower() == ".csv" else ""
    except InvalidInput:  # a file may be called anything
        return ""


class SiteNames:
    """The names of a federation's clients; each is another."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def __call__(self, client: int) -> str:
        return self._names.get(client, numbered(client))

    def assign(self, client: int, name: str) -> str:
        """Call a client by the name that its node gives, '' for none; why that cannot be, in words, else ''."""
        holder = next((c for c, other in self._names.items() if other == name and c != client), None)
        self._names.pop(client, None)
        if holder is not None:
            return f"its site is called {name}, as that of client {holder}: give each node another site name"
        if name:
            self._names[client] = name
        return ""

    @property
    def given(self) -> dict[int, str]:
        """The names that nodes gave, by client, in the order of numbers."""
        return {client: self._names[client] for client in sorted(self._names)}
