"""What a trained model is used for: predictions for new inputs, and the PyTorch module that it came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.building import Made
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params
from fedsolve.data.columns import Columns
from fedsolve.tasks.inputs import as_inputs, check_width
from fedsolve.tasks.loss_arguments import asked

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
            from fedsolve.tasks.torch_modules.module_outputs import in_batches

            return in_batches(self.to_module(params, buffers), inputs, count, labels, ROWS)
        return self._compiled(params, inputs, count, self.buffers if buffers is None else buffers, labels)

    def module(self, params: Params, buffers: Any = None) -> Any:
        if self.to_module is None:
            raise InvalidInput(
                f"the task {self.task} is not from PyTorch: use its model by predict(x), or by result.params"
            )
        return self.to_module(params, buffers)

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
