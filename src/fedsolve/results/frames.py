"""The numbers of runs as one long table, a row an evaluation or a round: for data frames and for CSV."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from fedsolve.core.checks import is_one_of
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.results.history import History

Part = Literal["evaluations", "rounds"]
"""Which of a history's numbers."""
_LIBRARIES = ("pandas", "polars")


def stacked(histories: Sequence[History], part: Part = "evaluations") -> dict[str, np.ndarray]:
    """The columns of all runs below one another, after `method` and, where all runs have one, `seed`.

    A column that a run lacks is NaN in its rows.

    Raises:
        InvalidInput: another part than evaluations or rounds.
    """
    if not is_one_of(part, get_args(Part)):
        raise unknown("part of a history", str(part), get_args(Part))
    tables = [getattr(h, part) for h in histories]
    lengths = [len(table["round"]) for table in tables]
    found = {"method": np.repeat([h.label for h in histories], lengths)}
    seeds = [h.settings.get("seed") for h in histories]
    if all(isinstance(seed, int) for seed in seeds):
        found["seed"] = np.repeat(np.array(seeds, np.int64), lengths)
    for name in dict.fromkeys(["round", *(name for table in tables for name in table)]):
        columns = [t.get(name, np.full(n, np.nan)) for t, n in zip(tables, lengths, strict=True)]
        found[name] = np.concatenate(columns)
    return found


def frame(columns: dict[str, np.ndarray]) -> Any:
    """Columns as a data frame: of pandas, or of polars where only that is installed.

    Raises:
        InvalidInput: neither is.
    """
    for name in _LIBRARIES:
        try:
            library = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        return library.DataFrame(columns)
    raise InvalidInput("a frame needs pandas or polars, and neither is installed: install one, or use to_csv")


def csv_text(columns: dict[str, np.ndarray]) -> str:
    """Columns as CSV text with a head; floats by their shortest form that reads back exactly, `nan` and `inf` too."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    return text.getvalue()
