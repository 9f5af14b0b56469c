"""Statistics as a file of a run's folder, and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedsolve.core.errors import InvalidInput
from fedsolve.data.column_statistics.report import (
    CategoryStatistics,
    ColumnStatistics,
    NumberStatistics,
    Statistics,
)
from fedsolve.folders.sealed import LARGEST, sealed, unsealed_values
from fedsolve.folders.untrusted import MALFORMED, read_bytes
from fedsolve.report.style import show_number
from fedsolve.results.columns import dumps, number

SCHEMA_FILE = "schema.toml"
"""The constants of the columns, in the folder of their run."""
QUARTILES = (0.25, 0.5, 0.75)
_SHOWN = 8  # categories in a line


def statistics_json(found: Statistics) -> str:
    """The text of a statistics file."""
    columns = {name: vars(column) for name, column in found.columns.items()}
    about = {"columns": columns, "unreported": dict(found.unreported), "notes": found.notes}
    return sealed(dumps(about, 1))


def read_statistics(path: Path) -> Statistics:
    """The statistics in a file.

    Raises:
        InvalidInput: there is none, or it is damaged.
    """
    try:
        data, _ = unsealed_values(path, read_bytes(path, LARGEST, follow=False))
        columns = {name: _column(values) for name, values in data["columns"].items()}
        return Statistics(columns, dict(data["unreported"]), tuple(data["notes"]))
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    except InvalidInput:
        raise
    except MALFORMED as error:
        raise InvalidInput(f"{path} is not a file of statistics, or is damaged: {error!r}") from None


def _column(values: Mapping[str, Any]) -> ColumnStatistics:
    if "other" in values:
        return CategoryStatistics(**values)
    given = {f.name: values[f.name] for f in fields(NumberStatistics)}
    return NumberStatistics(**{name: _number(value) for name, value in given.items()})


def _number(value: Any) -> Any:
    return tuple(map(number, value)) if isinstance(value, list) else number(value)


def summary_lines(found: Statistics) -> Iterator[str]:
    """A line for each column and each note."""
    for name, column in found.columns.items():
        rows = f"{name}: {column.rows:,} rows of {column.clients} clients, {column.missing:,} missing"
        yield f"{rows}; {_words(column)}"
    for name, why in found.unreported.items():
        yield f"{name} is not reported: {why}"
    for note in found.notes:
        yield f"note: {note}"


def _words(column: ColumnStatistics) -> str:
    """What is known of a column, in words."""
    if isinstance(column, CategoryStatistics):
        shown = [f"{name} {rows:,}" for name, rows in list(column.counts.items())[:_SHOWN]]
        left = len(column.counts) - len(shown)
        more = [f"{left} more categories"] if left else []
        return ", ".join([*shown, *more, *([f"others {column.other:,}"] if column.other else [])])
    mean, deviation, low, high = map(
        number_words, (column.mean, column.deviation, column.minimum, column.maximum)
    )
    words = f"mean {mean}, deviation {deviation}, from {low} to {high}"
    if not column.edges:
        return words
    *quartiles, error = quartile_words(column)
    return f"{words}, quartiles {', '.join(quartiles)} ± {error}"


def quartile_words(column: NumberStatistics) -> list[str]:
    """The three quartiles and how far they can be off, in words; '-' where no range was given."""
    if not column.edges:
        return ["-"] * 4
    errors = [error for p in QUARTILES if math.isfinite(error := column.quantile(p).error)]
    return [*(_quantile_words(column, p) for p in QUARTILES), number_words(max(errors, default=math.inf))]


def _quantile_words(column: NumberStatistics, probability: float) -> str:
    """A quantile, or beyond which end it lies."""
    low, high = column.quantile_bounds(probability)
    if math.isfinite(low) and math.isfinite(high):
        return number_words(column.quantile(probability).value)
    ends = [f"below {high:g}"] if math.isfinite(high) else []
    ends += [f"above {low:g}"] if math.isfinite(low) else []
    return "".join(ends) or "anywhere"


def number_words(value: float) -> str:
    """A number in a table; what is not known is infinite.

    >>> number_words(0.5), number_words(float("-inf"))
    ('0.5000', '-inf')
    """
    return show_number(value) if math.isfinite(value) else str(value)
