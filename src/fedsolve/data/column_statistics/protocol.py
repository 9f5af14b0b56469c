"""The rounds of a statistic: each column's own, all in step, so that a round is one message to a client."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from fedsolve.core.checks import check_integer
from fedsolve.core.errors import InvalidInput
from fedsolve.data.column_statistics.messages import (
    MAGNITUDE_EDGES,
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
from fedsolve.data.column_statistics.replies import check_reply
from fedsolve.data.column_statistics.report import (
    CategoryStatistics,
    ColumnStatistics,
    NumberStatistics,
    Statistics,
    bounds,
    merge_bins,
)

BINS = 100
"""Of a histogram, between its ends."""
_FINE_BINS = 1024
"""Of the histogram that a range is found with: it then fits the numbers to a thousandth of their size."""

_NARROWEST = 1e-300

T = TypeVar("T", bound=Reply)


@dataclass(frozen=True)
class Minimum:
    """How many clients and rows a statistic must be of to be reported.

    Raises:
        InvalidInput: no integers of at least 1.
    """

    clients: int = 3
    rows: int = 10

    def __post_init__(self) -> None:
        check_integer("min_clients", self.clients, 1)
        check_integer("min_rows", self.rows, 1)


@dataclass(frozen=True)
class Asked:
    """What is asked about a column.

    Attributes:
        categorical: whether its categories are counted even if all of its cells are numbers.
        range: of the histogram, (low, high); None where it is found.
    """

    categorical: bool = False
    range: tuple[float, float] | None = None


class _Unreported(Exception):
    """Why a column is not reported."""


@dataclass(frozen=True)
class Gathered:
    """The replies about a column.

    Attributes:
        clients: that have replied.
        replies: of each, in the order of clients; or one, the sum of all.
    """

    clients: int
    replies: Sequence[Reply]


class Rounds:
    """The rounds of a statistic; whoever sends messages takes `requests` and gives `replies` until there are no more.

    Args:
        asked: about each column, by name; empty for all columns that clients have.
        minimum: of clients and rows.
        names: what a client is called.
    """

    def __init__(
        self, asked: Mapping[str, Asked], minimum: Minimum, names: Callable[[int], str] = "client {}".format
    ) -> None:
        self._minimum, self._names = minimum, names
        self.all_columns = not asked
        self.requests: dict[str, Request] = {}
        self._running: dict[str, Generator[Request, Gathered, ColumnStatistics]] = {}
        self._reported: dict[str, ColumnStatistics] = {}
        self._unreported: dict[str, str] = {}
        self._notes: dict[str, None] = {}
        for name, about in asked.items():
            self._begin(name, about)

    @property
    def are_over(self) -> bool:
        """Whether nothing more is asked."""
        return not self.requests and not self.all_columns

    def add(self, replies: Mapping[int, Replies]) -> None:
        """The replies of a round, by client; one that cannot be believed does not count, with a note."""
        if self.all_columns:
            for name in dict.fromkeys(name for of_client in replies.values() for name in of_client):
                self._begin(name, Asked())
            self.all_columns = False
        for name, request in list(self.requests.items()):
            valid = {client: of[name] for client, of in sorted(replies.items()) if name in of}
            believed = self._believed(name, request, valid)
            texts = [client for client, reply in believed.items() if isinstance(reply, CategoryNames)]
            if isinstance(request, FindRange) and not request.categorical and 0 < len(texts) < len(believed):
                self.note(
                    f"{self._names(texts[0])}, column {name}: text where other clients have numbers: all are counted "
                    "as categories, and 1.0 is called 1 where a column is of numbers"
                )
            self._advance(name, Gathered(len(believed), list(believed.values())))

    def add_sums(self, sums: Mapping[str, Gathered]) -> None:
        """The sums of a round's replies, by column, where nobody sees single replies."""
        for name in list(self.requests):
            self._advance(name, sums[name])

    def result(self) -> Statistics:
        """The statistics, once the rounds are over."""
        order = [*self._running]
        columns = {name: self._reported[name] for name in order if name in self._reported}
        unreported = {name: self._unreported[name] for name in order if name in self._unreported}
        return Statistics(columns, unreported, tuple(self._notes))

    def note(self, line: str) -> None:
        """A remark on replies; each is kept once."""
        self._notes.setdefault(line)

    def _begin(self, name: str, about: Asked) -> None:
        self._running[name] = _rounds_of_column(about, self._minimum)
        self.requests[name] = next(self._running[name])

    def _believed(self, name: str, request: Request, replies: dict[int, Reply]) -> dict[int, Reply]:
        believed = {}
        for client, reply in replies.items():
            try:
                check_reply(request, reply)
                if isinstance(reply, Refused):
                    raise InvalidInput(reply.reason)
                believed[client] = reply
            except InvalidInput as error:
                self.note(f"{self._names(client)}, column {name}: {error}")
        return believed

    def _advance(self, name: str, gathered: Gathered) -> None:
        try:
            self.requests[name] = self._running[name].send(gathered)
            return
        except StopIteration as end:
            self._reported[name] = end.value
        except _Unreported as why:
            self._unreported[name] = str(why)
        del self.requests[name]


def _rounds_of_column(about: Asked, minimum: Minimum) -> Generator[Request, Gathered, ColumnStatistics]:
    """The requests about a column, each after the replies to the one before; in the end, its statistics."""
    gathered = _enough((yield FindRange(about.categorical)), minimum)
    if any(isinstance(reply, CategoryNames) for reply in gathered.replies):
        if about.range is not None:
            raise _Unreported("it has categories, and a range was given for it")
        if not all(isinstance(reply, CategoryNames) for reply in gathered.replies):
            gathered = _enough((yield FindRange(categorical=True)), minimum)
        known = dict.fromkeys(name for reply in _of(CategoryNames, gathered) for name in reply.names)
        names = tuple(sorted(known))
        counted = _enough((yield CountCategories(names)), minimum)
        return _of_categories(names, counted.clients, _of(CategoryCounts, counted), minimum)
    found = _of(Magnitudes, gathered)
    shift = math.fsum(reply.total for reply in found) / sum(reply.rows for reply in found)
    if about.range is None:
        low, high = _occupied(MAGNITUDE_EDGES, *_rows_below(found))
        fine = Measure(shift, low, high, _FINE_BINS)
        sums = _of(Sums, _enough((yield fine), minimum))
        low, high = np.clip(_occupied(fine.edges, *_rows_below(sums)), low, high).tolist()
        if low == high:
            raise _Unreported("its rows have changed since they were first counted")
        shift += math.fsum(reply.total for reply in sums) / sum(reply.rows for reply in sums)
    else:
        low, high = about.range
    request = Measure(shift, low, high, BINS)
    measured = _enough((yield request), minimum)
    return _of_numbers(request, measured.clients, _of(Sums, measured), minimum)


def _enough(gathered: Gathered, minimum: Minimum) -> Gathered:
    """The replies, if there are enough, of enough rows."""
    if gathered.clients < minimum.clients:
        raise _Unreported(
            f"it has {gathered.clients} clients, and {minimum.clients} are the minimum (min_clients)"
        )
    if (rows := sum(getattr(reply, "rows", 0) for reply in gathered.replies)) < minimum.rows:
        raise _Unreported(f"it has {rows} rows, and {minimum.rows} are the minimum (min_rows)")
    return gathered


def _of(kind: type[T], gathered: Gathered) -> list[T]:
    """The replies, each of which has been checked to be one to the request."""
    return [reply for reply in gathered.replies if isinstance(reply, kind)]


def _added(replies: list[Any]) -> np.ndarray:
    return np.array([reply.counts for reply in replies], np.int64).sum(axis=0)


def _rows_below(replies: Sequence[Magnitudes | Sums]) -> tuple[np.ndarray, np.ndarray]:
    """How many rows lie below each edge, at least and at most: within bins that are joined it is not known."""
    counts = np.array([reply.counts for reply in replies], np.int64)
    most = np.pad(np.maximum(counts, 0).cumsum(axis=1), ((0, 0), (1, 0)))
    bins = np.arange(counts.shape[1] + 1)
    known = np.maximum.accumulate(np.where(np.pad(counts, ((0, 0), (0, 1))) >= 0, bins, 0), axis=1)
    return np.take_along_axis(most, known, axis=1).sum(axis=0), most.sum(axis=0)


def _occupied(edges: np.ndarray, least: np.ndarray, most: np.ndarray) -> tuple[float, float]:
    """The ends of all bins that may have rows; an interval of length 1 where these ends are one number."""
    low, high = bounds(edges, least, most, 0)[0], bounds(edges, least, most, least[-1] - 1)[1]
    return (low, high) if high - low > _NARROWEST else (low, low + 1.0)


def _of_numbers(request: Measure, clients: int, sums: list[Sums], minimum: Minimum) -> NumberStatistics:
    rows = sum(reply.rows for reply in sums)
    total = math.fsum(reply.total for reply in sums)
    squares = math.fsum(reply.squares for reply in sums)
    variance = max(squares - total**2 / rows, 0.0) / (rows - 1) if rows > 1 else math.nan
    least, most = _rows_below(sums)
    between = np.clip((least + most) // 2, most > 0, rows - (least < rows))
    edges, counts = merge_bins(request.edges, np.diff(between), minimum.rows)
    kept = np.searchsorted(request.edges, edges)
    below = edges, tuple(least[kept].tolist()), tuple(most[kept].tolist())
    return NumberStatistics(
        clients=clients,
        rows=rows,
        missing=sum(reply.missing for reply in sums),
        mean=request.shift + total / rows,
        variance=variance,
        minimum=bounds(*below, 0),
        maximum=bounds(*below, rows - 1),
        edges=edges,
        least_below=below[1],
        most_below=below[2],
        counts=counts,
    )


def _of_categories(
    names: tuple[str, ...], clients: int, counted: list[CategoryCounts], minimum: Minimum
) -> CategoryStatistics:
    counts = dict(zip(names, _added(counted).tolist(), strict=False))
    named = {name: rows for name, rows in counts.items() if rows >= minimum.rows}
    rows = sum(reply.rows for reply in counted)
    missing = sum(reply.missing for reply in counted)
    return CategoryStatistics(clients, rows, missing, named, rows - sum(named.values()))
