"""What a trained model is used for: predictions for new inputs, and the PyTorch module that it came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.building import Made
from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.core.trees import as_array, first_beyond
from fedsolve.core.types import Params
from fedsolve.data.columns import Columns, named_arrays
from fedsolve.data.examples import Examples, SparseRows, form_text
from fedsolve.data.federated import FederatedData
from fedsolve.tasks.loss_arguments import asked

if TYPE_CHECKING:
    from torch import nn


ROWS = 256
"""Inputs of a batch; fewer are padded to a power of two, so that few programs are compiled."""


@dataclass(frozen=True, eq=False)
class Inference:
    """How models of a task predict; it holds none of the task's data."""

    task: str  # the task's name
    # (model, inputs) -> outputs, a row for each input; None where the task has no such function
    outputs: Callable[..., Any] | None
    labels: Callable[[Any], Any] | None  # outputs -> labels; None where a prediction is the outputs
    # one input's shape and type, a pytree of `jax.ShapeDtypeStruct`; None where the task's examples do not
    # say what of them is the input
    rows: Any
    # (model, buffers) -> the PyTorch module with these weights; None if the task has none
    to_module: Callable[[Params, Any], Any] | None = None
    # what the model keeps beside its parameters, as it is at first; None if it keeps nothing
    buffers: Any = None
    made_by: Made | None = None  # how a configuration names the task; None if it does not
    # the names of the inputs' columns for each array of them, None for one without; () for no names
    columns: Columns = ()

    def predict(self, params: Params, x: Any, *, buffers: Any = None, scores: bool = False) -> Any:
        if self.to_module is None and self.outputs is None:
            raise InvalidInput(
                f"the task {self.task} does not say how its model predicts: give "
                "Task.from_arrays(..., predict=f) with f(params, x) the outputs for inputs x"
            )
        inputs, count = as_inputs(x, self.rows, self.task, self.columns)
        labels = None if scores else self.labels
        if self.to_module is not None:
            return in_batches(self.to_module(params, buffers), inputs, count, labels, ROWS)
        return self._compiled(params, inputs, count, self.buffers if buffers is None else buffers, labels)

    def module(self, params: Params, buffers: Any = None) -> Any:
        if self.to_module is None:
            raise InvalidInput(
                f"the task {self.task} is not from PyTorch: use its model by predict(x), or by result.params"
            )
        made = self.to_module(params, buffers)
        return getattr(
            made, "unwrapped", made
        )  # a Hugging Face model predicts behind a module of one argument

    def _compiled(self, params: Params, inputs: Any, count: int, buffers: Any, labels: Any) -> Any:
        # batch by batch; the last one repeats its last row, so that few shapes are compiled
        leaves, structure = jax.tree.flatten(params)
        arrays = [x if _is_array(x) else None for x in leaves]
        fixed = tuple(_Fixed(x) for x in leaves if not _is_array(x))  # such as an equinox model's activation
        wide = all(x.dtype == np.float64 for x in arrays if x is not None and _is_floating(x))
        check_width(inputs, wide, "iuf")
        size = min(ROWS, 1 << (count - 1).bit_length())
        parts = []
        with jax.enable_x64(wide):
            model = [_in_width(x, wide) for x in arrays]
            for start in range(0, count, size):
                at = np.minimum(np.arange(start, start + size), count - 1)
                batch = jax.tree.map(lambda a, at=at: _in_width(a[at], wide), inputs)
                part = self._program(structure, fixed, labels, model, batch, buffers)
                parts.append(jax.tree.map(np.asarray, part))
        return jax.tree.map(lambda *found: np.concatenate(found)[:count], *parts)

    @cached_property
    def _program(self) -> Callable[..., Any]:
        return jax.jit(self._apply, static_argnums=(0, 1, 2))

    def _apply(self, structure: Any, fixed: Any, labels: Any, arrays: Any, batch: Any, buffers: Any) -> Any:
        assert self.outputs is not None
        others, rows = iter(fixed), len(jax.tree.leaves(batch)[0])
        model = structure.unflatten([next(others).value if x is None else x for x in arrays])
        given = {"key": None, "weights": None, "buffers": buffers}
        names = asked(self.outputs, "predict")
        found = self.outputs(model, batch, **{name: given[name] for name in names})
        for leaf in jax.tree.leaves(found):
            if jnp.shape(leaf)[:1] != (rows,):
                raise InvalidInput(
                    f"predict of the task {self.task} gave shape {jnp.shape(leaf)} for {rows} inputs: it must give a "
                    "row for each input"
                )
        return found if labels is None else labels(found)


def predicted_by(loss: Any) -> tuple[Callable[..., Any] | None, Callable[[Any], Any] | None]:
    # (model, inputs) -> outputs, and outputs -> labels; None where the loss has none
    outputs, labels = getattr(loss, "outputs", None), getattr(loss, "labels", None)
    return (outputs, labels) if callable(outputs) and callable(labels) else (None, None)


class _Fixed:
    """A leaf of a model that is no array, known by itself."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and (self.value is other.value or bool(self.value == other.value))


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic | jax.Array)


def _is_floating(a: Any) -> bool:
    return bool(jnp.issubdtype(a.dtype, jnp.floating))


def _in_width(a: Any, wide: bool) -> Any:
    # floating numbers in the model's width, all else as it is
    if a is None or not _is_floating(a):
        return a
    return a.astype(np.float64 if wide else np.float32)


# New inputs as NumPy arrays, checked against those that the model was trained on.


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


def in_batches(
    module: nn.Module, inputs: Any, count: int, labels: Callable[[Any], Any] | None, size: int
) -> Any:
    # module: put into evaluation mode; inputs: a pytree of arrays (count, ...), given as one argument;
    # labels: outputs -> labels, None for the outputs in the structure in which the module gives them. Of an
    # output that is one number for a batch, the mean over the rows
    import torch
    from torch.utils import _pytree as pytree

    from fedsolve.pytorch.batch_losses import seed_all
    from fedsolve.pytorch.translation.arrays import is_half, to_tensor

    module.eval()
    first = next(module.parameters())
    check_width(inputs, first.dtype == torch.float64, "f")
    parts = []
    with torch.no_grad(), seed_all(0):  # of a module that draws in evaluation too
        for start in range(0, count, size):
            batch = jax.tree.map(
                lambda a, s=start: to_tensor(a[s : s + size], first.dtype).to(first.device), inputs
            )
            try:
                given = module(batch)
            except Exception as error:
                shapes = ", ".join(str(tuple(a.shape[1:])) for a in jax.tree.leaves(inputs))
                line = (str(error).splitlines() or [""])[0]
                raise InvalidInput(
                    f"{type(module).__name__} cannot take inputs of shape {shapes}: {type(error).__name__}: {line}"
                ) from error
            outputs = pytree.tree_map(lambda t: (t.float() if is_half(t) else t).cpu().numpy(), given)
            parts.append(outputs if labels is None else labels(outputs))
    flat = [pytree.tree_leaves(part) for part in parts]
    sizes = [min(size, count - start) for start in range(0, count, size)]
    joined = [
        np.concatenate(leaves)
        if leaves[0].ndim
        else np.average(leaves, weights=sizes).astype(leaves[0].dtype)
        for leaves in zip(*flat, strict=True)
    ]
    return pytree.tree_unflatten(joined, pytree.tree_structure(parts[0]))
