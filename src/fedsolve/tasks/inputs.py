"""New inputs of a model as NumPy arrays, checked against those that it was trained on."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.core.trees import as_array, first_beyond
from fedsolve.data.columns import Columns, named_arrays
from fedsolve.data.examples import Examples, SparseRows, form_text
from fedsolve.data.federated import FederatedData


def input_columns(data: FederatedData) -> Columns:
    rows = input_rows(data)
    return data.columns[: len(jax.tree.leaves(rows))] if any(data.columns) and rows is not None else ()


def input_rows(data: FederatedData) -> Any:
    # none where it is not known which part of an example is the input
    examples = data.examples
    if not isinstance(examples, Examples) and not (type(examples) in (tuple, list) and len(examples) == 2):
        return None
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), examples[0])


def as_inputs(x: Any, rows: Any, task: str, columns: Columns = ()) -> tuple[Any, int]:
    # x: arrays, a table, or a pytree of these as the task's inputs are; rows: one input's shapes and types,
    # None where they are unknown; columns: a table with these names in another order is put in order
    nested = isinstance(rows, jax.ShapeDtypeStruct) and isinstance(x, list)  # one array, as lists of numbers
    of = f"the inputs of {task}"
    given = as_array("x", x) if nested else named_arrays("x", x, columns, of)[0]
    leaves = jax.tree.leaves(given)
    for a in leaves:
        if a.dtype.kind not in "biuf":
            raise InvalidInput(f"x has type {a.dtype}: give arrays of real numbers")
    if rows is not None:
        if jax.tree.structure(given) != jax.tree.structure(rows):
            raise InvalidInput(
                f"x is {form_text(given)}, the inputs of {task} are {form_text(rows)}: give them in that form, to "
                "`predict` in Python (a file of inputs holds one array)"
            )
        sparse = isinstance(rows, SparseRows)
        given = jax.tree.map(lambda a, row: _like(a, row, task, sparse), given, rows)
        leaves = jax.tree.leaves(given)
    if not leaves or any(a.ndim == 0 for a in leaves):
        raise InvalidInput(f"x is {of_type(x)} without rows: give arrays of shape (n, ...)")
    counts = {len(a) for a in leaves}
    if len(counts) > 1 or counts == {0}:
        raise InvalidInput(
            f"x has {' and '.join(str(c) for c in sorted(counts))} rows: give the same number in all arrays, at least 1"
        )
    for a in leaves:
        if np.issubdtype(a.dtype, np.floating) and not np.isfinite(a).all():
            row = int(np.argmin(np.isfinite(a.reshape(len(a), -1)).all(axis=1)))
            raise InvalidInput(f"x holds a non-finite number in row {row}: clean the data first")
    return given, counts.pop()


def check_width(inputs: Any, wide: bool, kinds: str) -> None:
    # numbers that 32 bits cannot hold are refused, unless the model takes 64 (`wide`). kinds: of arrays that
    # it takes in 32 bits, as NumPy's `dtype.kind`
    for a in jax.tree.leaves(inputs):
        to = np.dtype(f"{a.dtype.kind}4") if a.dtype.kind in kinds else a.dtype
        if not wide and to.itemsize < a.dtype.itemsize and (row := first_beyond(a, to)) is not None:
            raise InvalidInput(
                f"x holds a number in row {row} that {to} cannot, in which the model computes: use another unit"
            )


def _like(a: np.ndarray, row: Any, task: str, sparse: bool) -> np.ndarray:
    # in the kind of numbers that the model was trained on
    if a.shape == row.shape and not sparse:
        raise InvalidInput(f"x has shape {a.shape}, one input of {task}: give rows, such as x[None]")
    if a.shape[1:] != row.shape and not (sparse and a.ndim == 2):  # rows may have fewer or more entries
        raise InvalidInput(f"x has rows of shape {a.shape[1:]}, the inputs of {task} have shape {row.shape}")
    kind = np.dtype(row.dtype)
    if kind.kind == "f":
        return a if a.dtype.kind == "f" else a.astype(kind)
    if a.dtype.kind == "f" and kind == np.uint8:  # images as numbers from 0 to 1
        return a
    converted = a.astype(kind)
    if not np.array_equal(converted, a):
        raise InvalidInput(
            f"x holds numbers that are not {kind}, the type of the inputs of {task}: convert them"
        )
    return converted
