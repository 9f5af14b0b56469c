"""Whether a reply about a column can be believed: its counts add up, and its sums fit the bins that it says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.data.column_statistics.messages import (
    LONGEST_CATEGORY,
    MAGNITUDE_EDGES,
    MOST_CATEGORIES,
    CategoryCounts,
    CategoryNames,
    CountCategories,
    FindRange,
    Magnitudes,
    Measure,
    Refused,
    Reply,
    Request,
    Sums,
)

_MOST_ROWS = 2**40
_ROUNDING = 1e-9
"""Relative, of sums of rows: what is beyond is no rounding."""


def check_reply(request: Request, reply: Reply) -> None:
    """Raise `InvalidInput` unless a reply is one to this request, and every number of it can be believed."""
    if isinstance(reply, Refused):
        return
    _check_integer("rows", reply.rows, 1)
    _check_integer("missing", reply.missing, 0)
    match request, reply:
        case Measure(), Sums():
            _check_counts(reply.counts, reply.rows, request.bins + 2)
            _check_total(reply.total, reply.rows, reply.counts, request.edges - request.shift)
            _check_squares(reply, request.edges - request.shift)
        case FindRange(categorical=False), Magnitudes():
            _check_counts(reply.counts, reply.rows, len(MAGNITUDE_EDGES) - 1)
            _check_total(reply.total, reply.rows, reply.counts, MAGNITUDE_EDGES)
        case FindRange(), CategoryNames():
            _check_names(reply.names)
        case CountCategories(), CategoryCounts():
            _check_counts(reply.counts, reply.rows, len(request.categories) + 1)
        case _:
            raise InvalidInput(f"it replies {type(reply).__name__} to {type(request).__name__}")


def _check_integer(name: str, value: Any, least: int) -> None:
    if type(value) is not int or not least <= value <= _MOST_ROWS:
        raise InvalidInput(f"its {name} are {str(value)[:40]}, not an integer from {least} to {_MOST_ROWS:,}")


def _check_counts(counts: Any, rows: int, length: int) -> None:
    if type(counts) is not tuple or len(counts) != length:
        raise InvalidInput(f"it has no {length} counts")
    for count in counts:
        _check_integer("counts", count, 0)
    if sum(counts) != rows:
        raise InvalidInput(f"its counts add up to {sum(counts):,}, and it has {rows:,} rows")


def _check_total(total: Any, rows: int, counts: tuple[int, ...], edges: np.ndarray) -> None:
    """Raise `InvalidInput` unless a sum can be of numbers in these bins."""
    if type(total) is not float or not math.isfinite(total):
        raise InvalidInput(f"its sum is {str(total)[:40]}, no finite number")
    number = np.array(counts, float)
    lowest, highest = (_weighted(number, part) for part in (edges[:-1], edges[1:]))
    slack = _slack(number, edges) + _ROUNDING * abs(total)
    if not lowest - slack <= total <= highest + slack:
        raise InvalidInput(
            f"its sum is {total:.6g}, and of {rows:,} numbers in its bins it would be {lowest:.6g} to {highest:.6g}"
        )


def _check_squares(reply: Sums, edges: np.ndarray) -> None:
    """Raise `InvalidInput` unless a sum of squares can be of numbers in these bins with this sum."""
    if type(reply.squares) is not float or not 0 <= reply.squares < math.inf:
        raise InvalidInput(f"its sum of squares is {str(reply.squares)[:40]}, no finite number of at least 0")
    number, ends = np.array(reply.counts, float), np.sort(np.abs([edges[:-1], edges[1:]]), axis=0)
    across = (edges[:-1] < 0) & (edges[1:] > 0)
    lowest, highest = _weighted(number, np.where(across, 0.0, ends[0]) ** 2), _weighted(number, ends[1] ** 2)
    lowest = max(lowest, reply.total**2 / reply.rows)
    slack = _slack(number, edges**2) + _ROUNDING * reply.squares
    if not lowest - slack <= reply.squares <= highest + slack:
        raise InvalidInput(
            f"its sum of squares is {reply.squares:.6g}, and of numbers with its sum in its bins it would be "
            f"{lowest:.6g} to {highest:.6g}"
        )


def _weighted(counts: np.ndarray, values: np.ndarray) -> float:
    """The sum of counts times values, which may be infinite where there is nothing."""
    held = counts > 0
    return float(counts[held] @ values[held])


def _slack(counts: np.ndarray, edges: np.ndarray) -> float:
    """What rounding may add to a sum over bins."""
    finite = np.where(np.isfinite(edges), np.abs(edges), 0.0)
    return _ROUNDING * _weighted(counts, np.maximum(finite[:-1], finite[1:]))


def _check_names(names: Any) -> None:
    is_tuple = type(names) is tuple and len(names) <= MOST_CATEGORIES
    if not is_tuple or not all(type(n) is str for n in names) or len(set(names)) < len(names):
        raise InvalidInput(f"its categories are not up to {MOST_CATEGORIES} different texts")
    for name in names:
        if not 1 <= len(name) <= LONGEST_CATEGORY or not name.isprintable() or name != name.strip():
            raise InvalidInput(
                f"a category is no printable text of 1 to {LONGEST_CATEGORY} characters without spaces around it"
            )
