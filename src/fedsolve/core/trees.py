"""Pytrees: whole-vector operations that every method is written in, leaves by their paths, and leaves from users' data.

The path of a leaf is written with dots; a pattern matches a path or the end of one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, of_type, shown
from fedsolve.core.types import Params, Scalar

_JOINED = 2**14  # entries of a leaf below which it is looked at with others
_NEAR = 3  # paths that an error names


def add(a: Params, b: Params) -> Params:
    return jax.tree.map(jnp.add, a, b)


def sub(a: Params, b: Params) -> Params:
    return jax.tree.map(jnp.subtract, a, b)


def scale(s: Scalar, a: Params) -> Params:
    return jax.tree.map(lambda x: (s * x).astype(x.dtype), a)


def axpy(s: Scalar, x: Params, y: Params) -> Params:
    """y + s x, in the type of y."""
    return jax.tree.map(lambda a, b: (b + s * a).astype(b.dtype), x, y)


def zeros_like(a: Params) -> Params:
    return jax.tree.map(jnp.zeros_like, a)


def dot(a: Params, b: Params) -> Array:
    """<a, b> over the whole vector."""
    parts = jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum(x * y), a, b))
    return sum(parts, jnp.zeros((), parts[0].dtype)) if parts else jnp.zeros(())


def squared_norm(a: Params) -> Array:
    return dot(a, a)


def quotient(a: Any, b: Any) -> Any:
    """a / b, and 0 where b is 0: a coordinate that has never moved stays where it is."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)


def norm(a: Params) -> Array:
    return jnp.sqrt(squared_norm(a))


def where(condition: Any, a: Params, b: Params) -> Params:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def all_finite(a: Any) -> Array:
    floats = [x for x in jax.tree.leaves(a) if jnp.issubdtype(x.dtype, jnp.inexact) and x.size]
    if not floats:
        return jnp.array(True)
    # each reduction costs compile time, each entry of a vector joined of leaves a branch: only small ones are joined
    *rest, largest = sorted(floats, key=lambda x: x.size)
    small = [jnp.ravel(x) for x in rest if x.size < _JOINED]
    parts = [largest, *(x for x in rest if x.size >= _JOINED), *([jnp.concatenate(small)] if small else [])]
    return jnp.stack([array_is_finite(x) for x in parts]).all()


def array_is_finite(x: Array) -> Array:
    # by the bits without the sign, as integers: those of infinity and NaN are the largest. `any` along one axis is
    # vectorised on a CPU, where `isfinite(x).all()` and the maximum of the bits take two to three times as long
    # (JAX 0.10.2), and a maximum of floats drops NaN (https://github.com/openxla/xla/issues/21461)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return array_is_finite(jnp.stack([x.real, x.imag]))
    integer = jnp.dtype(f"int{jnp.finfo(x.dtype).bits}")
    bits = lax.bitcast_convert_type(x, integer) & jnp.iinfo(integer).max
    infinity = lax.bitcast_convert_type(jnp.array(jnp.inf, x.dtype), integer)
    return ~jnp.any((bits >= infinity).reshape(-1))


def has_codes(a: Any) -> bool:
    """Whether a leaf of a is no floating-point number."""
    return any(not jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(a))


def size(a: Any) -> int:
    return sum(x.size for x in jax.tree.leaves(a))


def nbytes(a: Any) -> int:
    return sum(x.size * jnp.dtype(x.dtype).itemsize for x in jax.tree.leaves(a))


def on_host(a: Any) -> Any:
    """The arrays as NumPy's; on a CPU each is read where it is, which takes a fifth of `jax.device_get`'s time."""
    return jax.tree.map(np.asarray, a) if jax.default_backend() == "cpu" else jax.device_get(a)


def dtype_of(a: Params) -> Any:
    return jnp.result_type(*jax.tree.leaves(a))


def is_not_traced(x: Any) -> bool:
    """Whether x is a number or an array whose values can be looked at now."""
    return isinstance(x, int | float | np.ndarray | np.generic) or (
        isinstance(x, jax.Array) and not isinstance(x, Tracer)
    )


def chosen_leaves(tree: Params, pattern: str) -> list[Any]:
    paths, leaves = named_leaves(tree)
    chosen = [leaves[i] for i in matching(paths, pattern)]
    if not chosen:
        raise InvalidInput(f"no leaf of the model is called '{pattern}'; it has {', '.join(paths)}")
    return chosen


def named_leaves(tree: Params) -> tuple[list[str], list[Any]]:
    """The paths of a model's leaves, written with dots, and the leaves."""
    with_paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(p, simple=True, separator=".") for p, _ in with_paths], [
        leaf for _, leaf in with_paths
    ]


def as_patterns(name: str, value: Any, *, example: str, at_least: int = 1) -> tuple[str, ...]:
    """One or more patterns of paths as a tuple; `InvalidInput` unless they are texts, `at_least` so many."""
    patterns = (value,) if isinstance(value, str) else value
    is_listed = isinstance(patterns, list | tuple) and all(isinstance(p, str) and p for p in patterns)
    if not is_listed or len(patterns) < at_least:
        raise InvalidInput(f"{name} = {shown(value)} must be patterns of paths, such as {example}")
    return tuple(patterns)


def all_matching(field: str, paths: list[str], patterns: Iterable[str]) -> set[int]:
    chosen: set[int] = set()
    for pattern in patterns:
        matched = matching(paths, pattern)
        if not matched:
            near = difflib.get_close_matches(pattern, paths, _NEAR, cutoff=0) or paths[:_NEAR]
            raise InvalidInput(
                f"{field} = '{pattern}': no leaf of the model has this name; the nearest paths are {', '.join(near)}"
            )
        chosen |= set(matched)
    return chosen


def matching(paths: list[str], pattern: str) -> list[int]:
    """The numbers of the paths that a pattern matches, as a whole or at their end."""
    return [
        i for i, path in enumerate(paths) if fnmatchcase(path, pattern) or fnmatchcase(path, f"*.{pattern}")
    ]


# One leaf of a user's examples as an array of numbers: tables by column, missing entries, and what rounding loses.
#
# Tables of pandas, Polars and Arrow are told by their attributes: none of these packages need be installed.

_FEW = 2**16  # numbers of float32 within a column's range, above which a difference that is lost is noise
_LARGEST = 2.0**127
_EXACT = 2**24  # integers up to here are numbers of float32


def first_beyond(array: np.ndarray, dtype: Any) -> int | None:
    """The first row with a number outside the range of a type, or NaN; None if there is none."""
    to = np.dtype(dtype)
    limits: Any = np.iinfo(to) if to.kind in "iu" else np.finfo(to)
    if not array.size or (array.max() <= limits.max and array.min() >= limits.min):
        return None
    bad = ~((array <= limits.max) & (array >= limits.min))
    return int(np.argmax(bad.reshape(len(array), -1).any(axis=1)))


def is_rounded(array: np.ndarray, dtype: Any) -> bool:
    """Whether integers become floats that cannot hold them, as NumPy makes of both together."""
    if array.dtype.kind not in "iu" or np.dtype(dtype).kind != "f" or not array.size:
        return False
    return max(int(array.max()), -int(array.min())) > 2**53


def first_merged(array: np.ndarray) -> tuple[int, int] | None:
    """The column and the row of a number that float32 cannot tell from another one in its column, or None.

    Only columns (entries of a row) count within whose range float32 has fewer than 2^16 numbers, such as Unix time
    within a year: there are 128 seconds from one to the next.

    >>> first_merged(1.7e9 + 10 * np.arange(6.0)), first_merged(10 * np.arange(6.0))
    ((0, 1), None)
    """
    wide = (array.dtype.kind in "iu" and array.itemsize > 2) or (
        array.dtype.kind == "f" and array.itemsize > 4
    )
    if not wide or not array.size:
        return None
    columns = array.reshape(len(array), -1)
    low, high = columns.min(axis=0).astype(np.float64), columns.max(axis=0).astype(np.float64)
    most = np.maximum(np.abs(low), np.abs(high))
    if array.dtype.kind in "iu" and most.max() <= _EXACT:
        return None
    fits = most < _LARGEST  # a run refuses the others
    apart = np.spacing(np.where(fits, most, 1).astype(np.float32)).astype(np.float64)
    for column in np.flatnonzero(fits & (high > low) & (high - low < _FEW * apart)):
        order = np.argsort(columns[:, column], kind="stable")
        exact = columns[order, column]
        rounded = exact.astype(np.float32)
        lost = (exact[1:] != exact[:-1]) & (rounded[1:] == rounded[:-1])
        if lost.any():
            return int(column), int(order[1 + int(np.argmax(lost))])
    return None


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
    """Which entries of an array, or of a column of pandas, Polars or Arrow, stand for no value."""
    # returns booleans of its shape
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


def columns_of(value: Any) -> list[tuple[Any, Any]] | None:
    """The label and the content of each column of a table, in order; None if it is no table."""
    if hasattr(value, "column_names") and hasattr(value, "columns"):  # Arrow's Table and RecordBatch
        return list(zip(value.column_names, value.columns, strict=True))
    if hasattr(value, "get_columns"):  # Polars
        return [(column.name, column) for column in value.get_columns()]
    if hasattr(value, "columns") and hasattr(value, "items") and hasattr(value, "to_numpy"):  # pandas
        return list(value.items())
    return None


def check_same_rows(parts: Iterable[tuple[str, Any]]) -> None:
    """Compare the row labels of what stands side by side, where it has some (pandas' index)."""
    # rows go by position. Labels that are 0, 1, ... in order may be pandas' own, so that others beside them say
    # nothing, unless they are the same in another order.
    of, first = "", None
    for name, value in parts:
        labels = getattr(value, "index", None)
        if not hasattr(value, "iloc") or labels is None:
            continue
        if first is None:
            of, first = name, labels
        if len(labels) != len(first) or labels.equals(first):
            continue
        has_own = [list(one) != list(range(len(one))) for one in (labels, first)]
        if set(labels) == set(first):
            raise InvalidInput(
                f"{name} has its rows in another order than {of}, by their index: sort both alike, or, if they belong "
                "together by position, reset_index(drop=True)"
            )
        if all(has_own):
            raise InvalidInput(
                f"{name} has other rows than {of}, by their index: give the same ones, or, if they belong together by "
                "position, reset_index(drop=True)"
            )


def of_table(name: str, value: Any, columns: list[tuple[Any, Any]]) -> np.ndarray:
    kinds = set(getattr(value, "dtypes", ()))  # of columns alike pandas has one array
    if len(kinds) == 1 and isinstance(kind := kinds.pop(), np.dtype) and kind.kind in "biuf":
        return np.asarray(value)
    if not columns:
        raise InvalidInput(f"{name} is a table without columns: give those of the inputs")
    labels = [f"column {shown(label)} of {name}" for label, _ in columns]
    return side_by_side(
        labels, [_numbers(where, column) for where, (_, column) in zip(labels, columns, strict=True)]
    )


def side_by_side(labels: Sequence[str], columns: Sequence[np.ndarray]) -> np.ndarray:
    """Columns as one array, shape (rows, columns); `InvalidInput` where their common type would round integers."""
    array = np.stack(columns, axis=1)
    for where, column in zip(labels, columns, strict=True):
        if is_rounded(column, array.dtype):
            raise InvalidInput(
                f"{where} has integers beyond 2^53, which floats beside it would round: leave it out, or number them"
            )
    return array


def _numbers(where: str, column: Any) -> np.ndarray:
    kind = getattr(getattr(column, "dtype", None), "numpy_dtype", None)  # of pandas' nullable types
    none = missing(column)
    if none.any() and (kind is not None or np.asarray(column).dtype.kind not in "f"):
        raise InvalidInput(f"{where} has no value in row {int(none.argmax())}: fill it or leave the row out")
    array = np.asarray(column) if kind is None else column.to_numpy(dtype=kind)
    if array.dtype.kind not in "biuf" or array.ndim != 1:
        raise InvalidInput(f"{where} holds no numbers ({array.dtype}): encode it as numbers, or leave it out")
    return array


_DATA_SETS = ("torch.utils.data", "datasets.")
"""Packages whose objects look like sequences to NumPy, which would take inputs and targets for one array."""


def as_array(name: str, values: Any) -> np.ndarray:
    """`values` as an array of numbers or truths in the machine's byte order.

    An array of any package, a PyTorch tensor (without its gradient), numbers in lists of one length, or a table of
    pandas, Polars or Arrow whose columns hold numbers; `InvalidInput` for anything else, missing entries that NumPy
    cannot keep, or a type that JAX does not have.

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
        except (TypeError, ValueError, RuntimeError):
            pass  # rows of different lengths, a random key, a sparse tensor
    raise _no_array(name, values)


def _no_array(name: str, values: Any) -> InvalidInput:
    remedy = _remedy(values) or ": convert it, such as by array.astype(float)"
    return InvalidInput(f"{name} is {of_type(values)} and not an array of numbers{remedy}")


def _remedy(values: Any) -> str:
    # what else to give, after a colon
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
