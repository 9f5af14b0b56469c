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
from fedsolve.deploy.messages.message import PartMetrics, Sums
from fedsolve.engine.checks.preflight import check_metrics
from fedsolve.engine.compute.clients import Loss, PackedClients, on_device
from fedsolve.engine.evaluation.blocks import EvalClients
from fedsolve.engine.evaluation.dataset_metrics import OnWholeSets
from fedsolve.engine.evaluation.evaluate import means_of, sums_of
from fedsolve.engine.evaluation.example_metrics import Metrics
from fedsolve.tasks.task import Task

NONE: Mapping[str, Any] = MappingProxyType({})
_NO_COUNT = float("nan")


class LocalMetrics:
    """What a client measures a model by, with the engine's programs.

    Args:
        loss: its loss, measured as `loss`.
        metrics: functions of (params, batch) by name; means over examples, or not.
        whole: metrics of whole sets, as a task has them.
        model, examples: what metrics are tried on, with the buffers of that time.
    """

    def __init__(
        self,
        loss: Loss,
        metrics: Mapping[str, Callable[..., Any]],
        whole: Mapping[str, Any],
        model: Callable[[], Params],
        examples: Batch,
    ) -> None:
        self.names = ("loss", *metrics, *whole)
        self._loss, self._metrics, self._whole = loss, metrics, whole
        self._model, self._examples = model, examples
        self._no_mean: dict[str, bool] = {}

    def measure(
        self, names: Collection[str], sets: Mapping[str, PackedClients], model: Params
    ) -> dict[str, PartMetrics]:
        """Some metrics of a model on one client's sets of examples, by part; with its buffers where the loss has some.

        Raises:
            InvalidInput: a metric that fails, or gives no real number.
        """
        means, whole = self._split(names)
        summed: dict[str, Any] = {
            name: means.pop(name) for name in list(means) if hasattr(means[name], "totals")
        }
        metrics, of_sums = (
            Metrics(self._loss, tuple(means.items())),
            Metrics(self._loss, tuple(summed.items())),
        )
        columns = {name: k for k, name in enumerate(metrics.all) if name in names}
        measured = {}
        for part, examples in sets.items():
            count, means, counts = means_of(metrics, EvalClients.of(examples, np.zeros(1, int)), model)
            values = {name: float(means[0, k]) for name, k in columns.items()}
            sizes = {name: _count(metrics.all[name], float(counts[0, k])) for name, k in columns.items()}
            if whole:
                arrays = examples.model(jax.tree.map(jnp.asarray, model))
                for column, value in whole(arrays, {part: examples.examples}, True).items():
                    name = column.removeprefix(f"{part}_")
                    values[name], sizes[name] = value, _NO_COUNT if math.isfinite(value) else 0.0
            totals = sums_of(of_sums, examples, jax.tree.map(jnp.asarray, model)) if summed else {}
            sums = {n: Sums(summed[n].metric, np.asarray(x, np.float64)) for n, x in totals.items()}
            measured[part] = PartMetrics(int(count[0]), values, sizes, sums)
        return measured

    def _split(self, names: Collection[str]) -> tuple[dict[str, Callable[..., Any]], OnWholeSets]:
        """Which follow from the examples' own values, and which are computed on whole sets; found once each."""
        chosen = {name: f for name, f in self._metrics.items() if name in names}
        new = {name: f for name, f in chosen.items() if name not in self._no_mean}
        seen = check_metrics(new, self._model(), self._examples) if new else {}
        self._no_mean |= {name: name in seen for name in new}
        whole = {name: f for name, f in self._whole.items() if name in names}
        mixing = {name: f for name, f in chosen.items() if self._no_mean[name]}
        return {name: f for name, f in chosen.items() if name not in mixing}, OnWholeSets(whole, mixing)


def packed(examples: Batch, frozen: Params, dtype: Any) -> PackedClients:
    """One client's examples on the device; how many steps it takes is put in where it takes any."""
    count = len(jax.tree.leaves(examples)[0])
    offset, counts, steps = (jnp.asarray(np.full(1, n, np.int32)) for n in (0, count, 0))
    return PackedClients(on_device(examples, dtype), offset, counts, steps, on_device(frozen, dtype))


def _count(function: Any, count: float) -> float:
    """What a metric is a mean over, as `PartMetrics` has it."""
    if not hasattr(function, "of_sums"):
        return round(count)
    # a mean of values of several clients is no value of all, unless the function says what they count for
    return _NO_COUNT if count and getattr(function, "size", None) is None else count


def held_out(validation: Batch, training: FederatedData) -> Batch:
    """Validation examples as arrays, of the fields of the training examples and with their order of columns."""
    given, examples = FederatedData.from_clients([validation], ["the validation examples"]), training.examples
    arrays = given.in_order(training.columns, "validation").examples
    shapes = [jax.tree.map(lambda a: (a.shape[1:], a.dtype.kind), x) for x in (arrays, examples)]
    if shapes[0] != shapes[1]:
        raise InvalidInput(
            f"the validation examples have fields {shown(shapes[0])}, the training examples {shown(shapes[1])} "
            "(shape of one, kind): give both the same"
        )
    return arrays


def client_validation(task: Task, client: int) -> Batch | None:
    """The validation examples of a task that are this client's; None if it has none."""
    if task.validation is None or task.validation_clients is None:
        return None
    rows = np.flatnonzero(task.validation_clients == client)
    return jax.tree.map(lambda a: np.asarray(a)[rows], task.validation) if len(rows) else None
