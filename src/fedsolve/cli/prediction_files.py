"""Files of inputs and of predictions: CSV with a header, Parquet, and NumPy's npz."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.data.columns import Columns, check_same_columns
from fedsolve.data.tables import FileFormat, Table, as_floats, is_number, numbers, read_columns
from fedsolve.folders.files import replace_atomically, write_atomically
from fedsolve.folders.untrusted import csv_rows, npz_arrays, open_regular, to_nfc

SUFFIXES = (".csv", ".parquet", ".npz")
_ARRAY, _NAME = "x", "prediction"


def check_suffix(option: str, path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidInput(f"{option} {path} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")


def read_inputs(path: Path, columns: Sequence[str] | None, known: Columns = ()) -> np.ndarray:
    kind, columns = path.suffix.lower(), None if columns is None else list(map(to_nfc, columns))
    if not path.is_file():
        raise InvalidInput(f"--input {path} does not exist: give a file")
    if kind == ".npz":
        if columns is not None:
            raise InvalidInput("--columns names columns of a table, and an npz file has none: leave it out")
        return _read_npz(path)
    trained = known[0] if len(known) == 1 else None
    if trained is not None:
        check_same_columns("--columns", (tuple(columns or trained),), known, "the model")
        columns = trained
    return _read_csv(path, columns) if kind == ".csv" else _read_parquet(path, columns)


def _read_npz(path: Path) -> np.ndarray:
    try:
        with open_regular(path) as file:
            return npz_arrays(file, [_ARRAY])[_ARRAY]
    except KeyError as error:
        raise InvalidInput(
            f"{path} has no array {_ARRAY}, but {error.args[1]}: save it by np.savez(file, {_ARRAY}=...)"
        ) from None
    except (ValueError, OSError) as error:
        raise InvalidInput(f"{path} is not a NumPy npz file of numbers: {error}") from None


def _read_csv(path: Path, columns: Sequence[str] | None) -> np.ndarray:
    with csv_rows(path, columns or ()) as lines:
        header = [name.strip() for name in next(lines, [])]
    if header and all(map(is_number, header)):
        raise InvalidInput(f"{path} has numbers in its first line: write the names of the columns there")
    names = list(columns or header)
    cells, where = read_columns(path, dict.fromkeys(names, ((), (), ".")), FileFormat())
    return np.stack([as_floats(cells[name], name, where) for name in names], axis=1)


def _read_parquet(path: Path, columns: Sequence[str] | None) -> np.ndarray:
    table = Table.at(path)
    names = table.names() if columns is None else list(columns)
    parts = [
        [numbers(batch[name], f"{where}, column {name}") for name in names]
        for where, batch in table.rows(names)
    ]
    if not parts:
        raise InvalidInput(f"{path} has no rows")
    arrays = [np.concatenate(column) for column in zip(*parts, strict=True)]
    if len(arrays) == 1 and arrays[0].ndim > 1:  # a column of lists is the whole input
        return arrays[0]
    for name, array in zip(names, arrays, strict=True):
        if array.ndim > 1:
            raise InvalidInput(f"{path}: column {name} holds lists: choose it alone with --columns {name}")
    return np.stack(arrays, axis=1)


def write_predictions(path: Path, predictions: Any) -> None:
    """Write predictions, a row for each input, in the format that the file's name ends in.

    Args:
        path: npz: the array `prediction`, or several by name; CSV and Parquet: a column `prediction`, or
            `prediction_0`, ... of several numbers a row.
        predictions: an array of shape (n, ...), or a pytree of such.
    """
    arrays = {_NAME + "".join(f".{part}" for part in _names(at)): leaf for at, leaf in _leaves(predictions)}
    if path.suffix.lower() == ".npz":
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, **arrays)
        write_atomically(path, content.getvalue())
        return
    columns: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if array.ndim > 2:
            raise InvalidInput(
                f"--out {path}: predictions have shape {array.shape}, which is not a table: give --out FILE.npz"
            )
        columns |= {name: array} if array.ndim == 1 else {f"{name}_{i}": c for i, c in enumerate(array.T)}
    if path.suffix.lower() == ".csv":
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(columns)
        lines.writerows(zip(*(map(str, column) for column in columns.values()), strict=True))
        write_atomically(path, text.getvalue())
        return
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table(columns)
    replace_atomically(path, lambda new: pyarrow.parquet.write_table(table, new))


def _leaves(tree: Any) -> list[tuple[Any, np.ndarray]]:
    import jax

    return [(at, np.asarray(leaf)) for at, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _names(at: Any) -> list[str]:
    return [str(getattr(part, "key", getattr(part, "idx", getattr(part, "name", part)))) for part in at]
