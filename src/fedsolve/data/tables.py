"""Tables in files: rows of Parquet and Arrow, few at a time, as arrays; cells of a site's CSV file, by column."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedsolve.core.errors import ConfidentialError, InvalidInput, nearest, require, shown, unknown
from fedsolve.core.trees import first_beyond
from fedsolve.folders.sealed import LARGEST
from fedsolve.folders.untrusted import (
    MALFORMED,
    check_unique_column,
    csv_rows,
    loads,
    open_regular,
    read_bytes,
    to_nfc,
)

_SUFFIXES = (".parquet", ".arrow", ".feather")
_HUGGING_FACE = "state.json"
"""What `save_to_disk` of Hugging Face's datasets writes beside its Arrow files, of which it has the names."""
_ROWS = 1024  # at a time


@dataclass(frozen=True)
class Table:
    """The rows of one or more files with the same columns."""

    files: tuple[Path, ...]  # in their order
    arrow: ModuleType  # the package `pyarrow`

    @classmethod
    def at(cls, path: str | Path) -> Table:
        # a file, all files of a folder by name, or a folder of Hugging Face's datasets
        require("pyarrow", "Parquet and Arrow files need", "arrow")
        import pyarrow
        import pyarrow.parquet

        return cls(tuple(_files(Path(path))), pyarrow)

    def names(self) -> list[str]:
        # of the first file, accents composed
        return list(map(to_nfc, self._schema(self.files[0]).names))

    def _schema(self, path: Path) -> Any:
        try:
            with open_regular(path) as file:
                begin = file.read(6)
            if begin.startswith(b"PAR1"):
                return self.arrow.parquet.read_schema(path)
            with self.arrow.OSFile(str(path)) as source:
                opened = self.arrow.ipc.open_file if begin == b"ARROW1" else self.arrow.ipc.open_stream
                return opened(source).schema
        except (self.arrow.ArrowException, OSError) as error:
            raise _not_whole(path, error) from None

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        # where some rows stand, in words, and their columns as Arrow's arrays, of one type in all files:
        # integers beside doubles are doubles, and texts that a file codes by a dictionary are those that
        # another writes out
        columns = list(dict.fromkeys(columns))
        types = self._types(columns)
        for path in self.files:
            try:
                own = _own_names(path, columns, self._schema(path).names)
                for where, batch in self._parts(path, list(own.values())):
                    yield where, {n: self._as(types[n], batch.column(own[n]), where, n) for n in columns}
            except (self.arrow.ArrowException, OSError) as error:
                raise _not_whole(path, error) from None

    def _types(self, columns: list[str]) -> dict[str, Any]:
        # the type of each column that holds those of all files, if they are of a kind: double for float and
        # double
        types: dict[str, Any] = {}
        for path in self.files:
            schema = self._schema(path)
            for name, own in _own_names(path, columns, schema.names).items():
                kind = schema.field(own).type
                before = types.setdefault(name, kind)
                if kind != before and self._are_of_a_kind(kind, before):
                    types[name] = self._common(before, kind)
        return types

    def _common(self, *types: Any) -> Any:
        # where Arrow knows no common type, the first, to which the second is cast; coded values are written out
        is_coded = self.arrow.types.is_dictionary
        one, other = (kind.value_type if is_coded(kind) else kind for kind in types)
        is_integer, is_floating = self.arrow.types.is_integer, self.arrow.types.is_floating
        if (is_integer(one) and is_floating(other)) or (is_floating(one) and is_integer(other)):
            return self.arrow.float64()
        both = [self.arrow.schema([("", t)]) for t in (one, other)]
        with contextlib.suppress(self.arrow.ArrowException):
            return self.arrow.unify_schemas(both, promote_options="permissive").field(0).type
        return one

    def _are_of_a_kind(self, one: Any, other: Any) -> bool:
        # numbers, or texts, which may stand in one column
        kinds = {self._kind(one), self._kind(other)}
        return len(kinds) == 1 or kinds == {"integers", "floats"}

    def _kind(self, kind: Any) -> str:
        # whatever its width, and whether or not a dictionary codes it
        types = self.arrow.types
        while hasattr(kind, "value_type"):
            kind = kind.value_type
        texts = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
        known = {"integers": types.is_integer(kind), "floats": types.is_floating(kind), "text": texts}
        return next((name for name, is_one in known.items() if is_one), str(kind))

    def _as(self, kind: Any, column: Any, where: str, name: str) -> Any:
        # another type of the same kind, which must change no number
        if column.type == kind:
            return column
        if self._are_of_a_kind(column.type, kind):
            is_coded = self.arrow.types.is_dictionary(column.type)
            with contextlib.suppress(self.arrow.ArrowException):
                return (column.dictionary_decode() if is_coded else column).cast(kind)
        raise InvalidInput(
            f"{where}: column {name} has type {column.type}, before {kind}: give all rows the same"
        )

    def _parts(self, path: Path, columns: list[str]) -> Iterator[tuple[str, Any]]:
        # by row group or record batch; the first bytes tell the format
        with open_regular(path) as file:
            begin = file.read(6)
        if begin.startswith(b"PAR1"):
            with self.arrow.parquet.ParquetFile(path, buffer_size=2**20) as parquet:
                for group in range(parquet.num_row_groups):
                    for batch in parquet.iter_batches(_ROWS, row_groups=[group], columns=columns):
                        yield f"{path}, row group {group}", batch
            return
        with self.arrow.OSFile(str(path)) as source:
            if begin == b"ARROW1":
                reader = self.arrow.ipc.open_file(source)
                batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                batches = reader = self.arrow.ipc.open_stream(source)
            for number, batch in enumerate(batches):
                for start in range(0, len(batch), _ROWS):
                    yield f"{path}, record batch {number}", batch.slice(start, _ROWS)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InvalidInput(f"{path} does not exist: give a Parquet or Arrow file, or a folder of them")
    if (path / "dataset_dict.json").exists():
        splits = sorted(p.name for p in path.iterdir() if (p / _HUGGING_FACE).exists())
        raise InvalidInput(
            f"{path} holds several splits: give the folder of one of them ({', '.join(splits)})"
        )
    if (path / _HUGGING_FACE).exists():
        return _named(path / _HUGGING_FACE)
    files = sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES)
    if not files:
        raise InvalidInput(f"{path} has no file that ends in {' or '.join(_SUFFIXES)}: give a folder of them")
    return files


def _named(state: Path) -> list[Path]:
    # the files that Hugging Face's state names: caches lie beside them
    try:
        names = [str(part["filename"]) for part in loads(read_bytes(state, LARGEST))["_data_files"]]
    except (OSError, *MALFORMED) as error:
        raise InvalidInput(
            f"{state} is damaged ({type(error).__name__}: {error}): save the data again"
        ) from None
    for name in names:
        if Path(name).name != name or not (state.parent / name).is_file():
            raise InvalidInput(f"{state} names the file {name!r}, which is not beside it: restore a copy")
    if not names:
        raise InvalidInput(f"{state} names no file: there are no rows")
    return [state.parent / name for name in names]


def _not_whole(path: Path, error: Exception) -> InvalidInput:
    line = (str(error).splitlines() or [""])[0]
    return InvalidInput(f"{path} is not a complete Parquet or Arrow file ({line}): write it again")


def _own_names(path: Path, columns: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    # what a file calls each column, with its accents in one character or in two
    known, own = list(map(to_nfc, names)), {}
    for name in columns:
        if (wanted := to_nfc(name)) not in known:
            raise unknown(f"column of {path}", name, known)
        check_unique_column(path, wanted, known)
        own[name] = names[known.index(wanted)]
    return own


def numbers(array: Any, where: str) -> np.ndarray:
    # (rows, ...): numbers, truths, lists of them of one length (which are axes), or tensors of one shape
    import pyarrow as arrow
    from pyarrow import compute

    check_whole(array, where)
    kind = array.type
    if isinstance(kind, arrow.FixedShapeTensorType):
        return array.to_numpy_ndarray()
    if isinstance(kind, arrow.BaseExtensionType):
        return numbers(array.storage, where)
    types = arrow.types
    if types.is_dictionary(kind):
        return numbers(array.dictionary_decode(), where)
    fixed = types.is_fixed_size_list(kind)
    lists = (types.is_list, types.is_large_list, types.is_list_view, types.is_large_list_view)
    if fixed or any(is_one(kind) for is_one in lists):
        lengths = [kind.list_size] if fixed else []
        if not fixed:
            lengths = np.unique(compute.call_function("list_value_length", [array]).to_numpy())
        if len(lengths) > 1 or not lengths[0]:
            raise InvalidInput(
                f"{where} has lists of length {lengths[0]} to {lengths[-1]}: bring them to one, at least 1"
            )
        inner = numbers(array.flatten(), where)
        return inner.reshape(len(array), *lengths, *inner.shape[1:])
    if not (types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)):
        raise InvalidInput(f"{where} has type {kind}: give numbers, or lists of numbers (images decoded)")
    return array.to_numpy(zero_copy_only=False)


def check_whole(array: Any, where: str) -> None:
    if array.null_count:
        raise InvalidInput(f"{where} has {array.null_count} nulls: fill them or leave their rows out")


# Cells of CSV files: how a file is written, and what stands in its columns.


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"([+-]?\d+)\.0*", re.ASCII)
_SWAPPED = str.maketrans(",.", ".,")
_MISSING = frozenset((
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL",
    "NaN", "None", "n/a", "nan", "null",
))  # fmt: skip
"""Cells without a value, as pandas reads them."""


@dataclass(frozen=True)
class FileFormat:
    """How a table is written, which may differ from site to site: what its columns mean does not."""

    # of columns; of commas, semicolons, tabs, bars and this the one that shows the most columns in the first line
    separator: str = ","
    decimal: str = "."  # or ','; numbers have no marks of thousands
    encoding: str = ""  # of a file that is neither UTF-8 nor UTF-16 with a byte order mark, such as 'cp1252'
    missing: tuple[str, ...] = ()  # cells that are as empty, besides those that data frames write, such as NA

    def __post_init__(self) -> None:
        if not isinstance(self.separator, str) or len(self.separator) != 1 or self.separator in '"\r\n':
            raise InvalidInput(f"separator = {shown(self.separator)} must be one character, such as ';'")
        if self.decimal not in (".", ","):
            raise InvalidInput(f"decimal = {shown(self.decimal)} must be '.' or ','")
        try:
            "".encode(self.encoding or "utf-8")
        except (LookupError, TypeError):
            raise InvalidInput(
                f"encoding = {shown(self.encoding)} is not known: give 'cp1252' or such"
            ) from None

    def changed(self, given: dict[str, Any]) -> FileFormat:
        for name in given:
            if name not in FORMAT_KEYS:
                raise unknown("part of a file's format", str(name), FORMAT_KEYS)
        marks = {"missing": cell_texts("missing", given["missing"])} if "missing" in given else {}
        return replace(self, **given | marks)


FORMAT_KEYS = tuple(part.name for part in fields(FileFormat))


def cell_texts(where: str, given: Any) -> tuple[str, ...]:
    cells = given if isinstance(given, list) else [given]
    if not all(type(cell) in (str, int, float) for cell in cells):
        raise InvalidInput(f"{where} = {shown(given)} must be a list of texts or numbers, as cells have them")
    return tuple(map(str, cells))


Cells = tuple[dict[str, list[str]], Callable[[int], str]]
"""The cells of columns by name, and in words where a row stands."""


def read_columns(path: Path, columns: Mapping[str, tuple[Any, Any, str]], form: FileFormat) -> Cells:
    # of each column its known texts, cells that are missing, and decimal sign. Cells have no spaces around them,
    # and '.' for the sign. What is no known text is read as a data frame wrote it: a missing cell, such as NA, is
    # empty here, and 1.0, which it writes for 1 in a column with missing cells, is 1 where that is known
    cells: dict[str, list[str]] = {name: [] for name in columns}
    lines: list[int] = []
    with csv_rows(path, columns, form.separator, form.encoding) as rows:
        header = [name.strip() for name in next(rows, [])]
        places = []
        for name, (known, missing, decimal) in columns.items():
            normal = partial(_normalise_cell, frozenset(known), frozenset((*form.missing, *missing)), decimal)
            places.append((cells[name], _place(path, name, header, list(columns)), normal))
        for row in filter(None, rows):
            if len(row) != len(header):
                raise InvalidInput(
                    f"{path}, line {rows.line_num} has {len(row)} cells, the first line {len(header)}: fix it"
                )
            for column, place, normal in places:
                column.append(normal(row[place].strip()))
            lines.append(rows.line_num)
    if not lines:
        raise InvalidInput(f"{path} has no row below its first line: give at least one example")
    return cells, lambda row: f"{path}, line {lines[row]}"


def _normalise_cell(known: Collection[str], missing: Collection[str], decimal: str, cell: str) -> str:
    if cell in known:
        return cell
    if decimal == "," and _NUMBER.fullmatch(cell.replace(",", ".")):
        cell = cell.translate(_SWAPPED)  # 1.5 is no number then
    whole = _WHOLE.fullmatch(cell) if known or missing else None
    cell = whole[1] if whole and (whole[1] in known or whole[1] in missing) else cell
    return "" if cell not in known and (cell in missing or cell in _MISSING) else cell


def _place(path: Path, name: str, header: list[str], names: Sequence[str]) -> int:
    if not any(header):
        raise InvalidInput(f"{path} is empty: its first line must name the columns")
    if not set(names) & set(header) and not nearest(name, header):  # it may be a row, which nobody is told
        raise InvalidInput(f"{path} has none of the columns {', '.join(names)} in its first line: name them")
    if name not in header:
        near = nearest(name, header)
        hint = f"did you mean {near}? It" if near else "it"
        raise InvalidInput(f"{path} has no column {name}: {hint} has {', '.join(header)}; rename one")
    check_unique_column(path, name, header)
    return header.index(name)


def fill_missing(cells: list[str], name: str, fill: str | None, where: Callable[[int], str]) -> list[str]:
    # `fill` stands for an empty cell; None where nothing does
    if "" not in cells:
        return cells
    if fill is None:
        remedy = "fill it, leave the row out, or agree with all sites on `fill` or `indicator` in the schema"
        raise InvalidInput(f"{where(cells.index(''))}: column {name} is empty: {remedy}")
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
    problem = "is not a finite number"
    if is_number(cells[row].translate(_SWAPPED)):  # cells with a decimal comma are not as the file has them
        remedy = "is `decimal` of the schema or the node right, and no thousand marked?"
        raise InvalidInput(f"{where(row)}: column {name} {problem}: {remedy}")
    raise bad_cell(where(row), name, cells[row], f"{problem}: fix the cell")


def bad_cell(where: str, name: str, cell: str, problem: str) -> ConfidentialError:
    return ConfidentialError(
        f"{where}: column {name} = {shown(cell)} {problem}", f"{where}: column {name} {problem}"
    )


def as_float32(numbers: np.ndarray, name: str, where: Callable[[int], str]) -> np.ndarray:
    # (rows,), the type of a model's inputs
    if (row := first_beyond(numbers, np.float32)) is not None:
        raise InvalidInput(f"{where(row)}: column {name} is beyond float32: use another unit, or scale it")
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
        remedy = ", or set `unknown` in it" if what == "categories" else ""
        problem = f"none of its {what} {', '.join(known)}: fix the cell, or the schema of all sites{remedy}"
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
