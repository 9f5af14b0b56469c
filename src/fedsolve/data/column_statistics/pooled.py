"""The statistics of columns from all clients' replies, or from their sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.data.column_statistics.messages import (
    Categories,
    Describe,
    Measure,
    Numbers,
    Refused,
    Replies,
    Request,
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


def from_replies(
    requests: Mapping[str, Request],
    replies: Mapping[int, Replies],
    minimum: Minimum,
    notes: Sequence[str] = (),
    names: Callable[[int], str] = "client {}".format,
) -> Statistics:
    """The statistics from each client's replies; one that cannot be believed does not count, with a note.

    Args:
        requests: about each column, by name; empty for all columns that clients have.
        replies: by client.
        minimum: of clients and rows.
        notes: remarks so far.
        names: what a client is called.
    """
    asked = requests or {name: Describe() for of in replies.values() for name in of}
    found, remarks = {}, list(notes)
    for name, request in asked.items():
        believed: dict[int, Numbers | Categories] = {}
        for client, reply in sorted((client, of[name]) for client, of in replies.items() if name in of):
            try:
                check_reply(request, reply)
                if isinstance(reply, Refused):
                    raise InvalidInput(reply.reason)
                believed[client] = reply
            except InvalidInput as error:
                remarks.append(f"{names(client)}, column {name}: {error}")
        found[name] = _column(name, request, believed, minimum, names)
    return _reported(found, remarks)


def from_sums(
    requests: Mapping[str, Measure],
    sums: Mapping[str, Numbers],
    clients: int,
    minimum: Minimum,
    notes: Sequence[str] = (),
) -> Statistics:
    """The statistics from the sums of so many clients' replies, where nobody sees single replies."""
    found = {
        name: _too_few(clients, sums[name].rows, minimum)
        or _of_numbers(request, clients, [sums[name]], minimum)
        for name, request in requests.items()
    }
    return _reported(found, notes)


def _reported(found: Mapping[str, ColumnStatistics | str], notes: Sequence[str]) -> Statistics:
    """The statistics of those columns that have them, and why the others have none."""
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
    """The statistics of a column from the replies of those clients that have it, or why there are none."""
    if too_few := _too_few(len(replies), sum(reply.rows for reply in replies.values()), minimum):
        return too_few
    numbers = {client: reply for client, reply in replies.items() if isinstance(reply, Numbers)}
    categories = {client: reply for client, reply in replies.items() if isinstance(reply, Categories)}
    if numbers and categories:
        text, number = names(next(iter(categories))), names(next(iter(numbers)))
        return f"it is text at {text} and numbers at {number}: ask for {name}=categories"
    if categories:
        return _of_categories(list(categories.values()), minimum)
    return _of_numbers(request, len(numbers), list(numbers.values()), minimum)


def _too_few(clients: int, rows: int, minimum: Minimum) -> str:
    """Which minimum is missed; nothing if none is."""
    if clients < minimum.clients:
        return f"it has {clients} clients, and {minimum.clients} are the minimum (min_clients)"
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
    """Rows, mean and squared distances from it over all replies (Chan, Golub and LeVeque 1983)."""
    rows, shift, mean, squares = (
        0,
        replies[0].mean,
        0.0,
        0.0,
    )  # the mean relative to the shift: it may be large
    for reply in replies:
        before, rows = rows, rows + reply.rows
        step = (reply.mean - shift) + reply.rest - mean
        mean += step * (reply.rows / rows)
        squares += reply.squares + step**2 * (before * reply.rows / rows)
    return rows, shift + mean, squares


def _rows_below(replies: Sequence[Numbers]) -> tuple[np.ndarray, np.ndarray]:
    """How many rows lie below each edge, at least and at most: within bins that are joined it is not known."""
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
