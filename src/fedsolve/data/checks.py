"""Checks of the plain arguments that partitions, readers and tasks share: numbers and label arrays."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np

from fedsolve.errors import InvalidInput, check_range


def check_whole(name: str, value: Any, at_least: int = 0) -> int:
    """`value` as an int; `InvalidInput` if it is not a whole number or is smaller than `at_least`.

    >>> check_whole("num_clients", 2.5, 1)
    Traceback (most recent call last):
    ...
    fedsolve.errors.InvalidInput: num_clients = 2.5 must be a whole number >= 1
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < at_least:
        raise InvalidInput(f"{name} = {value!r} must be a whole number >= {at_least}")
    return int(value)


def check_number(name: str, value: Any, **bounds: float) -> float:
    """`value` as a float; `InvalidInput` if it is not a number or leaves its bounds (see `check_range`).

    >>> check_number("alpha", "small", above=0)
    Traceback (most recent call last):
    ...
    fedsolve.errors.InvalidInput: alpha = 'small' must be a number
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidInput(f"{name} = {value!r} must be a number")
    check_range(name, value, **bounds)
    return float(value)


def check_column(name: str, values: Any) -> np.ndarray:
    """`values` as an array of shape (examples,), not empty; `InvalidInput` otherwise."""
    column = np.asarray(values)
    if column.ndim != 1 or len(column) == 0:
        raise InvalidInput(f"{name} have shape {column.shape}: give one for each example, shape (examples,)")
    return column
