"""Sites whose tables are in this process, and statistics of their single columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput, check_integer, of_type, shown, unknown
from fedsolve.core.trees import columns_of
from fedsolve.data.column_replies import Describe, join_bins, parse_columns, replies_to
from fedsolve.data.column_statistics import Minimum, Statistics, from_replies
from fedsolve.data.federated import FederatedData
from fedsolve.stats.questions import Question, Sites, SiteTable, Sums, found_levels


class LocalSites(Sites):
    def __init__(self, tables: Sequence[SiteTable], minimum: Minimum) -> None:
        super().__init__(minimum)
        self.tables = list(tables)

    def levels(self, columns: Mapping[str, bool]) -> dict[str, tuple[str, ...]]:
        # by the rules by which nodes tell of their columns
        asked = dict[str, Describe]()
        for name, is_needed in columns.items():
            holding = [table for table in self.tables if name in table]
            if not holding:
                raise unknown("column", name, self.tables[0])
            if any([_is_text(table, name) for table in holding]) or is_needed:
                asked[name] = Describe(is_needed)
        if not asked:  # `replies_to` would tell of all columns
            return {}
        return found_levels(self.described(asked), self.notes)

    def described(self, asked: Mapping[str, Any]) -> Statistics:
        told = [replies_to(asked, table, table.min_rows) for table in self.tables]
        replies = {i: join_bins(reply, self.tables[i].min_rows) for i, reply in enumerate(told)}
        return from_replies(asked, replies, self.minimum, names=lambda i: self.tables[i].name)

    def ask(self, question: Question) -> tuple[dict[str, Sums], dict[str, str]]:
        replies: dict[str, Sums] = {}
        refused: dict[str, str] = {}
        for table in self.tables:
            try:
                replies[table.name] = question.check(question.sums(table))
            except InvalidInput as error:
                refused[table.name] = str(error)
        self.tables = [table for table in self.tables if table.name in replies]
        return replies, refused


def _is_text(table: SiteTable, name: str) -> bool:
    try:
        return isinstance(table[name], list)
    except InvalidInput as error:
        raise InvalidInput(f"{table.name}, column {name}: {error}") from None


def local_sites(sites: Any, min_rows: int, min_clients: int) -> LocalSites:
    check_integer("min_rows", min_rows, 1)
    check_integer("min_clients", min_clients, 1)
    named: dict[str, Any]
    if isinstance(sites, FederatedData):
        named = {sites.names[i]: _columns_of(sites.client(i)) for i in range(sites.num_clients)}
    elif isinstance(sites, Mapping) and all(_as_columns(table) is not None for table in sites.values()):
        named = {str(name): table for name, table in sites.items()}
    elif isinstance(sites, str | Mapping) or not isinstance(sites, Iterable) or columns_of(sites):
        raise InvalidInput(f"sites = {of_type(sites)}: give a list of tables, or tables by name")
    else:
        named = {f"client {i}": table for i, table in enumerate(sites)}
    if not named:
        raise InvalidInput("sites is empty: give a table for each site")
    tables = []
    for name, table in named.items():
        columns = _as_columns(table)
        if columns is None:
            raise InvalidInput(f"{name}: {of_type(table)} is no table: give a data frame, or columns by name")
        tables.append(SiteTable(name, columns, min_rows))
    return LocalSites(tables, Minimum(min_clients, min_rows))


def _as_columns(table: Any) -> Mapping[str, Any] | None:
    columns = columns_of(table)
    if columns is None:
        return table if isinstance(table, Mapping) else None
    names = [str(name) for name, _ in columns]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidInput(f"a table has two columns {shown(twice)}: give each a name of its own")
    return dict(zip(names, (column for _, column in columns), strict=True))


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


def describe(
    sites: Any,
    columns: str | Iterable[str] | Mapping[str, Any] = (),
    *,
    min_clients: int = 3,
    min_rows: int = 10,
) -> Statistics:
    """Describe columns over all sites, by the messages and the rules of `fedsolve federate statistics`.

    Args:
        sites: a table for each site (pandas, Polars, Arrow, or a mapping from names to columns), a list, or a mapping
            from the sites' names to them; or federated data, whose columns are `y` for a field of shape (examples,) and
            `x.0`, `x.1`, ... for one of shape (examples, features). Cells are numbers (NaN where one is missing) or
            text ('' where one is missing).
        columns: names, all by default; or name -> the range of a histogram, (low, high) or (low, high, bins) with 100
            bins by default, from which quantiles follow; "categories" to count the categories of a column of numbers;
            or None; or one text, such as "age=0:120, pressure=40:250:500, ill=categories".
        min_clients: sites that a column must have to be reported, >= 1.
        min_rows: rows that a column must have at a site for the site to reply, and that a category and a bin of a
            histogram must have to be reported, >= 1.

    Returns:
        The statistics, with a reason for each column that is not reported.

    Raises:
        InvalidInput: a name or range that is none, a minimum below 1, fields with more than two axes.

    >>> import numpy as np
    >>> sites = [{"age": np.arange(20.0)}, {"age": np.arange(10.0, 30.0)}, {"age": np.arange(20.0, 40.0)}]
    >>> ages = describe(sites)["age"]
    >>> ages.rows, ages.mean, ages.minimum
    (60, 19.5, 0.0)
    """
    requests = parse_columns(columns)
    return local_sites(sites, min_rows, min_clients).described(requests)
