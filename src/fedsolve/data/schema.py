"""The schema that all sites of a federation share, and cells of CSV files read by it."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.errors import (
    ConfidentialError,
    InvalidInput,
    check_path,
    nearest,
    of_type,
    shown,
    shown_label,
    unknown,
)
from fedsolve.core.trees import as_array, first_beyond
from fedsolve.data.columns import check_column, named_arrays
from fedsolve.data.examples import Examples
from fedsolve.folders.untrusted import check_shape, check_unique_column, csv_rows, read_user_toml, to_nfc

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
    # the cells of some columns without spaces around them, and where a row stands. What is no known text of
    # its column is read as a data frame wrote it: a cell that it takes for missing, such as NA, is empty
    # here, and 1.0, which it writes for 1 in a column with missing cells, is 1 where that is `known`
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
                column.append(cell if cell in texts else _normalise_cell(cell, texts))
            lines.append(rows.line_num)
    if not lines:
        raise InvalidInput(f"{path} has no row below its first line: give at least one example")
    return cells, lambda row: f"{path}, line {lines[row]}"


def _normalise_cell(cell: str, known: Collection[str]) -> str:
    # as if the file had not gone through a data frame
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
    check_unique_column(path, name, header)
    return header.index(name)


def fill_missing(cells: list[str], name: str, fill: str | None, where: Callable[[int], str]) -> list[str]:
    # `fill` stands for an empty cell; None where nothing does
    if "" not in cells:
        return cells
    if fill is None:
        raise InvalidInput(
            f"{where(cells.index(''))}: column {name} is empty: fill it, leave the row out, or agree with all sites on "
            "`fill` in the schema"
        )
    return [cell or fill for cell in cells]


def as_floats(cells: list[str], name: str, where: Callable[[int], str]) -> np.ndarray:
    # (rows,), float64
    text = "".join(cells)
    if text.isascii() and "_" not in text:  # Python then takes what `is_number` does, and all at once
        with contextlib.suppress(ValueError):
            numbers = np.array(cells, float)
            if np.isfinite(numbers).all():
                return numbers
    row = next(i for i, cell in enumerate(cells) if not is_number(cell))
    raise InvalidInput(f"{where(row)}: column {name} is not a finite number: fix the cell")


def as_float32(numbers: np.ndarray, name: str, where: Callable[[int], str]) -> np.ndarray:
    # (rows,), the type of a model's inputs
    if (row := first_beyond(numbers, np.float32)) is not None:
        raise InvalidInput(
            f"{where(row)}: column {name} is beyond float32: use another unit, or scale the column"
        )
    return numbers.astype(np.float32)


def category_indices(
    cells: list[str], known: tuple[str, ...], name: str, what: str, where: Callable[[int], str]
) -> np.ndarray:
    # the place of each cell among the categories or classes of a column, (rows,)
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
    # numbers, NaN for an empty cell, unless most cells are none; then as they are
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
    """A column of a table that is an input of the model."""

    name: str  # in the table's first line
    # mean, deviation: of a column of numbers; an input is (number - mean) / deviation. The same at all sites.
    mean: float = 0.0
    deviation: float = 1.0
    # of a column of text, at least two: an input for each, 1 where it is the row's and else 0
    categories: tuple[str, ...] = ()
    fill: str | None = None  # what stands for an empty cell; None where such a cell is refused

    @property
    def inputs(self) -> int:
        return len(self.categories) or 1

    def encode(self, cells: list[str], where: Callable[[int], str]) -> np.ndarray:
        # (rows, inputs); `where` says where a row stands
        cells = fill_missing(cells, self.name, self.fill, where)
        if not self.categories:
            with np.errstate(over="ignore"):  # what is beyond float64 is beyond float32
                scaled = (as_floats(cells, self.name, where) - self.mean) / self.deviation
            return as_float32(scaled, self.name, where)[:, None]
        return np.eye(self.inputs)[category_indices(cells, self.categories, self.name, "categories", where)]


# The schema of a federation's data, in a file that all sites share: shapes, categories and constants.
#
# A server makes its first model from it and reads no data; a client holds its own table against it.


_LARGEST = 2**24  # bytes of a schema
_LARGEST_NUMBER = sys.float_info.max
_KEYS = ("shape", "target", "classes", "columns")
_COLUMN_KEYS = ("mean", "deviation", "categories", "fill")
_USED: ContextVar[list[Schema] | None] = ContextVar("schemas in use", default=None)


@contextmanager
def schemas_used() -> Iterator[list[Schema]]:
    # collects the schemas that data are held against in this block
    token = _USED.set(used := [])
    try:
        yield used
    finally:
        _USED.reset(token)


@dataclass(frozen=True)
class Schema:
    """The schema of every site's examples: the columns of a table, or the shape of an array.

    Attributes:
        shape: of the inputs of one example, positive integers; of a table (features,).
        classes: the labels, in the order of a model's outputs, at least two; () for a regression.
        columns: of a table; () for arrays.
        target: the column of labels or numbers of a table; '' for arrays.
    """

    shape: tuple[int, ...]
    classes: tuple[Any, ...] = ()
    columns: tuple[Column, ...] = ()
    target: str = ""

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        """Read a schema from a TOML file.

        Args:
            path: the file, with `target`, `classes` and a section `[columns.NAME]` for each column, or with `shape`
                and `classes`.

        Returns:
            The schema.

        Raises:
            InvalidInput: the file cannot be read, lacks something, or has a key or value that is none.
        """
        file = check_path("path", path)
        try:
            content = read_user_toml(file, _LARGEST)
        except OSError as error:
            raise InvalidInput(f"cannot read the schema {file}: {error.strerror}") from None
        try:
            return _schema(content)
        except InvalidInput as error:
            raise InvalidInput(f"the schema {file}: {error}") from None

    @property
    def parts(self) -> dict[str, str]:
        """What it says, by part: what sites compare with one another."""
        columns = {f"column {column.name}": repr(column) for column in self.columns}
        whole = {"shape": repr(self.shape), "classes": repr(self.classes), "target": self.target}
        return whole | {"order of columns": repr(list(columns))} | columns

    @property
    def features(self) -> int:
        """The number of inputs of a model."""
        return math.prod(self.shape)

    @property
    def outputs(self) -> int:
        """The number of outputs of a model: one for each class, or one for a regression."""
        return len(self.classes) or 1

    def read_csv(self, path: str | Path) -> Examples:
        """The examples in a CSV file with these columns: commas, a first line with names, others are left out.

        Args:
            path: the file.

        Returns:
            `x`, float32, shape (rows, features), scaled and encoded; `y`, shape (rows,): the number of each class,
            int32, or float32 for a regression.

        Raises:
            InvalidInput: a schema of arrays; a file that cannot be read; a column that is missing, a cell that is
                empty, no finite number, or none of the categories or classes (the line is named).
        """
        x, cells, where = self._read(path, [self.target])
        targets = fill_missing(cells[self.target], self.target, None, where)
        if not self.classes:
            numbers = as_floats(targets, self.target, where)
            return Examples(x, as_float32(numbers, self.target, where))
        y = category_indices(targets, tuple(map(str, self.classes)), self.target, "classes", where)
        return Examples(x, y.astype(np.int32))

    def read_inputs(self, path: str | Path) -> np.ndarray:
        """The inputs in a CSV file without labels, to predict for; else as `read_csv`.

        Args:
            path: the file.

        Returns:
            float32, shape (rows, features), scaled and encoded.

        Raises:
            InvalidInput: as `read_csv` does, of the inputs alone.
        """
        return self._read(path, [])[0]

    def _read(
        self, path: str | Path, further: list[str]
    ) -> tuple[np.ndarray, dict[str, list[str]], Callable[[int], str]]:
        # inputs, the cells of these columns and of further ones, and where a row stands
        self._used()
        if not self.columns:
            raise InvalidInput("this schema has a shape and no columns: give arrays to Schema.check")
        names = [*(c.name for c in self.columns), *further]
        cells, where = read_columns(check_path("path", path), names, self._known)
        x = np.concatenate([column.encode(cells[column.name], where) for column in self.columns], axis=1)
        return x.astype(np.float32, copy=False), cells, where

    def _used(self) -> None:
        used = _USED.get()
        if used is not None and self not in used:
            used.append(self)

    @property
    def _known(self) -> dict[str, tuple[str, ...]]:
        # the categories of each column, and the classes
        return {**{c.name: c.categories for c in self.columns}, self.target: tuple(map(str, self.classes))}

    def raw_columns(self, path: str | Path) -> dict[str, np.ndarray | list[str]]:
        """The columns of a CSV file as they stand there, for `fs.data.statistics` and a client's `statistics`.

        Args:
            path: the file.

        Returns:
            Of each input and of the target its cells, length (rows,): numbers, NaN for an empty cell, or texts, ''
            for one. Texts are those with categories or classes here, and those of which most are no numbers.

        Raises:
            InvalidInput: a file that cannot be read, a column that is missing, a cell among numbers that is none.
        """
        categorical = {column.name for column in self.columns if column.categories}
        categorical |= {self.target} if self.classes else set()
        names = [*(column.name for column in self.columns), self.target]
        cells, where = read_columns(check_path("path", path), names, self._known)
        return {
            name: column if name in categorical else numbers_or_texts(column, name, where)
            for name, column in cells.items()
        }

    def check(self, x: Any, y: Any) -> Examples:
        """Examples as arrays, held against the schema.

        Args:
            x: inputs, shape (examples, *shape), finite.
            y: labels, each one of `classes`, or finite numbers for a regression, shape (examples,).

        Returns:
            `x` as float32, `y` as the number of each class, int32, or float32 for a regression.

        Raises:
            InvalidInput: another shape, a number that is not finite, a label that is none.
        """
        self._used()
        known = () if any(c.categories for c in self.columns) else tuple(c.name for c in self.columns)
        inputs, _ = named_arrays("x", x, (known or None,), "the schema")
        if not isinstance(inputs, np.ndarray):
            raise InvalidInput(f"x is {of_type(x)}: give one array, shape (examples, ...)")
        targets = check_column("y", y) if self.classes else as_array("y", y)
        if inputs.shape[1:] != self.shape or targets.shape != inputs.shape[:1]:
            wanted = f"(examples, {', '.join(map(str, self.shape))})"
            raise InvalidInput(
                f"x has shape {inputs.shape} and y {targets.shape}: the schema has {wanted} and (examples,)"
            )
        for name, array in {"x": inputs, "y": targets}.items():
            if array.dtype.kind == "c":
                raise InvalidInput(f"{name} has type {array.dtype}: give real numbers")
            if array.dtype.kind == "f" and (row := first_beyond(array, np.float32)) is not None:
                raise InvalidInput(
                    f"{name} holds a number in row {row} that is not finite in float32: fill it, leave the row out, or "
                    "use another unit"
                )
        if not self.classes:
            return Examples(inputs.astype(np.float32), targets.astype(np.float32))
        if (targets.dtype.kind in "OU") != isinstance(self.classes[0], str):
            raise InvalidInput(
                f"y has labels of type {targets.dtype}, and the classes are {type(self.classes[0]).__name__}"
            )
        if targets.dtype.kind in "OU":
            targets = np.array([to_nfc(str(label)) for label in targets.tolist()])
        order, labels = np.argsort(self.classes), np.sort(self.classes)
        places = np.clip(np.searchsorted(labels, targets), 0, len(labels) - 1)
        if not (labels[places] == targets).all():
            unknown_label = targets[labels[places] != targets][0].item()
            listed = ", ".join(map(str, self.classes))
            remedy = "leave its rows out, or put it into the schema of all sites"
            none = f"none of the classes {listed}: {remedy}"
            raise ConfidentialError(
                f"y holds a label = {shown_label(unknown_label)} that is {none}",
                f"y holds a label that is {none}",
            )
        return Examples(inputs.astype(np.float32), order[places].astype(np.int32))


def _schema(content: Mapping[str, Any]) -> Schema:
    for key in content:
        if key not in _KEYS:
            raise unknown("key", key, _KEYS)
    classes = content.get("classes", [])
    if not isinstance(classes, list) or len({str(c) for c in classes}) < len(classes) or len(classes) == 1:
        raise InvalidInput(f"classes = {shown(classes)} must be a list of two labels or more, each once")
    if not all(type(label) is type(classes[0]) and type(label) in (int, str) for label in classes):
        raise InvalidInput(f"classes = {shown(classes)} must be all integers or all text")
    _check_cells("classes", list(map(str, classes)))
    sections, target = content.get("columns", {}), content.get("target", "")
    if ("shape" in content) == bool(sections):
        raise InvalidInput("give either shape = [...], or a section [columns.NAME] for each column")
    if "shape" in content:
        return Schema(_shape(content["shape"]), tuple(classes))
    if not isinstance(target, str) or not target or target in sections:
        raise InvalidInput(f"target = {shown(target)} must name a column that has no section [columns.NAME]")
    columns = tuple(_column(name, section) for name, section in sections.items())
    return Schema((sum(column.inputs for column in columns),), tuple(classes), columns, target)


def _check_cells(where: str, texts: list[str]) -> None:
    # cells are read without spaces around them
    for text in texts:
        if not text or text != text.strip():
            raise InvalidInput(
                f"{where} hold {text!r}, and cells have no spaces around them: write it as in the table"
            )


def _shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or not shape or not all(type(n) is int and n > 0 for n in shape):
        raise InvalidInput(
            f"shape = {shown(shape)} must be a list of integers of at least 1, such as [28, 28]"
        )
    try:
        check_shape((1, *shape))
    except ValueError as error:
        raise InvalidInput(f"shape = {shown(shape)}: {error}") from None
    return tuple(shape)


def _column(name: str, section: Any) -> Column:
    where = f"[columns.{name}]"
    if not isinstance(section, dict):
        raise InvalidInput(f"{where} = {shown(section)} must be a section with {', '.join(_COLUMN_KEYS)}")
    for key in section:
        if key not in _COLUMN_KEYS:
            raise unknown(f"key of {where}", key, _COLUMN_KEYS)
    categories, fill = section.get("categories", []), section.get("fill")
    if "categories" in section:
        texts = [str(c) for c in categories] if isinstance(categories, list) else []
        if len(texts) < 2 or len(set(texts)) < len(texts) or set(section) & {"mean", "deviation"}:
            raise InvalidInput(
                f"{where} categories = {shown(categories)}: give two or more, each once, and no mean"
            )
        _check_cells(f"{where} categories", texts)
        if fill is not None and str(fill) not in texts:
            raise InvalidInput(
                f"{where} fill = {shown(fill)} must be one of its categories {', '.join(texts)}"
            )
        return Column(name, categories=tuple(texts), fill=None if fill is None else str(fill))
    for key in section:
        if type(section[key]) not in (int, float) or not abs(section[key]) <= _LARGEST_NUMBER:
            raise InvalidInput(f"{where} {key} = {shown(section[key])} must be a finite number")
    if section.get("deviation", 1.0) <= 0:
        raise InvalidInput(f"{where} deviation = {section['deviation']} must be > 0")
    constants = float(section.get("mean", 0.0)), float(section.get("deviation", 1.0))
    return Column(name, *constants, fill=None if fill is None else str(fill))
