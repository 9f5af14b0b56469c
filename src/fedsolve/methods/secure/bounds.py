"""Bounds of numbers in a message, as a user gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsolve.core.checks import is_plain_number
from fedsolve.core.errors import InvalidInput

SMALLEST, LARGEST = 1e-12, 1e12
"""Bounds that may be given: their scales, and what follows from them, are float32 numbers."""


def as_pairs(bounds: Any) -> tuple[tuple[str, float], ...]:
    """Bounds as pairs in the order of their names.

    Raises:
        InvalidInput: no bounds by name.
    """
    if not isinstance(bounds, Mapping | tuple | None):
        raise InvalidInput(f"bounds = {bounds!r} must be bounds by name, such as {{'loss': 100.0}}")
    pairs = tuple(sorted(dict(bounds or ()).items()))
    for name, bound in pairs:
        check_bound(f"bounds[{name!r}]", bound)
    return tuple((name, float(bound)) for name, bound in pairs)


def check_bound(name: str, bound: Any) -> None:
    """Raise `InvalidInput` unless a bound is a number that a scale can be chosen for."""
    if not is_plain_number(bound) or not SMALLEST <= bound <= LARGEST:
        raise InvalidInput(f"{name} = {bound!r} must be a number from {SMALLEST:g} to {LARGEST:g}")
