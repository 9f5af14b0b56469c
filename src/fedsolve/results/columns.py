"""Numbers by name: the arrays of a history, and the JSON lines they are kept in, exactly.

Columns are float64, or int64 where every value is an integer, so that a file gives back the same arrays: floats are
written by their shortest repr. JSON has no token for a non-finite number; "NaN", "Infinity" and "-Infinity" are what
the JSON form of protocol buffers uses, and what `float()` of Python and `Number()` of JavaScript read.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput, shown
from fedsolve.folders.files import write_atomically

_LIBRARIES = ("pandas", "polars")
_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def plain(value: Any) -> Any:
    """`value` (nested dicts, sequences, arrays, numbers) with only what standard JSON can hold.

    >>> plain({"loss": np.array([0.5, np.nan, -np.inf])})
    {'loss': [0.5, 'NaN', '-Infinity']}
    """
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def number(value: Any) -> Any:
    # the number behind a string that `plain` wrote for a non-finite one; anything else unchanged
    return _NONFINITE.get(value, value) if isinstance(value, str) else value


def dumps(value: Any, indent: int | None = None) -> str:
    # `value` as standard JSON text, non-finite numbers as strings
    return json.dumps(plain(value), indent=indent, allow_nan=False, ensure_ascii=False)


Columns = dict[str, np.ndarray]
"""Arrays by name, all of one length."""


def as_column(values: Any) -> np.ndarray:
    # `values` (an array, or a list as read from JSON) as an int64 or float64 array
    if isinstance(values, list | tuple):
        values = [number(v) for v in values]
    array = np.asarray(values)
    whole = array.size > 0 and (np.issubdtype(array.dtype, np.integer) or array.dtype == bool)
    try:
        return array.astype(np.int64 if whole else np.float64)
    except (ValueError, TypeError, OverflowError):
        raise InvalidInput(f"a column holds {shown(array.flat[0])}: give numbers only") from None


def checked_columns(columns: Mapping[str, Any], where: str, needed: tuple[str, ...] = ()) -> Columns:
    # columns as int64 or float64 arrays of one length; `InvalidInput` names the column that is not
    missing = [name for name in needed if name not in columns]
    if missing:
        raise InvalidInput(f"{where}: no column '{missing[0]}', which every history needs")
    arrays = {str(k): as_column(v) for k, v in columns.items()}
    length = len(next(iter(arrays.values()), ()))
    for name, array in arrays.items():
        if array.shape != (length,):
            raise InvalidInput(f"{where}: column '{name}' has shape {array.shape}, the others ({length},)")
    return arrays


def write_jsonl(path: str | Path, columns: Mapping[str, np.ndarray]) -> Path:
    # write columns as JSON lines, one object per row (`metrics.jsonl`: per evaluation), atomically
    return write_atomically(path, jsonl(columns, str(path)))


def jsonl(columns: Mapping[str, np.ndarray], where: str = "columns") -> str:
    plain_columns = plain(checked_columns(columns, where))
    rows = zip(*plain_columns.values(), strict=True)
    return "".join(dumps(dict(zip(plain_columns, row, strict=True))) + "\n" for row in rows)


def frame(columns: dict[str, np.ndarray]) -> Any:
    # columns as a data frame: of pandas, or of polars where only that is installed
    for name in _LIBRARIES:
        try:
            library = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        return library.DataFrame(columns)
    raise InvalidInput("a data frame needs pandas or polars: pip install pandas, or use to_csv")


def csv_text(columns: dict[str, np.ndarray]) -> str:
    # columns as CSV text with a head; floats by their shortest form that reads back exactly, `nan` and `inf` too
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    return text.getvalue()
