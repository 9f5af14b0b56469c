"""Checks of the arrays that partitions, readers and tasks share: examples, row numbers, labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsolve.core.checks import as_array
from fedsolve.core.errors import InvalidInput, shown


def as_rows(name: str, values: Any, total: int) -> np.ndarray:
    """Row numbers, shape (rows,), as int64; `InvalidInput` unless all are integers below `total`.

    A boolean mask is refused: as numbers its truths would be rows 0 and 1.
    """
    rows = as_array(name, values)
    if rows.ndim != 1:
        raise InvalidInput(f"{name} have shape {rows.shape}: give row numbers, shape (rows,)")
    if len(rows) and rows.dtype.kind not in "iu":
        remedy = "give np.flatnonzero of it" if rows.dtype == bool else "give integers"
        raise InvalidInput(f"{name} are of type {rows.dtype}, not row numbers: {remedy}")
    if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= total):
        bad = int(rows.min()) if int(rows.min()) < 0 else int(rows.max())
        raise InvalidInput(f"{name} hold {bad}: row numbers must lie in 0 to {total - 1}")
    return rows.astype(np.int64)


def check_column(name: str, values: Any) -> np.ndarray:
    """`values` as an array of shape (examples,), not empty; `InvalidInput` otherwise."""
    if np.ma.is_masked(values):
        raise InvalidInput(f"{name} have masked entries: fill them or leave their rows out")
    try:
        column = np.asarray(values)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} = {shown(values)} are no array: give one for each example") from None
    if column.ndim != 1 or len(column) == 0:
        raise InvalidInput(f"{name} have shape {column.shape}: give one for each example, shape (examples,)")
    return column
