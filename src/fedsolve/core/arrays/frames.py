"""Tables of pandas, Polars and Arrow by column, told by their attributes: none of these packages need be installed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedsolve.core.arrays.missing import missing
from fedsolve.core.arrays.precision import is_rounded
from fedsolve.core.errors import InvalidInput, shown


def columns_of(value: Any) -> list[tuple[Any, Any]] | None:
    """The label and the content of each column of a table, in order; None if it is no table."""
    if hasattr(value, "column_names") and hasattr(value, "columns"):  # Arrow's Table and RecordBatch
        return list(zip(value.column_names, value.columns, strict=True))
    if hasattr(value, "get_columns"):  # Polars
        return [(column.name, column) for column in value.get_columns()]
    if hasattr(value, "columns") and hasattr(value, "items") and hasattr(value, "to_numpy"):  # pandas
        return list(value.items())
    return None


def check_same_rows(parts: Iterable[tuple[str, Any]]) -> None:
    """Compare the row labels of what stands side by side, where it has some (pandas' index).

    Rows go by position. Labels that are 0, 1, ... in order may be pandas' own, so that others beside them say nothing,
    unless they are the same in another order.

    Args:
        parts: what an error calls each, and its array, column or table.

    Raises:
        InvalidInput: the same labels in another order, or two different sets of labels.
    """
    of, first = "", None
    for name, value in parts:
        labels = getattr(value, "index", None)
        if not hasattr(value, "iloc") or labels is None:
            continue
        if first is None:
            of, first = name, labels
        if len(labels) != len(first) or labels.equals(first):
            continue
        has_own = [list(one) != list(range(len(one))) for one in (labels, first)]
        if set(labels) == set(first):
            raise InvalidInput(
                f"{name} has its rows in another order than {of}, by their index: sort both alike, or, if they belong "
                "together by position, reset_index(drop=True)"
            )
        if all(has_own):
            raise InvalidInput(
                f"{name} has other rows than {of}, by their index: give the same ones, or, if they belong together by "
                "position, reset_index(drop=True)"
            )


def of_table(name: str, value: Any, columns: list[tuple[Any, Any]]) -> np.ndarray:
    """The numbers of a table, shape (rows, columns).

    Raises:
        InvalidInput: a column that holds no numbers, or lacks one (it is named).
    """
    kinds = set(getattr(value, "dtypes", ()))  # of columns alike pandas has one array
    if len(kinds) == 1 and isinstance(kind := kinds.pop(), np.dtype) and kind.kind in "biuf":
        return np.asarray(value)
    if not columns:
        raise InvalidInput(f"{name} is a table without columns: give those of the inputs")
    labels = [f"column {shown(label)} of {name}" for label, _ in columns]
    return side_by_side(
        labels, [_numbers(where, column) for where, (_, column) in zip(labels, columns, strict=True)]
    )


def side_by_side(labels: Sequence[str], columns: Sequence[np.ndarray]) -> np.ndarray:
    """Columns as one array, shape (rows, columns); `InvalidInput` where their common type would round integers."""
    array = np.stack(columns, axis=1)
    for where, column in zip(labels, columns, strict=True):
        if is_rounded(column, array.dtype):
            raise InvalidInput(
                f"{where} has integers beyond 2^53, which floats beside it would round: leave it out, or number them"
            )
    return array


def _numbers(where: str, column: Any) -> np.ndarray:
    kind = getattr(getattr(column, "dtype", None), "numpy_dtype", None)  # of pandas' nullable types
    none = missing(column)
    if none.any() and (kind is not None or np.asarray(column).dtype.kind not in "f"):
        raise InvalidInput(f"{where} has no value in row {int(none.argmax())}: fill it or leave the row out")
    array = np.asarray(column) if kind is None else column.to_numpy(dtype=kind)
    if array.dtype.kind not in "biuf" or array.ndim != 1:
        raise InvalidInput(f"{where} holds no numbers ({array.dtype}): encode it as numbers, or leave it out")
    return array
