"""Which entries stand for no value: the one rule for features, labels, ids, categories and statistics."""

from __future__ import annotations

from typing import Any

import numpy as np


def is_missing(value: Any) -> bool:
    """Whether one value stands for none: None, NaN, NaT or pandas' NA.

    >>> is_missing(None), is_missing(float("nan")), is_missing(np.datetime64("NaT")), is_missing("")
    (True, True, True, False)
    """
    if value is None or value is np.ma.masked or type(value).__name__ == "NAType":
        return True
    try:
        return bool(value != value)  # NaN and NaT alone are not what they are
    except (TypeError, ValueError):
        return False


def missing(values: Any) -> np.ndarray:
    """Which entries of an array, or of a column of pandas, Polars or Arrow, stand for no value.

    Args:
        values: an array of any type, whose masked entries are missing too, or a column, in which nulls are.

    Returns:
        Booleans of its shape.
    """
    array = np.asarray(values)
    kind = array.dtype.kind
    if kind in "fc":
        none = np.isnan(array)
    elif kind in "mM":
        none = np.isnat(array)
    elif kind in "OT":
        none = np.fromiter(map(is_missing, array.reshape(-1).tolist()), bool, array.size).reshape(array.shape)
    else:
        none = np.zeros(array.shape, bool)
    if isinstance(values, np.ma.MaskedArray):
        return none | np.ma.getmaskarray(values)
    for own in ("is_null", "isna"):  # Arrow and Polars, pandas
        if hasattr(values, own):
            none = none | np.asarray(getattr(values, own)(), bool)
    return none
