"""Metrics of whole sets, which are no means over examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Batch, Params
from fedsolve.core.xla.compiler import compiled
from fedsolve.engine.evaluation.example_metrics import map_rows
from fedsolve.tasks.loss_arguments import call, mean_of
from fedsolve.tasks.losses.weights import Whole

Function = Callable[[Params, Batch], Any]


@dataclass(frozen=True)
class OnWholeSets:
    """Metrics of whole sets, by name: on the host as the task has them in `whole`, with NumPy arrays, or compiled."""

    host: Mapping[str, Function | Whole]
    compiled: Mapping[str, Function]

    def __bool__(self) -> bool:
        return bool(self.host or self.compiled)

    def __call__(self, params: Params, sets: Mapping[str, Batch], first: bool) -> dict[str, float]:
        # `SET_NAME` of every set and metric; NaN where a model is not finite any more
        alive = bool(trees.all_finite(params))
        columns = {}
        for part, examples in sets.items():
            for name, metric in (*self.compiled.items(), *self.host.items()):
                value = float("nan")
                if alive or first:
                    value = _value(
                        f"{name} of the {part} set", self._bound(name, metric), params, examples, first
                    )
                columns[f"{part}_{name}"] = value
        return columns

    def _bound(self, name: str, metric: Function | Whole) -> Function:
        if isinstance(metric, Whole):
            return partial(_scored, metric)
        if name in self.compiled:
            return partial(_batch_mean, metric)
        return lambda params, examples: call(metric, params, jax.tree.map(np.asarray, examples))[0]


def _value(what: str, metric: Function, params: Params, examples: Batch, first: bool) -> float:
    try:
        value = np.asarray(metric(params, examples))
    except Exception as error:  # whatever the user's code raises
        if not first:
            return float("nan")
        line = (str(error).splitlines() or [""])[0]
        raise InvalidInput(f"{what} fails: {type(error).__name__}: {line}") from error
    if value.shape != () or not (np.issubdtype(value.dtype, np.number) or value.dtype == bool):
        raise InvalidInput(
            f"{what} has shape {value.shape} and type {value.dtype}: it must be one real number"
        )
    return float(value)


def _scored(metric: Whole, params: Params, examples: Batch) -> Any:
    outputs = jax.device_get(_outputs(metric.outputs, params, examples))
    arrays = [np.asarray(a) for a in (outputs if isinstance(outputs, tuple) else (outputs,))]
    if not all(np.isfinite(a).all() for a in arrays):  # scikit-learn would raise
        return float("nan")
    return metric.score(*arrays)


@partial(compiled, static_argnums=0)
def _outputs(outputs: Function, params: Params, examples: Batch) -> Any:
    return map_rows(lambda *given: call(outputs, *given)[0], params, examples)


@partial(compiled, static_argnums=0)
def _batch_mean(metric: Function, params: Params, examples: Batch) -> Any:
    return mean_of(call(metric, params, examples)[0])
