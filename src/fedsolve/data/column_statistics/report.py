"""The statistics of columns over all clients, as they are reported: nothing of fewer rows than the minimum."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedsolve.core.errors import InvalidInput, check_known, check_number


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
    def deviation(self) -> float:
        """The standard deviation, the root of the variance."""
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

    def schema(self) -> str:
        """The constants of the columns for a file that `fs.data.Schema.read` reads.

        Returns:
            TOML: of each column a section with `mean` and `deviation`, 1 for that of a constant, or `categories`, and
            where cells are empty, a `fill` as a comment, the mean or the most frequent category.
        """
        return "\n".join(_section(name, column) for name, column in self.columns.items())


def _section(name: str, column: ColumnStatistics) -> str:
    key = name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else json.dumps(name)
    head = f"[columns.{key}]\n"
    if isinstance(column, CategoryStatistics):
        counts = {json.dumps(name, ensure_ascii=False): rows for name, rows in column.counts.items()}
        most = max(counts, key=counts.__getitem__, default="")
        return f"{head}categories = [{', '.join(counts)}]\n{_fill(most, column)}"
    deviation = column.deviation if column.variance > 0 else 1.0
    return f"{head}mean = {column.mean!r}\ndeviation = {deviation!r}\n{_fill(repr(column.mean), column)}"


def _fill(value: str, column: ColumnStatistics) -> str:
    # a comment: the sites decide on it; nothing where no cell is empty
    return f"# fill = {value}  # for {column.missing:,} empty cells\n" if column.missing and value else ""


def bounds(edges: Any, least_below: Any, most_below: Any, at: float) -> tuple[float, float]:
    # edges between which the row `at` lies, from 0 in order, or the two rows that it lies between
    first = int(np.searchsorted(most_below, math.floor(at), side="right")) - 1
    last = int(np.searchsorted(least_below, math.ceil(at), side="right"))
    return float(edges[first]), float(edges[last])


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
