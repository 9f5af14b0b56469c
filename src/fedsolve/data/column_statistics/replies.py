"""A client's replies about its own columns: sums and counts over at least as many rows as its owner wants."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsolve.core.arrays.leaf import to_numpy
from fedsolve.core.arrays.missing import missing
from fedsolve.core.errors import InvalidInput, of_type, unknown
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
    Reply,
    Request,
    Sums,
)


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
    """
    asked = dict.fromkeys(columns, FindRange()) if all_columns else requests
    return {str(name): _reply_about(name, request, columns, min_rows) for name, request in asked.items()}


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
