"""The schema that all sites of a federation share, and tables read by it."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.errors import (
    ConfidentialError,
    InvalidInput,
    check_path,
    of_type,
    shown,
    shown_label,
    unknown,
)
from fedsolve.core.trees import as_array, first_beyond
from fedsolve.data.column_replies import number_text
from fedsolve.data.columns import check_column, named_arrays
from fedsolve.data.examples import Examples
from fedsolve.data.tables import (
    FORMAT_KEYS,
    Cells,
    FileFormat,
    as_float32,
    as_floats,
    bad_cell,
    category_indices,
    cell_texts,
    fill_missing,
    numbers_or_texts,
    read_columns,
)
from fedsolve.folders.untrusted import check_shape, read_user_toml, to_nfc


@dataclass(frozen=True)
class Column:
    """A column of a table that is an input of the model."""

    name: str  # in the table's first line
    # of a column of numbers, after `clip` and `log`: an input is (number - mean) / standard deviation
    mean: float = 0.0
    standard_deviation: float = 1.0
    # of a column of text, at least two: an input for each, 1 where it is the row's and else 0
    categories: tuple[str, ...] = ()
    fill: str | None = None  # what stands for an empty cell; None where such a cell is refused
    missing: tuple[str, ...] = ()  # cells that are as empty
    indicator: bool = False  # an input more: 1 for an empty cell, whose other inputs are 0 without `fill`
    # what becomes of a text that is no category: "refuse"; "ignore", all inputs 0; "other", an input of its own
    unknown: str = "refuse"
    clip: tuple[float, float] | None = None  # the least and the largest number that count
    log: str = ""  # "log" or "log1p", taken of a number
    # formats of `datetime.strptime`: the cells are dates, and `part` of them is the number
    date: tuple[str, ...] = ()
    part: str = "days"  # "days" since 1970-01-01, "year", or "month" from 1 to 12
    unit: str = ""  # of the numbers, for messages

    @property
    def inputs(self) -> int:
        return (len(self.categories) + (self.unknown == "other") or 1) + self.indicator

    @property
    def title(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def encode(self, cells: list[str], where: Callable[[int], str]) -> np.ndarray:
        # (rows, inputs); `where` says where a row stands
        inputs = np.zeros((len(cells), self.inputs))
        if self.indicator:
            inputs[:, -1] = [not cell for cell in cells]
        if self.fill is not None or not self.indicator:
            cells = fill_missing(cells, self.title, self.fill, where)
        rows = [row for row, cell in enumerate(cells) if cell]
        encode = self._one_hot if self.categories else self._scaled
        encoded = encode([cells[row] for row in rows], lambda i: where(rows[i]))
        inputs[rows, : encoded.shape[1]] = encoded
        return inputs

    def _one_hot(self, cells: list[str], where: Callable[[int], str]) -> np.ndarray:
        texts = self.categories
        if self.unknown == "refuse":
            return np.eye(len(texts))[category_indices(cells, texts, self.title, "categories", where)]
        places = {text: i for i, text in enumerate(texts)}
        rows = np.eye(len(texts) + 1)[[places.get(cell, len(texts)) for cell in cells]]
        return rows if self.unknown == "other" else rows[:, :-1]

    def _scaled(self, cells: list[str], where: Callable[[int], str]) -> np.ndarray:
        numbers = self.transformed(as_floats(cells, self.title, where), where)
        with np.errstate(over="ignore"):  # what is beyond float64 is beyond float32
            scaled = (numbers - self.mean) / self.standard_deviation
        return as_float32(scaled, self.title, where)[:, None]

    def transformed(self, numbers: np.ndarray, where: Callable[[int], str]) -> np.ndarray:
        # clipped, and the logarithm taken; NaN stays
        if self.clip is not None:
            numbers = np.clip(numbers, *self.clip)
        least = -1 if self.log == "log1p" else 0
        if self.log and (outside := np.flatnonzero(numbers <= least)).size:
            problem = f"{where(outside[0])}: column {self.title} has a number of at most {least}"
            raise InvalidInput(
                f"{problem}, which has no {self.log}: fix the cell, or set `clip` in the schema"
            )
        return _LOGS[self.log](numbers) if self.log else numbers

    def dated(self, cells: list[str], where: Callable[[int], str]) -> list[str]:
        return [self._date(cell, where, i) if cell and self.date else cell for i, cell in enumerate(cells)]

    def _date(self, cell: str, where: Callable[[int], str], row: int) -> str:
        for form in self.date:
            with suppress(ValueError):
                day = datetime.strptime(cell, form).replace(tzinfo=None)
                days = (day - datetime(1970, 1, 1)) / timedelta(days=1)
                return number_text(days if self.part == "days" else getattr(day, self.part))
        forms = " or ".join(self.date)
        raise bad_cell(where(row), self.title, cell, f"is no date as {forms} has it: fix the cell, or `date`")

    def text(self) -> str:
        # its section of a schema's file
        key = self.name if re.fullmatch("[A-Za-z0-9_-]+", self.name) else toml_text(self.name)
        lines = [f"[columns.{key}]"]
        always = () if self.categories else _NUMBERS[:2]
        for part in fields(self)[1:]:
            value = getattr(self, part.name)
            if value != part.default or part.name in always:
                is_number = part.name == "fill" and not self.categories
                lines.append(f"{part.name} = {value if is_number else toml_text(value)}")
        return "\n".join(lines) + "\n"


_LOGS = {"log": np.log, "log1p": np.log1p}
_NUMBERS = ("mean", "standard_deviation", "clip", "log")
"""What is said of a column of numbers alone."""


def toml_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# The schema of a federation's data, in a file that all sites share: shapes, categories and constants.
#
# A server makes its first model from it and reads no data; a client holds its own table against it.


_LARGEST = 2**24  # bytes of a schema
_LARGEST_NUMBER = sys.float_info.max
_KEYS = ("shape", "target", "classes", "columns", *FORMAT_KEYS)
_COLUMN_KEYS = tuple(part.name for part in fields(Column)[1:])
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
        form: how tables are written, unless a site says otherwise.
    """

    shape: tuple[int, ...]
    classes: tuple[Any, ...] = ()
    columns: tuple[Column, ...] = ()
    target: str = ""
    form: FileFormat = field(default_factory=FileFormat)

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

    def read_csv(self, path: str | Path, form: Mapping[str, str] | None = None) -> Examples:
        """The examples in a CSV file with these columns: a first line has names, others are left out.

        Args:
            path: the file.
            form: what is different in how this file is written, by name: `separator`, `decimal`, `encoding` or
                `missing`, as `node.file_format` has them; None for nothing.

        Returns:
            `x`, float32, shape (rows, features), scaled and encoded; `y`, shape (rows,): the number of each class,
            int32, or float32 for a regression.

        Raises:
            InvalidInput: a schema of arrays; a file that cannot be read; a column that is missing, a cell that is
                empty, no finite number or date, or none of the categories or classes (the line is named).
        """
        x, cells, where = self._read(path, form, [self.target])
        targets = fill_missing(cells[self.target], self.target, None, where)
        if not self.classes:
            numbers = as_floats(targets, self.target, where)
            return Examples(x, as_float32(numbers, self.target, where))
        y = category_indices(targets, tuple(map(str, self.classes)), self.target, "classes", where)
        return Examples(x, y.astype(np.int32))

    def read_inputs(self, path: str | Path, form: Mapping[str, str] | None = None) -> np.ndarray:
        """The inputs in a CSV file without labels, to predict for; else as `read_csv`.

        Args:
            path, form: as of `read_csv`.

        Returns:
            float32, shape (rows, features), scaled and encoded.

        Raises:
            InvalidInput: as `read_csv` does, of the inputs alone.
        """
        return self._read(path, form, [])[0]

    def _read(self, path: str | Path, form: Mapping[str, str] | None, further: list[str]) -> tuple[Any, ...]:
        # inputs, the cells of these columns and of further ones, and where a row stands
        self._used()
        cells, where = self._cells(path, form, further)
        encoded = [c.encode(c.dated(cells[c.name], where), where) for c in self.columns]
        return np.concatenate(encoded, axis=1).astype(np.float32, copy=False), cells, where

    def _cells(self, path: str | Path, form: Mapping[str, str] | None, further: list[str]) -> Cells:
        if not self.columns:
            raise InvalidInput("this schema has a shape and no columns: give arrays to Schema.check")
        file, written = check_path("path", path), self.form.changed(dict(form or {}))
        sign = written.decimal
        columns = {c.name: (c.categories, c.missing, "." if c.date else sign) for c in self.columns}
        labels = tuple(map(str, self.classes)), (), sign
        return read_columns(file, columns | dict.fromkeys(further, labels), written)

    def _used(self) -> None:
        used = _USED.get()
        if used is not None and self not in used:
            used.append(self)

    def raw_columns(self, path: str | Path, form: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """The columns of a CSV file before scaling, for `fs.stats.describe` and a client's `statistics`.

        Args:
            path, form: as of `read_csv`.

        Returns:
            Of each input and of the target its cells, length (rows,): numbers, NaN for an empty cell, after `clip` and
            `log`, or texts, '' for one. Texts are those with categories or classes here, and those of which most are
            no numbers. A column with a cell that is no number or date is refused when it is asked for.

        Raises:
            InvalidInput: a file that cannot be read, a column that is missing.
        """
        return _RawColumns(self, self._cells(path, form, [self.target]))

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


def head_text(schema: Schema) -> str:
    parts = {"target": schema.target} | ({"classes": schema.classes} if schema.classes else {})
    parts |= {k: v for k in FORMAT_KEYS if (v := getattr(schema.form, k)) != getattr(FileFormat, k)}
    return "".join(f"{key} = {toml_text(value)}\n" for key, value in parts.items())


class _RawColumns(Mapping[str, np.ndarray | list[str]]):
    # the columns of a file, each read when it is asked for

    def __init__(self, schema: Schema, cells: Cells) -> None:
        self._columns = {column.name: column for column in schema.columns}
        self._target, (self._cells, self._where) = schema.target if schema.classes else "", cells

    def __getitem__(self, name: str) -> np.ndarray | list[str]:
        column = self._columns.get(name, Column(name))
        cells = column.dated(self._cells[name], self._where)
        if name == self._target or column.categories:
            return cells
        values = numbers_or_texts(cells, column.title, self._where)
        return values if isinstance(values, list) else column.transformed(values, self._where)

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)


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
    form = FileFormat().changed({key: content[key] for key in FORMAT_KEYS if key in content})
    columns = tuple(_column(name, section) for name, section in sections.items())
    return Schema((sum(column.inputs for column in columns),), tuple(classes), columns, target, form)


def _check_cells(where: str, texts: Iterable[str]) -> None:
    # cells are read without spaces around them
    for text in texts:
        if not text or text != text.strip():
            raise InvalidInput(f"{where} hold {text!r}, and cells have no spaces around them: write it so")


def _shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or not shape or not all(type(n) is int and n > 0 for n in shape):
        raise InvalidInput(f"shape = {shown(shape)} must be a list of integers >= 1, such as [28, 28]")
    try:
        check_shape((1, *shape))
    except ValueError as error:
        raise InvalidInput(f"shape = {shown(shape)}: {error}") from None
    return tuple(shape)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST_NUMBER


def _are_several(value: Any) -> bool:
    return isinstance(value, list) and len(set(map(str, value))) == len(value) > 1


def _are_forms_of_dates(value: Any) -> bool:
    try:
        forms = value if isinstance(value, list) else [value]
        return all("%" in f and datetime.strptime(datetime(2001, 2, 3).strftime(f), f) for f in forms)
    except (TypeError, ValueError):
        return False


def _one_of(*known: str) -> tuple[Callable[[Any], bool], str]:
    return lambda x: isinstance(x, str) and x in known, " or ".join(map(repr, known))


_MUST_BE: dict[str, tuple[Callable[[Any], bool], str]] = {
    "mean": (_is_number, "a finite number"),
    "standard_deviation": (lambda x: _is_number(x) and x > 0, "> 0"),
    "categories": (_are_several, "two or more, each once"),
    "fill": (lambda x: isinstance(x, str) or _is_number(x), "a finite number or text"),
    "indicator": (lambda x: type(x) is bool, "true or false"),
    "unknown": _one_of("refuse", "ignore", "other"),
    "clip": (
        lambda x: _are_several(x) and all(map(_is_number, x)) and x == sorted(x)[:2],
        "[LEAST, LARGEST]",
    ),
    "log": _one_of(*_LOGS),
    "date": (_are_forms_of_dates, "a form of dates, such as '%d.%m.%Y'"),
    "part": _one_of("days", "year", "month"),
    "unit": (lambda x: isinstance(x, str), "text"),
}


def _column(name: str, section: Any) -> Column:
    where = f"[columns.{name}]"
    if not isinstance(section, dict):
        raise InvalidInput(f"{where} = {shown(section)} must be a section with {', '.join(_COLUMN_KEYS)}")
    given = dict(section)
    if "deviation" in given and "standard_deviation" not in given:  # as it was called
        given["standard_deviation"] = given.pop("deviation")
    for key, value in given.items():
        if key not in _COLUMN_KEYS:
            raise unknown(f"key of {where}", key, _COLUMN_KEYS)
        is_right, words = _MUST_BE.get(key, (lambda _: True, ""))
        if not is_right(value):
            raise InvalidInput(f"{where} {key} = {shown(value)} must be {words}")
        if key in (*_NUMBERS, "date", "part") and "categories" in given:
            raise InvalidInput(f"{where} {key} = {shown(value)} is of numbers: leave it or categories out")
    if "part" in given and "date" not in given:
        raise InvalidInput(
            f"{where} part = {shown(given['part'])} is of dates: give `date`, their format, too"
        )
    for key in given.keys() & {"missing", "date", "categories"}:
        given[key] = cell_texts(f"{where} {key}", given[key])
    texts, fill = given.get("categories", ()), given.pop("fill", None)
    _check_cells(f"{where} categories", texts)
    if fill is not None and (str(fill) not in texts if texts else isinstance(fill, str)):
        words = f"one of its categories {', '.join(texts)}" if texts else "a finite number"
        raise InvalidInput(f"{where} fill = {shown(fill)} must be {words}")
    given |= {key: float(given[key]) for key in _NUMBERS[:2] if key in given}
    given |= {"clip": tuple(map(float, given["clip"]))} if "clip" in given else {}
    return Column(name, **given, fill=None if fill is None else str(fill))
