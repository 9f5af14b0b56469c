"""One leaf of a user's examples as an array of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsolve.core.arrays.frames import columns_of, of_table
from fedsolve.core.arrays.missing import missing
from fedsolve.core.errors import InvalidInput, of_type

_DATA_SETS = ("torch.utils.data", "datasets.")
"""Packages whose objects look like sequences to NumPy, which would take inputs and targets for one array."""


def as_array(name: str, values: Any) -> np.ndarray:
    """`values` as an array of numbers or truths in the machine's byte order.

    Args:
        name: what an error calls it.
        values: an array of any package, a PyTorch tensor (without its gradient), numbers in lists of one length, or a
            table of pandas, Polars or Arrow whose columns hold numbers.

    Raises:
        InvalidInput: anything else, missing entries that NumPy cannot keep, or a type that JAX does not have.

    >>> as_array("x", np.ma.masked_less([1.0, -1.0], 0))
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: x has masked entries, which an array cannot keep: fill them or leave their rows out
    """
    if np.ma.is_masked(values):
        raise InvalidInput(
            f"{name} has masked entries, which an array cannot keep: fill them or leave their rows out"
        )
    columns = columns_of(values)
    array = to_numpy(name, values) if columns is None else of_table(name, values, columns)
    if array.dtype.kind == "O" and array.ndim and (none := missing(array)).any():
        row = int(np.argwhere(none)[0, 0])
        raise InvalidInput(
            f"{name} must be an array of numbers, and row {row} lacks one: fill it or leave the row out"
        )
    if array.dtype.kind not in "biufcVO" or array.dtype.names is not None:
        raise InvalidInput(f"{name} has type {array.dtype}: give arrays of numbers{_remedy(values)}")
    if array.dtype.kind == "O":
        raise _no_array(name, values)
    if array.dtype in (np.longdouble, np.clongdouble):
        raise InvalidInput(f"{name} has type {array.dtype}, which JAX does not have: convert it to float64")
    return array


def to_numpy(name: str, values: Any) -> np.ndarray:
    """`values` as an array of NumPy in the machine's byte order, of whatever type."""
    is_set = any(c.__module__.startswith(_DATA_SETS) for c in type(values).__mro__)
    if not is_set or hasattr(values, "__array__"):
        try:
            if hasattr(values, "detach"):  # a tensor that may have a gradient, or lie on a GPU
                values = values.detach().cpu()
            array = np.asarray(values)
            return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
        except (
            TypeError,
            ValueError,
            RuntimeError,
        ):  # rows of different lengths, a random key, a sparse tensor
            pass
    raise _no_array(name, values)


def _no_array(name: str, values: Any) -> InvalidInput:
    remedy = _remedy(values) or ": convert it, such as by array.astype(float)"
    return InvalidInput(f"{name} is {of_type(values)} and not an array of numbers{remedy}")


def _remedy(values: Any) -> str:
    """What else to give, after a colon."""
    module = type(values).__module__
    if hasattr(values, "toarray"):
        return ": give fs.SparseRows.from_csr(matrix.tocsr(), entries), or matrix.toarray()"
    if hasattr(values, "to_dense"):
        return ": give tensor.to_dense(), in float32 or float64"
    if any(c.__module__.startswith("torch.utils.data") for c in type(values).__mro__):
        return ": give its arrays, such as dataset.tensors, or the data set to fs.tasks.from_torch"
    if module.startswith("datasets."):
        return ": give its columns, dataset.with_format('numpy')['x'][:], or its folder to fs.data.from_table"
    if hasattr(values, "collect"):
        return ": give frame.collect()"
    if hasattr(values, "__next__"):
        return ": give np.array(list(...)) of what it makes"
    if isinstance(values, Mapping):
        return ": give the arrays in it"
    if isinstance(values, list | tuple):
        return ": give rows of one length, np.array(rows)"
    if getattr(getattr(values, "dtype", None), "names", None):
        return ", numpy.lib.recfunctions.structured_to_unstructured(array)"
    return ""
