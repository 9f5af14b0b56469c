"""`fs.data.statistics`: the statistics that a federation would report, from clients in this process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput, check_integer, of_type, shown
from fedsolve.data.column_statistics.pooled import Minimum, from_replies
from fedsolve.data.column_statistics.replies import (
    BINS,
    LARGEST,
    MOST_BINS,
    Describe,
    Measure,
    Request,
    join_bins,
    replies_to,
)
from fedsolve.data.column_statistics.report import Statistics
from fedsolve.data.federated import FederatedData

CATEGORIES = "categories"
"""In place of a range: a column's categories are counted."""


def statistics(
    data: FederatedData | Sequence[Mapping[str, Any]],
    columns: str | Iterable[str] | Mapping[str, Any] = (),
    *,
    min_clients: int = 3,
    min_rows: int = 10,
) -> Statistics:
    """Statistics of columns over all clients, by the messages and the rules of `fedsolve federate statistics`.

    Args:
        data: federated data, whose columns are `y` for a field of shape (examples,) and `x.0`, `x.1`, ... for one of
            shape (examples, features); or of each client a mapping from names to columns, arrays of numbers (NaN where
            one is missing) or of text ('' where one is missing), shape (rows,).
        columns: names, all by default; or name -> the range of a histogram, (low, high) or (low, high, bins) with 100
            bins by default, from which quantiles follow; "categories" to count the categories of a column of numbers;
            or None; or one text, such as "age=0:120, pressure=40:250:500, ill=categories".
        min_clients: clients that a column must have to be reported, >= 1.
        min_rows: rows that a column must have at a client for the client to reply, and that a category and a bin of a
            histogram must have to be reported, >= 1.

    Returns:
        The statistics, with a reason for each column that is not reported.

    Raises:
        InvalidInput: a name or range that is none, a minimum below 1, fields with more than two axes.

    >>> sites = [{"age": np.arange(20.0)}, {"age": np.arange(10.0, 30.0)}, {"age": np.arange(20.0, 40.0)}]
    >>> ages = statistics(sites)["age"]
    >>> ages.rows, ages.mean, ages.minimum
    (60, 19.5, 0.0)
    """
    requests, minimum = parse_columns(columns), Minimum(min_clients, min_rows)
    replies = {
        i: join_bins(replies_to(requests, own, min_rows), min_rows) for i, own in enumerate(_clients(data))
    }
    return from_replies(requests, replies, minimum)


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
        raise InvalidInput(
            f"columns: {shown(text)} must be NAME, NAME=LOW:HIGH, NAME=LOW:HIGH:BINS or NAME={CATEGORIES}"
        ) from None


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
        raise InvalidInput(
            f"columns: {name} = {shown(about)} must be a range (low, high) with low < high, or {CATEGORIES!r}"
        )
    if check_integer(f"columns: bins of {name}", bins, 1) > MOST_BINS:
        raise InvalidInput(f"columns: bins of {name} = {bins}: give at most {MOST_BINS:,}")
    return Measure(low, high, int(bins))


def _clients(data: Any) -> list[Mapping[str, Any]]:
    if isinstance(data, FederatedData):
        return [_columns_of(data.client(i)) for i in range(data.num_clients)]
    if isinstance(data, str | Mapping) or not isinstance(data, Iterable):
        raise InvalidInput(
            f"data = {of_type(data)} must be federated data, or a list of mappings, one a client"
        )
    clients = list(data)
    for client in clients:
        if not isinstance(client, Mapping):
            raise InvalidInput(f"data: {of_type(client)} must map names to the columns of a client")
    return clients


def _columns_of(examples: Any) -> dict[str, np.ndarray]:
    # a field of one axis is a column, one of two a column for each feature
    columns: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(examples):
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "value"
        if leaf.ndim > 2:
            raise InvalidInput(
                f"field {name} has shape {leaf.shape}: statistics are of fields with one or two axes; give a mapping "
                "from names to columns for each client"
            )
        features = leaf.T if leaf.ndim == 2 else ()
        columns |= {f"{name}.{i}": column for i, column in enumerate(features)} or {name: leaf}
    return columns
