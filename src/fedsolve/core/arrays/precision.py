"""What numbers become in float32, in which runs compute unless told otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np

_FEW = 2**16  # numbers of float32 within a column's range, above which a difference that is lost is noise
_LARGEST = 2.0**127
_EXACT = 2**24  # integers up to here are numbers of float32


def first_beyond(array: np.ndarray, dtype: Any) -> int | None:
    """The first row with a number outside the range of a type, or NaN; None if there is none."""
    to = np.dtype(dtype)
    limits: Any = np.iinfo(to) if to.kind in "iu" else np.finfo(to)
    if not array.size or (array.max() <= limits.max and array.min() >= limits.min):
        return None
    bad = ~((array <= limits.max) & (array >= limits.min))
    return int(np.argmax(bad.reshape(len(array), -1).any(axis=1)))


def is_rounded(array: np.ndarray, dtype: Any) -> bool:
    """Whether integers become floats that cannot hold them, as NumPy makes of both together."""
    if array.dtype.kind not in "iu" or np.dtype(dtype).kind != "f" or not array.size:
        return False
    return max(int(array.max()), -int(array.min())) > 2**53


def first_merged(array: np.ndarray) -> tuple[int, int] | None:
    """The column and the row of a number that float32 cannot tell from another one in its column.

    Only columns count within whose range float32 has fewer than 2^16 numbers, such as Unix time within a year: there
    are 128 seconds from one to the next.

    Args:
        array: of shape (rows, ...), finite; an entry of a row is a column.

    Returns:
        Column (of a row as one axis) and row; None if there is none.

    >>> first_merged(1.7e9 + 10 * np.arange(6.0)), first_merged(10 * np.arange(6.0))
    ((0, 1), None)
    """
    wide = (array.dtype.kind in "iu" and array.itemsize > 2) or (
        array.dtype.kind == "f" and array.itemsize > 4
    )
    if not wide or not array.size:
        return None
    columns = array.reshape(len(array), -1)
    low, high = columns.min(axis=0).astype(np.float64), columns.max(axis=0).astype(np.float64)
    most = np.maximum(np.abs(low), np.abs(high))
    if array.dtype.kind in "iu" and most.max() <= _EXACT:
        return None
    fits = most < _LARGEST  # a run refuses the others
    apart = np.spacing(np.where(fits, most, 1).astype(np.float32)).astype(np.float64)
    for column in np.flatnonzero(fits & (high > low) & (high - low < _FEW * apart)):
        order = np.argsort(columns[:, column], kind="stable")
        exact = columns[order, column]
        rounded = exact.astype(np.float32)
        lost = (exact[1:] != exact[:-1]) & (rounded[1:] == rounded[:-1])
        if lost.any():
            return int(column), int(order[1 + int(np.argmax(lost))])
    return None
