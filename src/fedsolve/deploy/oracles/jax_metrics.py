"""What one client with a loss in JAX measures of a model, on what it trains on and on what it holds out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.types import Batch, Params
from fedsolve.data.federated import FederatedData
from fedsolve.deploy.messages.message import PartMetrics
from fedsolve.engine.checks.preflight import check_metrics
from fedsolve.engine.compute.clients import Loss, PackedClients, on_device
from fedsolve.engine.evaluation.blocks import EvalClients
from fedsolve.engine.evaluation.dataset_metrics import OnWholeSets
from fedsolve.engine.evaluation.evaluate import means_of
from fedsolve.engine.evaluation.example_metrics import Metrics
from fedsolve.tasks.task import Task

Functions = Mapping[str, Callable[..., Any]]
NONE: Mapping[str, Any] = MappingProxyType({})
_NO_COUNT = float("nan")


class Asked:
    """What a client can measure besides its loss.

    Args:
        metrics: functions of (params, batch) by name; means over examples, or not.
        whole: metrics of whole sets, as a task has them.
    """

    def __init__(self, metrics: Functions, whole: Mapping[str, Any]) -> None:
        self._metrics, self._whole = dict(metrics), dict(whole)
        self._no_mean: dict[str, bool] = {}

    def among(self, names: Collection[str], model: Any, examples: Batch) -> tuple[Functions, OnWholeSets]:
        """Those of some names: which follow from the examples' own values, and which are computed on whole sets.

        Args:
            names: what is asked for.
            model, examples: what they are tried on.

        Raises:
            InvalidInput: one that fails, or gives no real number.
        """
        chosen = {name: f for name, f in self._metrics.items() if name in names}
        new = {name: f for name, f in chosen.items() if name not in self._no_mean}
        seen = check_metrics(new, model, examples) if new else {}
        self._no_mean |= {name: name in seen for name in new}
        whole = {name: f for name, f in self._whole.items() if name in names}
        mixing = {name: f for name, f in chosen.items() if self._no_mean[name]}
        return {name: f for name, f in chosen.items() if name not in mixing}, OnWholeSets(whole, mixing)


def packed(examples: Batch, frozen: Params, dtype: Any) -> PackedClients:
    """One client's examples on the device; how many steps it takes is put in where it takes any."""
    count = len(jax.tree.leaves(examples)[0])
    offset, counts, steps = (jnp.asarray(np.full(1, n, np.int32)) for n in (0, count, 0))
    return PackedClients(on_device(examples, dtype), offset, counts, steps, on_device(frozen, dtype))


def measured(
    loss: Loss,
    functions: Functions,
    sets: Mapping[str, PackedClients],
    model: Params,
    metrics: Collection[str],
    whole: OnWholeSets,
) -> dict[str, PartMetrics]:
    """A model's metrics on one client's sets of examples, by the engine's programs.

    Args:
        loss: the client's.
        functions: its further metrics that are asked for and follow from those of examples.
        sets: its examples by part.
        model: with its buffers where the loss has some.
        metrics: names that are asked for, `loss` perhaps.
        whole: those among them that are computed on whole sets.
    """
    judged = Metrics(loss, tuple(functions.items()))
    columns = {name: k for k, name in enumerate(judged.all) if name in metrics}
    measured = {}
    for part, examples in sets.items():
        count, means, counts = means_of(judged, EvalClients.of(examples, np.zeros(1, int)), model)
        values = {name: float(means[0, k]) for name, k in columns.items()}
        sizes = {name: _count(judged.all[name], float(counts[0, k])) for name, k in columns.items()}
        arrays = jax.tree.map(jnp.asarray, model)
        whole_values = whole(examples.model(arrays), {part: examples.examples}, True) if whole else {}
        values |= {name.removeprefix(f"{part}_"): value for name, value in whole_values.items()}
        sizes |= {
            name: _NO_COUNT if math.isfinite(values[name]) else 0.0 for name in values.keys() - sizes.keys()
        }
        measured[part] = PartMetrics(int(count[0]), values, sizes)
    return measured


def _count(function: Any, count: float) -> float:
    """What a metric is a mean over, as `PartMetrics` has it."""
    if not hasattr(function, "of_sums"):
        return round(count)
    # a mean of values of several clients is no value of all, unless the function says what they count for
    return _NO_COUNT if count and getattr(function, "size", None) is None else count


def held_out(validation: Batch, examples: Batch) -> Batch:
    """Validation examples as arrays, of the fields of the training examples."""
    arrays = FederatedData.from_clients([validation], ["the validation examples"]).examples
    shapes = [jax.tree.map(lambda a: (a.shape[1:], a.dtype.kind), x) for x in (arrays, examples)]
    if shapes[0] != shapes[1]:
        raise InvalidInput(
            f"the validation examples have fields {shown(shapes[0])}, the training examples {shown(shapes[1])} "
            "(shape of one, kind): give both the same"
        )
    return arrays


def own_validation(task: Task, client: int) -> Batch | None:
    """The validation examples of a task that are this client's; None if it has none."""
    if task.validation is None or task.validation_clients is None:
        return None
    rows = np.flatnonzero(task.validation_clients == client)
    return jax.tree.map(lambda a: np.asarray(a)[rows], task.validation) if len(rows) else None
