"""What is asked of clients about their columns, and what they reply: sums and counts over at least so many rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput, check_integer, of_type, shown, unknown
from fedsolve.core.trees import missing, to_numpy

CATEGORIES = "categories"
"""In place of a range: a column's categories are counted."""
LARGEST = 2.0**64
"""Numbers of this size and beyond are refused: their squares would not add up to something useful."""
BINS = 100
"""Of a histogram, between its ends, where no other number is asked for."""
MOST_BINS = 4096
"""Of a histogram, between its ends."""
MOST_CATEGORIES = 100
"""Categories of a column that a client names, at most."""
LONGEST_CATEGORY = 64
"""Characters of a category's name, at most."""


@dataclass(frozen=True)
class Describe:
    """Mean, deviation and ends of a column of numbers, or the rows of each category."""

    categorical: bool = False  # whether it has categories even if all of its cells are numbers


@dataclass(frozen=True)
class Measure:
    """Mean and deviation of a column of numbers, and a histogram of equal bins in place of its ends."""

    low: float  # low, high: of the histogram, low < high
    high: float
    bins: int = BINS  # between them

    @property
    def edges(self) -> np.ndarray:
        # with a bin for what is below `low` and one for what is above `high`, (bins + 3,)
        return np.concatenate([[-np.inf], np.linspace(self.low, self.high, self.bins + 1), [np.inf]])


Request = Describe | Measure


def parse_columns(columns: Any) -> dict[str, Request]:
    if isinstance(columns, str):
        columns = dict(_parse_text(text.strip()) for text in columns.split(",") if text.strip())
    if not isinstance(columns, Mapping):
        if not isinstance(columns, Iterable):
            raise InvalidInput(f"columns = {shown(columns)} must be names of columns, such as ['age']")
        columns = dict.fromkeys(columns)
    for name in columns:
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"columns: {shown(name)} is no name of a column, such as 'age'")
    return {name: _parse_request(name, about) for name, about in columns.items()}


def _parse_text(text: str) -> tuple[str, Any]:
    # NAME, NAME=LOW:HIGH, NAME=LOW:HIGH:BINS or NAME=categories
    name, equals, about = text.rpartition("=")
    if not equals:
        return text, None
    if about.strip() == CATEGORIES:
        return name.strip(), CATEGORIES
    try:
        low, high, *bins = about.split(":")
        return name.strip(), (float(low), float(high), *map(int, bins))
    except ValueError:
        known = f"NAME, NAME=LOW:HIGH, NAME=LOW:HIGH:BINS or NAME={CATEGORIES}"
        raise InvalidInput(f"columns: {shown(text)} must be {known}") from None


def _parse_request(name: str, about: Any) -> Request:
    if about is None or about == CATEGORIES:
        return Describe(categorical=about is not None)
    try:
        low, high, *rest = about
        low, high = float(low), float(high)
        [bins] = rest or [BINS]
    except (TypeError, ValueError):
        low, high, bins = math.nan, math.nan, BINS
    if not -LARGEST <= low < high <= LARGEST:
        must = f"must be a range (low, high) with low < high, or {CATEGORIES!r}"
        raise InvalidInput(f"columns: {name} = {shown(about)} {must}")
    if check_integer(f"columns: bins of {name}", bins, 1) > MOST_BINS:
        raise InvalidInput(f"columns: bins of {name} = {bins}: give at most {MOST_BINS:,}")
    return Measure(low, high, int(bins))


@dataclass(frozen=True)
class Numbers:
    """The reply about a column of numbers."""

    rows: int  # that have a number
    missing: int  # rows that have none
    mean: float  # mean, rest: of the numbers, and what its rounding left out
    rest: float
    squares: float  # sum of their squared distances from the mean
    ends: tuple[float, ...]  # the smallest and the largest, rounded outwards; empty in a reply to `Measure`
    # rows in each bin of `Measure.edges`; -1 for one that is joined to the bin before it. Empty in a reply to
    # `Describe`.
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Categories:
    """The reply about a column of categories: names and rows of those with enough rows at this client."""

    rows: int  # rows, missing: as in `Numbers`
    missing: int
    names: tuple[str, ...]  # names, counts: of each category, in order
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Refused:
    """Why a client gives no reply about a column."""

    reason: str


Reply = Numbers | Categories | Refused
Replies = Mapping[str, Reply]
"""What one client replies, by column."""
_Log = Callable[[str], None] | None


# A client's replies about its own columns: sums and counts over at least as many rows as its owner wants.


def replies_to(
    requests: Mapping[str, Request], columns: Mapping[str, Any], min_rows: int, log: _Log = None
) -> dict[str, Reply]:
    # columns: numbers, NaN where one is missing, or texts, '' or None where one is missing, (rows,);
    # min_rows: rows with a value that a column, and a category, must have. No requests stand for all columns
    # log: where the cell that cannot be used is written; None where the replies stay with the owner of the columns
    for name in columns:
        if not isinstance(name, str):
            raise InvalidInput(f"the columns have {shown(name)} where a name stands: give names as text")
    asked = requests or dict.fromkeys(columns, Describe())
    return {name: _reply_about(name, request, columns, min_rows, log) for name, request in asked.items()}


def _reply_about(name: str, request: Request, columns: Mapping[str, Any], min_rows: int, log: _Log) -> Reply:
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
        if log is None:
            return Refused(str(error))
        log(f"column {name} is not reported: {error}")
        return Refused(getattr(error, "without_value", str(error)))


def as_column_values(column: Any) -> np.ndarray | list[str]:
    # float64, NaN where a number is missing, or texts, '' where one is missing
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
    is_categorical = isinstance(request, Describe) and request.categorical
    if is_categorical or isinstance(present, list):
        if isinstance(request, Measure):
            raise InvalidInput("it has categories, and a range was given for it")
        texts = present if isinstance(present, list) else [number_text(x) for x in present.tolist()]
        counts = _categories(texts, min_rows)
        return Categories(rows, missing, tuple(counts), tuple(counts.values()))
    if not (np.abs(present) < LARGEST).all():
        raise InvalidInput("it has a number of 2^64 or more, or one that is infinite: rescale it")
    mean = math.fsum(present) / rows
    rest = math.fsum(present - mean) / rows
    squares = math.fsum((present - mean - rest) ** 2)
    if isinstance(request, Measure):
        return Numbers(rows, missing, mean, rest, squares, (), histogram(present, request.edges))
    return Numbers(rows, missing, mean, rest, squares, _ends(present, min_rows), ())


def _ends(present: np.ndarray, min_rows: int) -> tuple[float, float]:
    # rounded outwards by as much as the `min_rows` rows beside an end spread: so no end says more than that
    # so many rows are near it, as a bin of a histogram
    ordered = np.sort(present)
    low, high = float(ordered[0]), float(ordered[-1])
    below, above = float(ordered[min_rows - 1]) - low, high - float(ordered[-min_rows])
    return _rounded(math.floor, low, below), _rounded(math.ceil, high, above)


def _rounded(direction: Callable[[float], int], end: float, spread: float) -> float:
    # to a grid whose unit is a power of 2 above the spread
    unit = 2.0 ** math.frexp(spread)[1] if spread else 0.0
    return direction(end / unit) * unit if unit else end


def join_bins(replies: Replies, fewest: int) -> dict[str, Reply]:
    # as replies are sent where they are read one by one: each bin has no rows or at least `fewest`
    return {
        name: replace(reply, counts=_joined(reply.counts, fewest))
        if isinstance(reply, Numbers) and reply.counts
        else reply
        for name, reply in replies.items()
    }


def _joined(counts: tuple[int, ...], fewest: int) -> tuple[int, ...]:
    edges, rows = merge_bins(np.arange(len(counts) + 1), np.array(counts), fewest)
    joined = [0] * len(counts)
    for low, high, held in zip(edges, edges[1:], rows, strict=False):
        joined[int(low) : int(high)] = [held] + [-1] * (int(high - low) - 1)
    return tuple(joined)


def merge_bins(
    edges: np.ndarray, counts: np.ndarray, fewest: int
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Bins in place of these, each without rows or with at least `fewest`: those with fewer join the next one above.

    Empty bins at both ends go. What is left over at the end joins the last bin that has rows.

    >>> merge_bins(np.arange(7.0), np.array([0, 2, 1, 0, 3, 1]), 3)
    ((1.0, 3.0, 4.0, 6.0), (3, 0, 4))
    """
    held = np.flatnonzero(counts)
    merged: list[tuple[float, int]] = []  # (upper edge, rows)
    rows = 0
    for i in range(held[0], held[-1] + 1):
        rows += int(counts[i])
        if rows >= fewest or rows == 0:
            merged.append((float(edges[i + 1]), rows))
            rows = 0
    if rows:
        while merged and not merged[-1][1]:
            merged.pop()
        rows += merged.pop()[1] if merged else 0
        merged.append((float(edges[held[-1] + 1]), rows))
    return (float(edges[held[0]]), *(edge for edge, _ in merged)), tuple(rows for _, rows in merged)


def histogram(values: np.ndarray, edges: np.ndarray) -> tuple[int, ...]:
    """How many values lie in each bin; one on an edge is in the bin above it, on the last finite edge in the one below.

    >>> histogram(np.array([0.0, 1.0, 2.0, 2.5]), np.array([-np.inf, 0.0, 1.0, 2.0, np.inf]))
    (0, 1, 2, 1)
    """
    ends = np.nextafter(edges[-2], np.inf), np.inf
    return tuple(np.histogram(values, [*edges[:-2], *ends])[0].tolist())


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int | float):
        return number_text(value)
    raise InvalidInput(f"it holds {of_type(value)}: give numbers or text")


def number_text(value: float) -> str:
    """A number as a category is called: whole ones without a point.

    >>> number_text(1.0), number_text(0.5)
    ('1', '0.5')
    """
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _categories(texts: list[str], min_rows: int) -> dict[str, int]:
    # with enough rows and a name that can be shown, in order
    enough = {text: rows for text, rows in sorted(Counter(texts).items()) if rows >= min_rows}
    named = {
        text: rows for text, rows in enough.items() if len(text) <= LONGEST_CATEGORY and text.isprintable()
    }
    if len(named) > MOST_CATEGORIES:
        raise InvalidInput(f"it has {len(named)} categories, more than {MOST_CATEGORIES}")
    return named


_MOST_ROWS = 2**40
_ROUNDING = 1e-12
"""Relative, of sums of rows: what is beyond is no rounding."""


def check_reply(request: Request, reply: Reply) -> None:
    # is it one to this request, and can every number of it be believed?
    if isinstance(reply, Refused):
        return
    _check_integer("rows", reply.rows, 1)
    _check_integer("missing", reply.missing, 0)
    match request, reply:
        case Measure(), Numbers():
            _check_moments(reply, _ends_of_bins(reply, request.edges))
        case Describe(categorical=False), Numbers():
            _check_moments(reply, reply.ends)
        case Describe(), Categories():
            if len(reply.names) > MOST_CATEGORIES or len(set(reply.names)) < len(reply.names):
                raise InvalidInput(f"its categories are not up to {MOST_CATEGORIES} different texts")
            if not all(map(_is_name, reply.names)):
                must = f"printable text of 1 to {LONGEST_CATEGORY} characters without spaces around it"
                raise InvalidInput(f"a category is no {must}")
            if len(reply.counts) != len(reply.names) or min(reply.counts, default=1) < 1:
                raise InvalidInput("it has not a count of at least 1 for each category")
            _check_counts((*reply.counts, reply.rows - sum(reply.counts)), reply.rows)
        case _:
            raise InvalidInput(f"it replies {type(reply).__name__} to {type(request).__name__}")


def _check_integer(name: str, value: Any, least: int) -> None:
    if type(value) is not int or not least <= value <= _MOST_ROWS:
        raise InvalidInput(f"its {name} are {str(value)[:40]}, not an integer from {least} to {_MOST_ROWS:,}")


def _ends_of_bins(reply: Numbers, edges: np.ndarray) -> tuple[float, ...]:
    # the edges between which all rows of the reply lie
    if len(reply.counts) != len(edges) - 1:
        raise InvalidInput(f"it has no {len(edges) - 1} counts")
    starts = [i for i, count in enumerate(reply.counts) if i == 0 or count != -1]
    counts = [reply.counts[i] for i in starts]
    _check_counts(counts, reply.rows)
    held = [i for i, count in enumerate(counts) if count]
    return float(edges[starts[held[0]]]), float(edges[[*starts, len(edges) - 1][held[-1] + 1]])


def _check_counts(counts: Sequence[int], rows: int) -> None:
    for count in counts:
        _check_integer("counts", count, 0)
    if sum(counts) != rows:
        raise InvalidInput(f"its counts add up to {sum(counts):,}, and it has {rows:,} rows")


def _check_moments(reply: Numbers, ends: tuple[float, ...]) -> None:
    # mean and squares of numbers between these ends (Bhatia and Davis 2000)
    if len(ends) != 2 or not ends[0] <= ends[1] or np.isinf(reply.ends).any():
        raise InvalidInput(f"its ends are {str(ends)[:80]}, not two numbers in order")
    (low, high), mean, squares = ends, reply.mean, reply.squares
    slack = _ROUNDING * max((abs(x) for x in (mean, low, high) if math.isfinite(x)), default=0.0)
    if not (abs(mean) < LARGEST and abs(reply.rest) <= slack and low - slack <= mean <= high + slack):
        raise InvalidInput(f"its mean is {mean:.6g}, and its numbers lie from {low:.6g} to {high:.6g}")
    most = reply.rows * (high - mean + slack) * (mean - low + slack)
    if not 0 <= squares <= most * (1 + _ROUNDING) or squares > 4 * reply.rows * LARGEST**2:
        raise InvalidInput(f"its sum of squares is {squares:.6g}, and by its mean at most {most:.6g}")


def _is_name(text: str) -> bool:
    return 1 <= len(text) <= LONGEST_CATEGORY and text.isprintable() and text == text.strip()
