"""Packages that only some functions need."""

from __future__ import annotations

import importlib.util

from fedsolve.core.errors import InvalidInput


def require(package: str, what: str, extra: str, name: str = "") -> None:
    """Raise `InvalidInput` unless a package is installed: "plots need matplotlib, which is not installed: ..."."""
    if importlib.util.find_spec(package) is None:
        raise InvalidInput(
            f"{what} {name or package}, which is not installed: pip install 'fedsolve[{extra}]'"
        )
