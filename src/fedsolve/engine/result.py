"""What a run returns: the model and its record."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsolve.errors import InvalidInput, unknown
from fedsolve.report.plots import curves
from fedsolve.results.history import History
from fedsolve.types import Params

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        params: the final model, with the structure in which the task's parameters were given.
        history: the whole record: settings, evaluations, rounds, times, notes.
        buffers: what the model keeps beside its parameters (`Task.buffers`), None if it keeps nothing.
        make: what `module` calls (`Task.module`); None where the model is its parameters.
    """

    params: Params
    history: History
    buffers: Any = None
    make: Callable[[Params, Any], Any] | None = field(default=None, repr=False)

    def module(self) -> Any:
        """The trained model as the module that `fs.tasks.from_torch` was given: a copy, its buffers included.

        Raises:
            InvalidInput: the task came from no module.
        """
        if self.make is None:
            raise InvalidInput(f"the model of {self.history.task} is no module: it is result.params itself")
        return self.make(self.params, self.buffers)

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """Evaluations as columns, each of shape (evaluations,): round, train_loss, test_accuracy, ..."""
        return self.history.evaluations

    @property
    def rounds(self) -> dict[str, np.ndarray]:
        """The log of every round as columns: server_lr, participants, dropped, bytes_up, bytes_down, ..."""
        return self.history.rounds

    def plot(self, metric: str = "loss") -> Figure:
        """A metric over rounds; "loss" shows train_loss and test_loss together, and so on.

        Raises:
            InvalidInput: no such metric (the nearest is named), or matplotlib is not installed.
        """
        if metric in self.metrics:
            return curves([self.history], metric)
        parts = [p for p in ("train", "test") if f"{p}_{metric}" in self.metrics]
        if not parts:
            raise unknown("metric", metric, self.metrics)
        title = f"{metric.capitalize()} of {self.history.label}"
        return curves([self._part(p, metric) for p in parts], metric, title)

    def _part(self, part: str, metric: str) -> History:
        columns = self.metrics | {metric: self.metrics[f"{part}_{metric}"]}
        return dataclasses.replace(self.history, label=part, evaluations=columns)
