"""A client's replies about its own columns: sums and counts over at least as many rows as its owner wants."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedsolve.core.arrays.leaf import missing, to_numpy
from fedsolve.core.errors import InvalidInput, of_type, shown, unknown
from fedsolve.data.column_statistics.messages import (
    LARGEST,
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
    Replies,
    Reply,
    Request,
    Sums,
)
from fedsolve.data.column_statistics.report import merge_bins


def replies_to(
    requests: Mapping[str, Request], all_columns: bool, columns: Mapping[str, Any], min_rows: int
) -> dict[str, Reply]:
    """What a client replies in a round.

    Args:
        requests: about each column, by name.
        all_columns: whether they are about all of its columns, in place of `requests`.
        columns: of this client that may be asked about: numbers, NaN where one is missing, or texts, '' or None where
            one is missing; shape (rows,).
        min_rows: rows with a value that a column must have, at least 1; a category with fewer is not named.

    Raises:
        InvalidInput: the name of a column is no text.
    """
    for name in columns:
        if not isinstance(name, str):
            raise InvalidInput(f"the columns have {shown(name)} where a name stands: give names as text")
    asked = dict.fromkeys(columns, FindRange()) if all_columns else requests
    return {name: _reply_about(name, request, columns, min_rows) for name, request in asked.items()}


def _reply_about(name: str, request: Request, columns: Mapping[str, Any], min_rows: int) -> Reply:
    try:
        if name not in columns:
            raise unknown("column", name, columns)
        values = as_column_values(columns[name])
        is_text = isinstance(values, list)
        present = [text for text in values if text] if is_text else values[~np.isnan(values)]
        if len(present) < min_rows:
            return Refused(f"it has fewer than {min_rows} rows")
        return _reply(request, present, len(values) - len(present), min_rows)
    except InvalidInput as error:
        return Refused(str(error))


def as_column_values(column: Any) -> np.ndarray | list[str]:
    """A column as float64 numbers, NaN where one is missing, or as texts, '' where one is missing.

    Raises:
        InvalidInput: it has another shape, or values that are neither numbers nor text.
    """
    if isinstance(column, np.ma.MaskedArray) and np.ma.is_masked(column):  # arrays of pandas have masks, too
        raise InvalidInput("it has masked entries: give NaN for a number that is missing, '' for a text")
    if isinstance(column, list | tuple):  # NumPy would make text of a NaN among texts
        column = np.fromiter(column, object, len(column))
    values = to_numpy("it", column)
    if values.ndim != 1:
        raise InvalidInput(f"it has shape {values.shape}: give an array of shape (rows,)")
    none = missing(column)
    if values.dtype.kind in "biuf":
        return np.where(none, np.nan, values.astype(np.float64))
    if values.dtype.kind not in "OUT":
        raise InvalidInput(f"it is of type {values.dtype}: give numbers or text")
    cells = [None if gone else value for gone, value in zip(none.tolist(), values.tolist(), strict=True)]
    if all(isinstance(cell, int | float) for cell in cells if cell is not None):
        return np.array([np.nan if cell is None else cell for cell in cells], np.float64)
    return [_text(cell) for cell in cells]


def _reply(request: Request, present: np.ndarray | list[str], missing: int, min_rows: int) -> Reply:
    rows = len(present)
    if isinstance(request, CountCategories):
        counted = Counter(_texts(present))
        named = [n if (n := counted[name]) >= min_rows else 0 for name in request.categories]
        return CategoryCounts(rows, missing, (*named, rows - sum(named)))
    if isinstance(request, FindRange) and (request.categorical or isinstance(present, list)):
        return CategoryNames(rows, missing, _categories(_texts(present), min_rows))
    if isinstance(present, list):
        raise InvalidInput("it has categories, no numbers")
    if not (np.abs(present) < LARGEST).all():
        raise InvalidInput("it has a number of 2^64 or more, or one that is infinite: rescale it")
    if isinstance(request, Measure):
        centred = present - request.shift
        counts = histogram(present, request.edges)
        return Sums(rows, missing, math.fsum(centred), math.fsum(centred**2), counts)
    return Magnitudes(rows, missing, math.fsum(present), histogram(present, MAGNITUDE_EDGES))


def join_bins(replies: Replies, fewest: int) -> dict[str, Reply]:
    """Replies as they are sent where they are read one by one: each bin has no rows or at least `fewest`."""
    has_bins = {name: isinstance(reply, Magnitudes | Sums) for name, reply in replies.items()}
    return {
        name: replace(reply, counts=_joined(reply.counts, fewest)) if has_bins[name] else reply  # pyright: ignore
        for name, reply in replies.items()
    }


def _joined(counts: tuple[int, ...], fewest: int) -> tuple[int, ...]:
    edges, rows = merge_bins(np.arange(len(counts) + 1), np.array(counts), fewest)
    joined = [0] * len(counts)
    for low, high, held in zip(edges, edges[1:], rows, strict=False):
        joined[int(low) : int(high)] = [held] + [-1] * (int(high - low) - 1)
    return tuple(joined)


def histogram(values: np.ndarray, edges: np.ndarray) -> tuple[int, ...]:
    """How many values lie in each bin; one on an edge is in the bin above it, on the last finite edge in the one below.

    >>> histogram(np.array([0.0, 1.0, 2.0, 2.5]), np.array([-np.inf, 0.0, 1.0, 2.0, np.inf]))
    (0, 1, 2, 1)
    """
    places = np.searchsorted(edges, values, side="right") - 1
    last = len(edges) - 2
    if edges[-1] == np.inf:
        places[values == edges[-2]] = last - 1
    return tuple(np.bincount(places, minlength=last + 1).tolist())


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int | float):
        return number_text(value)
    raise InvalidInput(f"it holds {of_type(value)}: give numbers or text")


def _texts(present: np.ndarray | list[str]) -> list[str]:
    return present if isinstance(present, list) else [number_text(x) for x in present.tolist()]


def number_text(value: float) -> str:
    """A number as a category is called: whole ones without a point.

    >>> number_text(1.0), number_text(0.5)
    ('1', '0.5')
    """
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _categories(texts: list[str], min_rows: int) -> tuple[str, ...]:
    """The categories with enough rows and a name that can be shown, in order."""
    enough = sorted(text for text, rows in Counter(texts).items() if rows >= min_rows)
    named = tuple(text for text in enough if len(text) <= LONGEST_CATEGORY and text.isprintable())
    if len(named) > MOST_CATEGORIES:
        raise InvalidInput(f"it has {len(named)} categories, more than {MOST_CATEGORIES}")
    return named


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
            bins = _check_bins(reply, request.edges - request.shift)
            _check_total(reply, *bins)
            _check_squares(reply, *bins)
        case FindRange(categorical=False), Magnitudes():
            _check_total(reply, *_check_bins(reply, MAGNITUDE_EDGES))
        case FindRange(), CategoryNames():
            _check_names(reply.names)
        case CountCategories(), CategoryCounts():
            _check_counts(reply.counts, reply.rows, len(request.categories) + 1)
        case _:
            raise InvalidInput(f"it replies {type(reply).__name__} to {type(request).__name__}")


def _check_integer(name: str, value: Any, least: int) -> None:
    if type(value) is not int or not least <= value <= _MOST_ROWS:
        raise InvalidInput(f"its {name} are {str(value)[:40]}, not an integer from {least} to {_MOST_ROWS:,}")


def _check_bins(reply: Magnitudes | Sums, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows and the edges of a reply's bins, those that are joined as one."""
    counts, bins = reply.counts, len(edges) - 1
    if type(counts) is tuple and len(counts) == bins:
        starts = [i for i, count in enumerate(counts) if i == 0 or count != -1]
        counts, edges, bins = tuple(counts[i] for i in starts), edges[[*starts, bins]], len(starts)
    _check_counts(counts, reply.rows, bins)
    return np.array(counts, float), edges


def _check_counts(counts: Any, rows: int, length: int) -> None:
    if type(counts) is not tuple or len(counts) != length:
        raise InvalidInput(f"it has no {length} counts")
    for count in counts:
        _check_integer("counts", count, 0)
    if sum(counts) != rows:
        raise InvalidInput(f"its counts add up to {sum(counts):,}, and it has {rows:,} rows")


def _check_total(reply: Magnitudes | Sums, number: np.ndarray, edges: np.ndarray) -> None:
    """Raise `InvalidInput` unless a sum can be of numbers in these bins."""
    total = reply.total
    if type(total) is not float or not math.isfinite(total):
        raise InvalidInput(f"its sum is {str(total)[:40]}, no finite number")
    lowest, highest = (_weighted(number, part) for part in (edges[:-1], edges[1:]))
    slack = _slack(number, edges) + _ROUNDING * abs(total)
    if not lowest - slack <= total <= highest + slack:
        raise InvalidInput(
            f"its sum is {total:.6g}, and of {reply.rows:,} numbers in its bins it would be {lowest:.6g} to "
            f"{highest:.6g}"
        )


def _check_squares(reply: Sums, number: np.ndarray, edges: np.ndarray) -> None:
    """Raise `InvalidInput` unless a sum of squares can be of numbers in these bins with this sum."""
    if type(reply.squares) is not float or not 0 <= reply.squares < math.inf:
        raise InvalidInput(f"its sum of squares is {str(reply.squares)[:40]}, no finite number of at least 0")
    ends = np.sort(np.abs([edges[:-1], edges[1:]]), axis=0)
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
