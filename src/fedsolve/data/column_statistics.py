"""Statistics of named columns over all clients, in one round of questions and replies; no client's rows are seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from fedsolve.core.errors import InvalidInput, check_integer, check_known, check_number
from fedsolve.data.column_replies import (
    Categories,
    Describe,
    Measure,
    Numbers,
    Refused,
    Replies,
    Request,
    check_reply,
    merge_bins,
)
from fedsolve.data.schema import Column, Schema, head_text, toml_text


class Quantile(NamedTuple):
    """A quantile from a histogram: the quantile of the rows lies within `error` of `value`."""

    value: float
    error: float


@dataclass(frozen=True)
class NumberStatistics:
    """Statistics of a column of numbers over the rows that have one.

    Attributes:
        clients: that have enough rows.
        rows, missing: with a number, and without.
        mean, variance: exact to rounding; the variance is divided by rows - 1, NaN for one row.
        minimum, maximum: all numbers lie between them: the smallest and the largest, rounded outwards as far as
            the `min_rows` rows of a client that are nearest, or to the histogram's edges where a range was given.
        edges: of the histogram's bins, shape (bins + 1,), empty where no range was given; bins with too few rows are
            merged with those beside them, and the first edge is -inf and the last inf where rows lie outside the range.
        least_below, most_below: rows below each edge, shape (bins + 1,): sites join bins with too few rows, within
            which it is not known where rows lie.
        counts: rows of each bin, shape (bins,): 0, or at least the minimum; halfway between these bounds.
    """

    clients: int
    rows: int
    missing: int
    mean: float
    variance: float
    minimum: float
    maximum: float
    edges: tuple[float, ...] = field(repr=False)
    least_below: tuple[int, ...] = field(repr=False)
    most_below: tuple[int, ...] = field(repr=False)
    counts: tuple[int, ...] = field(repr=False)

    @property
    def standard_deviation(self) -> float:
        """The root of the variance."""
        return math.sqrt(self.variance)

    def quantile(self, probability: float) -> Quantile:
        """A quantile with a bound on its error.

        Args:
            probability: in [0, 1]; 0.5 is the median.

        Returns:
            The value, interpolated inside a bin of the histogram, and how far the quantile of the rows (that of
            `numpy.quantile`) can be from it: inf where it lies outside the range.

        Raises:
            InvalidInput: a probability outside [0, 1], or no range was given for the column.
        """
        low, high = self.quantile_bounds(probability)
        if not math.isfinite(low) or not math.isfinite(high):
            return Quantile(high if math.isfinite(high) else low, math.inf)
        at, ends = probability * (self.rows - 1), np.cumsum(self.counts)
        first = int(np.searchsorted(ends, math.floor(at), side="right"))
        start, width = self.edges[first], self.edges[first + 1] - self.edges[first]
        inside = (at - (ends[first] - self.counts[first]) + 0.5) / self.counts[first]
        value = min(max(start + float(inside) * width, low), high)
        return Quantile(value, max(value - low, high - value))

    def quantile_bounds(self, probability: float) -> tuple[float, float]:
        """Between which edges of the histogram a quantile lies: -inf or inf for an end outside the range.

        Args:
            probability: in [0, 1]; 0.5 is the median.

        Raises:
            InvalidInput: a probability outside [0, 1], or no range was given for the column.
        """
        check_number("probability", probability, at_least=0, at_most=1)
        if not self.edges:
            raise InvalidInput("quantiles come from a histogram: give the column a range, such as age=0:120")
        return bounds(self.edges, self.least_below, self.most_below, probability * (self.rows - 1))


@dataclass(frozen=True)
class CategoryStatistics:
    """Rows of each category of a column.

    Attributes:
        clients: that have enough rows.
        rows, missing: with a category, and without.
        counts: rows of each category that has enough of them, by name, at the clients where it has enough.
        other: rows of all others together.
    """

    clients: int
    rows: int
    missing: int
    counts: Mapping[str, int]
    other: int


ColumnStatistics = NumberStatistics | CategoryStatistics


@dataclass(frozen=True)
class Statistics:
    """Statistics of columns over all clients.

    Attributes:
        columns: of each column that is reported, by name.
        unreported: why a column is not, by name.
        notes: replies that do not count, each with its reason.
    """

    columns: Mapping[str, ColumnStatistics]
    unreported: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __getitem__(self, column: str) -> Any:
        """The `NumberStatistics` or `CategoryStatistics` of a column; `InvalidInput` says why there are none."""
        if column in self.unreported:
            raise InvalidInput(f"column {column} is not reported: {self.unreported[column]}")
        check_known("column", column, self.columns)
        return self.columns[column]

    def schema(self, like: Schema | None = None) -> str:
        """The constants of the columns for a file that `fs.data.Schema.read` reads.

        Args:
            like: the schema that sites have so far, which the file is to replace; None for the sections of columns
                alone, to which `target` and `classes` are added, and of which the target's is removed.

        Returns:
            TOML: of each column a section with `mean` and `standard_deviation`, 1 for that of a constant, or
            `categories`, and where cells are empty, a `fill` as a comment, the mean or the most frequent category. All
            else is as in `like`. A column that cannot be used as it is, such as dates, is a comment that says why.
        """
        known = map(Column, self.columns) if like is None else like.columns
        parts = [_section(c, self.columns.get(c.name), self.unreported.get(c.name, "")) for c in known]
        return "\n".join([*([] if like is None else [head_text(like)]), *parts])


def _section(base: Column, found: ColumnStatistics | None, why: str = "") -> str:
    if found is None:
        return base.text() + (f"# not reported: {why}\n" if why else "")
    if isinstance(found, NumberStatistics):
        deviation = found.standard_deviation if found.variance > 0 else 1.0
        column = replace(base, mean=found.mean, standard_deviation=deviation, categories=(), unknown="refuse")
        mean = {"log": math.exp, "log1p": math.expm1}.get(base.log, float)(found.mean)  # as in the table
        return column.text() + _fill(repr(mean), base, found)
    texts = (*base.categories, *(name for name in found.counts if name not in base.categories))
    fill = base.fill if base.fill in texts else None
    plain = Column(base.name, missing=base.missing, indicator=base.indicator, unknown=base.unknown)
    text = replace(plain, categories=texts, fill=fill, unit=base.unit).text()
    most = max(found.counts, key=found.counts.__getitem__, default="")
    text += _fill(toml_text(most), base, found)
    if base.categories or (len(texts) > 1 and found.other <= found.rows / 2):
        return text
    return "".join(f"# {line}\n" for line in text.splitlines()) + (
        f"# left out: of {found.rows:,} rows {found.other:,} have a text that too few rows share. Dates need "
        '`date = "%d.%m.%Y"`, a decimal comma `decimal = ","`, marks of missing cells `missing`\n'
    )


def _fill(value: str, base: Column, found: ColumnStatistics) -> str:
    # a comment: the sites decide on it; nothing where no cell is empty, or where they have decided
    decided = base.fill is not None or base.indicator or value == '""'
    return "" if decided or not found.missing else f"# fill = {value}  # for {found.missing:,} empty cells\n"


def bounds(edges: Any, least_below: Any, most_below: Any, at: float) -> tuple[float, float]:
    # edges between which the row `at` lies, from 0 in order, or the two rows that it lies between
    first = int(np.searchsorted(most_below, math.floor(at), side="right")) - 1
    last = int(np.searchsorted(least_below, math.ceil(at), side="right"))
    return float(edges[first]), float(edges[last])


@dataclass(frozen=True)
class Minimum:
    """How many clients and rows a statistic must be of to be reported."""

    clients: int = 3
    rows: int = 10

    def __post_init__(self) -> None:
        check_integer("min_clients", self.clients, 1)
        check_integer("min_rows", self.rows, 1)


def from_replies(
    requests: Mapping[str, Request],
    replies: Mapping[int, Replies],
    minimum: Minimum,
    notes: Sequence[str] = (),
    names: Callable[[int], str] = "client {}".format,
) -> Statistics:
    # a reply that cannot be believed does not count, with a note; no requests stand for all columns that
    # clients have
    asked = requests or {name: Describe() for of in replies.values() for name in of}
    found, remarks = {}, list(notes)
    for name, request in asked.items():
        believed, refused = dict[int, Numbers | Categories](), dict[str, list[str]]()
        for client, reply in sorted((client, of[name]) for client, of in replies.items() if name in of):
            try:
                check_reply(request, reply)
                if isinstance(reply, Refused):
                    raise InvalidInput(reply.reason)
                believed[client] = reply
            except InvalidInput as error:
                refused.setdefault(str(error), []).append(names(client))
        for why, who in refused.items():  # a misspelt column is one mistake
            remarks.append(f"{', '.join(who[:5])}{' ...' * (len(who) > 5)}, column {name}: {why}")
        found[name] = _column(name, request, believed, minimum, names)
    return _reported(found, remarks)


def from_sums(
    requests: Mapping[str, Measure],
    sums: Mapping[str, Numbers],
    clients: int,
    minimum: Minimum,
    notes: Sequence[str] = (),
) -> Statistics:
    # nobody sees single replies
    found = {
        name: _too_few(clients, sums[name].rows, minimum)
        or _of_numbers(request, clients, [sums[name]], minimum)
        for name, request in requests.items()
    }
    return _reported(found, notes)


def _reported(found: Mapping[str, ColumnStatistics | str], notes: Sequence[str]) -> Statistics:
    columns = {name: column for name, column in found.items() if not isinstance(column, str)}
    unreported = {name: why for name, why in found.items() if isinstance(why, str)}
    return Statistics(columns, unreported, tuple(dict.fromkeys(notes)))


def _column(
    name: str,
    request: Request,
    replies: Mapping[int, Numbers | Categories],
    minimum: Minimum,
    names: Callable[[int], str],
) -> ColumnStatistics | str:
    if too_few := _too_few(len(replies), sum(reply.rows for reply in replies.values()), minimum):
        return too_few
    numbers = {client: reply for client, reply in replies.items() if isinstance(reply, Numbers)}
    categories = {client: reply for client, reply in replies.items() if isinstance(reply, Categories)}
    if numbers and categories:
        text, number = names(next(iter(categories))), names(next(iter(numbers)))
        fix = f"fix it, or ask for {name}=categories or C({name})"
        return f"it is text at {text} and numbers at {number}: {fix}"
    if categories:
        return _of_categories(list(categories.values()), minimum)
    return _of_numbers(request, len(numbers), list(numbers.values()), minimum)


def _too_few(clients: int, rows: int, minimum: Minimum) -> str:
    # which minimum is missed, '' if none is
    if clients < minimum.clients:
        lower = f": {clients} would report it" if clients > 1 and rows >= minimum.rows else ""
        return f"it has {clients} clients, and {minimum.clients} are the minimum (min_clients){lower}"
    return f"it has {rows} rows, and {minimum.rows} are the minimum (min_rows)" if rows < minimum.rows else ""


def _of_numbers(
    request: Request, clients: int, replies: Sequence[Numbers], minimum: Minimum
) -> NumberStatistics:
    rows, mean, squares = _moments(replies)
    edges, least_below, most_below, counts = (), (), (), ()
    if isinstance(request, Measure):
        least, most = _rows_below(replies)
        between = np.clip((least + most) // 2, most > 0, rows - (least < rows))
        edges, counts = merge_bins(request.edges, np.diff(between), minimum.rows)
        kept = np.searchsorted(request.edges, edges)
        least_below, most_below = tuple(least[kept].tolist()), tuple(most[kept].tolist())
        low = bounds(edges, least_below, most_below, 0)[0]
        high = bounds(edges, least_below, most_below, rows - 1)[1]
    else:
        low, high = min(reply.ends[0] for reply in replies), max(reply.ends[1] for reply in replies)
    return NumberStatistics(
        clients=clients,
        rows=rows,
        missing=sum(reply.missing for reply in replies),
        mean=mean,
        variance=squares / (rows - 1) if rows > 1 else math.nan,
        minimum=low,
        maximum=high,
        edges=edges,
        least_below=least_below,
        most_below=most_below,
        counts=counts,
    )


def _moments(replies: Sequence[Numbers]) -> tuple[int, float, float]:
    # over all replies, each with its own mean (Chan, Golub and LeVeque 1983)
    # the mean is kept relative to a shift: it may be large
    rows, shift, mean, squares = 0, replies[0].mean, 0.0, 0.0
    for reply in replies:
        before, rows = rows, rows + reply.rows
        step = (reply.mean - shift) + reply.rest - mean
        mean += step * (reply.rows / rows)
        squares += reply.squares + step**2 * (before * reply.rows / rows)
    return rows, shift + mean, squares


def _rows_below(replies: Sequence[Numbers]) -> tuple[np.ndarray, np.ndarray]:
    # below each edge, at least and at most: within bins that are joined it is not known
    counts = np.array([reply.counts for reply in replies], np.int64)
    most = np.pad(np.maximum(counts, 0).cumsum(axis=1), ((0, 0), (1, 0)))
    bins = np.arange(counts.shape[1] + 1)
    known = np.maximum.accumulate(np.where(np.pad(counts, ((0, 0), (0, 1))) >= 0, bins, 0), axis=1)
    return np.take_along_axis(most, known, axis=1).sum(axis=0), most.sum(axis=0)


def _of_categories(replies: Sequence[Categories], minimum: Minimum) -> CategoryStatistics:
    counts = {name: 0 for name in sorted({name for reply in replies for name in reply.names})}
    for reply in replies:
        for name, number in zip(reply.names, reply.counts, strict=True):
            counts[name] += number
    named = {name: number for name, number in counts.items() if number >= minimum.rows}
    rows, missing = (sum(getattr(reply, part) for reply in replies) for part in ("rows", "missing"))
    return CategoryStatistics(len(replies), rows, missing, named, rows - sum(named.values()))


# Replies about columns of numbers as whole numbers that are added up, where nobody is to see single replies.


MOST_CLIENTS = 2**11
"""Whose numbers fit into one sum."""
_UNIT, _REST = 2**60, 2**40
"""A sum relative to the column's range is a whole number of 2^-20, and the rest one of 2^-60."""
_ROUNDING = Fraction(1, 2**50)  # of a client's sums, at most, in what remains around the mean
_MOST_ROWS = 2**31


def check_summable(requests: Mapping[str, Request]) -> dict[str, Measure]:
    # replies about names, or numbers without a range, cannot be added up
    if not requests:
        raise InvalidInput("sums are of columns that are named, each with its range, such as age=0:120")
    measured = {}
    for name, request in requests.items():
        if not isinstance(request, Measure):
            why = "categories have names, which cannot be added up: leave it out"
            if not request.categorical:
                why = f"secure sums are of numbers within a range: give it, such as {name}=0:120"
            raise InvalidInput(f"column {name}: {why}")
        measured[name] = request
    return measured


def width(requests: Mapping[str, Measure]) -> int:
    return sum(map(_width, requests.values()))


def to_numbers(requests: Mapping[str, Measure], replies: Replies) -> np.ndarray:
    # int64 (width,). A client that does not reply about one column with numbers takes no part in the sum of
    # any: zeros in their place would leave sums to which few clients, or one, add something
    return np.concatenate([_numbers(name, request, replies[name]) for name, request in requests.items()])


def from_numbers(requests: Mapping[str, Measure], numbers: np.ndarray, clients: int) -> dict[str, Numbers]:
    # by column, as the reply of one client that has all rows
    gathered, start = {}, 0
    for name, request in requests.items():
        own = [int(x) for x in numbers[start : start + _width(request)]]
        start += len(own)
        rows, missing, counts = own[0], own[1], tuple(own[6:])
        total, squares = (Fraction(own[i] * _REST + own[i + 1], _UNIT) for i in (2, 4))
        around = squares - total**2 / max(rows, 1)
        in_range = all(0 <= x <= clients * _MOST_ROWS for x in (rows, missing, *counts))
        fits = abs(total) <= rows and squares <= rows and around >= -_ROUNDING * clients
        if not (fits and in_range and sum(counts) == rows > 0):
            have = f"{rows} rows with these sums and counts: one of them sends others"
            raise InvalidInput(f"column {name}: {clients} clients cannot have {have}")
        centre, half = _middle(request)
        mean, around = float(centre + half * total / rows), float(max(around, 0) * half**2)
        gathered[name] = Numbers(rows, missing, mean, 0.0, around, (), counts)
    return gathered


def _width(request: Measure) -> int:
    return 6 + len(request.edges) - 1


def _numbers(name: str, request: Measure, reply: object) -> np.ndarray:
    # rows, missing, sums of numbers and of squares around the range's middle (two digits each), and counts
    if not isinstance(reply, Numbers):
        why = reply.reason if isinstance(reply, Refused) else "it has names, which cannot be added up"
        raise InvalidInput(f"column {name}: {why}: it is left out of the sum of all columns")
    if reply.rows > _MOST_ROWS or reply.missing > _MOST_ROWS:
        raise InvalidInput(f"column {name} has more than {_MOST_ROWS:,} rows")
    centre, half = _middle(request)
    mean = (Fraction(reply.mean) + Fraction(reply.rest) - centre) / half
    total = reply.rows * mean
    squares = Fraction(reply.squares) / half**2 + total * mean
    if abs(total) > reply.rows or squares > reply.rows:
        raise InvalidInput(f"column {name} has numbers far beyond the range: ask for a wider one")
    return np.array([reply.rows, reply.missing, *_digits(total), *_digits(squares), *reply.counts], np.int64)


def _digits(x: Fraction) -> tuple[int, int]:
    # the whole part in units of 2^-20, the rest in units of 2^-60
    return divmod(round(x * _UNIT), _REST)


def _middle(request: Measure) -> tuple[Fraction, Fraction]:
    # the middle of a range, and half of its length
    low, high = Fraction(request.low), Fraction(request.high)
    return (low + high) / 2, (high - low) / 2
