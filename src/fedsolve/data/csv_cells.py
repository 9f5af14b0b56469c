"""The cells of CSV files by column, what is wrong with one in one line, and the inputs that a column makes."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsolve.core.errors import ConfidentialError, InvalidInput, nearest, shown
from fedsolve.core.trees import first_beyond
from fedsolve.folders.untrusted import check_once, csv_rows

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)

_WHOLE = re.compile(r"([+-]?\d+)\.0*", re.ASCII)

_MISSING = frozenset((
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL",
    "NaN", "None", "n/a", "nan", "null",
))  # fmt: skip
"""Cells without a value, as pandas reads them."""


def read_columns(
    path: Path, names: Sequence[str], known: Mapping[str, Collection[str]]
) -> tuple[dict[str, list[str]], Callable[[int], str]]:
    """The cells of some columns without spaces around them, and a function that says where a row stands.

    What is no known text of its column is read as a data frame wrote it: a cell that it takes for missing, such as NA,
    is empty here, and 1.0, which it writes for 1 in a column with missing cells, is 1 where that is `known`.

    Raises:
        InvalidInput: no such file, no text in UTF-8, no row, a missing or doubled column, a row of another length.
    """
    cells: dict[str, list[str]] = {name: [] for name in names}
    lines: list[int] = []
    with csv_rows(path) as rows:
        header = [name.strip() for name in next(rows, [])]
        places = [(cells[n], _place(path, n, header, names), frozenset(known.get(n, ()))) for n in names]
        for row in filter(None, rows):
            if len(row) != len(header):
                raise InvalidInput(
                    f"{path}, line {rows.line_num} has {len(row)} cells, the first line {len(header)}: fix it"
                )
            for column, place, texts in places:
                cell = row[place].strip()
                column.append(cell if cell in texts else _usual(cell, texts))
            lines.append(rows.line_num)
    if not lines:
        raise InvalidInput(f"{path} has no row below its first line: give at least one example")
    return cells, lambda row: f"{path}, line {lines[row]}"


def _usual(cell: str, known: Collection[str]) -> str:
    """A cell that is no known text as if its file had not gone through a data frame."""
    if known and (whole := _WHOLE.fullmatch(cell)) and whole[1] in known:
        return whole[1]
    return "" if cell in _MISSING else cell


def _place(path: Path, name: str, header: list[str], names: Sequence[str]) -> int:
    if not any(header):
        raise InvalidInput(f"{path} is empty: its first line must name the columns")
    if len(header) == 1 and name not in header and any(mark in header[0] for mark in ";\t"):
        raise InvalidInput(f"{path} has no commas in its first line: save it with commas between columns")
    if not set(names) & set(header) and not nearest(name, header):  # it may be a row, which nobody is told
        raise InvalidInput(f"{path} has none of the schema's columns in its first line: name them there")
    if name not in header:
        near = nearest(name, header)
        hint = f"did you mean {near}? It" if near else "it"
        raise InvalidInput(
            f"{path} has no column {name}: {hint} has {', '.join(header)}; rename one, or the schema's"
        )
    check_once(path, name, header)
    return header.index(name)


def filled(cells: list[str], name: str, fill: str | None, where: Callable[[int], str]) -> list[str]:
    """Cells of a column with what stands for an empty one; `InvalidInput` where nothing does."""
    if "" not in cells:
        return cells
    if fill is None:
        raise InvalidInput(
            f"{where(cells.index(''))}: column {name} is empty: fill it, leave the row out, or agree with all sites on "
            "`fill` in the schema"
        )
    return [cell or fill for cell in cells]


def as_floats(cells: list[str], name: str, where: Callable[[int], str]) -> np.ndarray:
    """The numbers of a column, shape (rows,), float64."""
    text = "".join(cells)
    if text.isascii() and "_" not in text:  # Python then takes what `is_number` does, and all at once
        with contextlib.suppress(ValueError):
            numbers = np.array(cells, float)
            if np.isfinite(numbers).all():
                return numbers
    row = next(i for i, cell in enumerate(cells) if not is_number(cell))
    raise InvalidInput(f"{where(row)}: column {name} is not a finite number: fix the cell")


def as_float32(numbers: np.ndarray, name: str, where: Callable[[int], str]) -> np.ndarray:
    """Numbers of a column, shape (rows,), in the type of a model's inputs."""
    if (row := first_beyond(numbers, np.float32)) is not None:
        raise InvalidInput(
            f"{where(row)}: column {name} is beyond float32: use another unit, or scale the column"
        )
    return numbers.astype(np.float32)


def numbers_of(
    cells: list[str], known: tuple[str, ...], name: str, what: str, where: Callable[[int], str]
) -> np.ndarray:
    """The place of each cell among the categories or classes of a column, shape (rows,)."""
    places = {text: i for i, text in enumerate(known)}
    numbers = [places.get(cell, -1) for cell in cells]
    if -1 in numbers:
        row = numbers.index(-1)
        column = f"{where(row)}: column {name}"
        problem = f"none of its {what} {', '.join(known)}: fix the cell, or the schema of all sites"
        raise ConfidentialError(
            f"{column} = {shown(cells[row])} is {problem}", f"{column} has a value that is {problem}"
        )
    return np.array(numbers, np.int64)


def numbers_or_texts(cells: list[str], name: str, where: Callable[[int], str]) -> np.ndarray | list[str]:
    """The cells of a column as numbers, NaN for an empty one, unless most are none; then as they are."""
    rows = [row for row, cell in enumerate(cells) if cell]
    if sum(is_number(cells[row]) for row in rows) <= len(rows) / 2:
        return cells
    numbers = np.full(len(cells), np.nan)
    numbers[rows] = as_floats([cells[row] for row in rows], name, lambda i: where(rows[i]))
    return numbers


def is_number(cell: str) -> bool:
    """Whether a cell is a finite number as data frames read one: of ASCII digits, without marks between them.

    >>> is_number("-1.5e3"), is_number("1_000"), is_number("1,5"), is_number("inf")
    (True, False, False, False)
    """
    return _NUMBER.fullmatch(cell.strip()) is not None and math.isfinite(float(cell))


@dataclass(frozen=True)
class Column:
    """A column of a table that is an input of the model.

    Attributes:
        name: in the table's first line.
        mean, deviation: of a column of numbers; an input is (number - mean) / deviation. The same at all sites.
        categories: of a column of text, at least two: an input for each, 1 where it is the row's and else 0.
        fill: what stands for an empty cell; None where such a cell is refused.
    """

    name: str
    mean: float = 0.0
    deviation: float = 1.0
    categories: tuple[str, ...] = ()
    fill: str | None = None

    @property
    def inputs(self) -> int:
        """Inputs of a model that it makes."""
        return len(self.categories) or 1

    def encode(self, cells: list[str], where: Callable[[int], str]) -> np.ndarray:
        """The inputs of some rows, shape (rows, inputs); `where` says where a row stands."""
        cells = filled(cells, self.name, self.fill, where)
        if not self.categories:
            with np.errstate(over="ignore"):  # what is beyond float64 is beyond float32
                scaled = (as_floats(cells, self.name, where) - self.mean) / self.deviation
            return as_float32(scaled, self.name, where)[:, None]
        return np.eye(self.inputs)[numbers_of(cells, self.categories, self.name, "categories", where)]
