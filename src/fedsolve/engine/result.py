"""The result of a run: the model and its record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedsolve.core.errors import InvalidInput, check_path, is_integer, shown
from fedsolve.core.fleets import Timeline
from fedsolve.core.types import Params
from fedsolve.engine.evaluation.client_models import ClientModels
from fedsolve.engine.outcomes.stored_task import StoredTask, facts_of
from fedsolve.report.figures import waiting
from fedsolve.report.records import Records
from fedsolve.results.history import History
from fedsolve.results.record_files import write_failure, write_record
from fedsolve.results.sweep import SUMMARY
from fedsolve.tasks.inference import Inference

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Result(Records):
    """A finished run; a notebook shows it as a table with a small curve.

    Attributes:
        params: the final model, with the structure in which the task's parameters were given; None of a run that
            diverged.
        history: the whole record: settings, evaluations, rounds, times, notes.
        buffers: what the model keeps beside its parameters (`Task.buffers`), None if it keeps nothing.
        inference: how the model predicts (`Task.inference`), or what builds its task when it is needed, of a result
            that was loaded; None of a deployment's.
        timeline: its updates on the clock of its fleet; None without one, and of a result that was loaded.
        client_models: the clients' own models of a method that keeps one for each; None of any other, True of a result
            that was loaded without them.
        failure: why the run diverged, '' if it did not; only runs beside others are returned all the same.
    """

    params: Params
    history: History
    buffers: Any = None
    inference: Inference | StoredTask | None = None
    timeline: Timeline | None = field(default=None, repr=False, compare=False)
    client_models: ClientModels | Literal[True] | None = field(default=None, repr=False, compare=False)
    failure: str = ""

    def __repr__(self) -> str:
        return f"Result({self.history.words()})"

    @property
    def runs(self) -> tuple[Result, ...]:
        """The run itself, in a tuple, for code that works on several runs."""
        return (self,)

    @property
    def histories(self) -> tuple[History, ...]:
        """The record of the run, in a tuple."""
        return (self.history,)

    @property
    def label(self) -> str:
        """The method's name in tables."""
        return self.history.label

    def __len__(self) -> int:
        """One run."""
        return 1

    def __iter__(self) -> Iterator[Result]:
        """Itself alone, so that a loop over seeds takes one run too."""
        return iter(self.runs)

    def __getitem__(self, place: int) -> Result:
        """Itself at place 0, as `Seeds` have the run of each seed.

        Raises:
            InvalidInput: another place.
        """
        if not is_integer(place) or place not in (0, -1):
            raise InvalidInput(f"result[{shown(place)}]: {self.label} is one run: give 0")
        return self

    def final(self, metric: str) -> float:
        """A metric at the last evaluation; NaN if the run diverged.

        Args:
            metric: a column of `metrics`, such as `test_accuracy`.

        Returns:
            The value.

        Raises:
            InvalidInput: the run has no such metric (the nearest is named).
        """
        return self.history.final(metric)

    def predict(self, x: Any, *, scores: bool = False, client: int | None = None) -> Any:
        """Predict new inputs with the final model, or with a client's personal model.

        Args:
            x: inputs, arrays of shape (n, ...), a pandas DataFrame of numbers, or a pytree, as in `Task.predict`.
            scores: return the model's outputs (logits, margins) in place of labels.
            client: whose model, a number from 0, of a method whose clients have models of their own, such as FedPer
                and Ditto; None for any other method.

        Returns:
            NumPy arrays with a row for each input, as `Task.predict` returns them: labels of a classification, else
            the model's outputs.

        Raises:
            InvalidInput: inputs of another shape, a run that diverged, a result that knows no task, or a client where
                there is one model, or none where each client has one.
        """
        if self.failure:
            raise InvalidInput(f"{self.label} diverged and has no model: {self.failure}")
        if self.inference is None:
            raise InvalidInput(
                f"the result of {self.label} knows no task: use task.predict(result.params, x), or save it and "
                "give fs.load(folder, task=...)"
            )
        params, buffers = self._model_of(client)
        return self.inference.predict(params, x, buffers=buffers, scores=scores)

    def module(self, client: int | None = None) -> Any:
        """The trained model as a PyTorch module: a copy of the one given to `fs.tasks.from_torch`, with its buffers.

        Args:
            client: whose model, as in `predict`.

        Returns:
            What was given to `from_torch`, in evaluation mode or not as it was, with the trained parameters.

        Raises:
            InvalidInput: the task came from no module, or a loaded result was not given one.
        """
        if self.inference is None:
            raise InvalidInput(f"the result of {self.label} knows no task: give fs.load(folder, module=...)")
        params, buffers = self._model_of(client)
        return self.inference.module(params, buffers)

    def _model_of(self, client: int | None) -> tuple[Params, Any]:
        """The final model and its buffers, or those of a client."""
        own = self.client_models
        if client is None and own is None:
            return self.params, self.buffers
        if own is None:
            raise InvalidInput(
                f"client = {client!r}: {self.label} has one model for all clients, leave client out"
            )
        if own is True:
            raise InvalidInput(
                f"{self.label} has a model for each client, which are not stored: predict with the result of "
                "fs.run, or use task.predict(result.params, x), the server's model"
            )
        if client is None:
            raise InvalidInput(
                f"{self.label} has a model for each client: give client=0 to {own.count - 1}, or use "
                "task.predict(result.params, x), the server's model"
            )
        return own(client)

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """Evaluations as columns, each of shape (evaluations,): round, train_loss, test_accuracy, ..."""
        return self.history.evaluations

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks and warnings of the run, as its page shows them."""
        return self.history.notes

    @property
    def rounds(self) -> dict[str, np.ndarray]:
        """The log of every round as columns: server_lr, participants, dropped, bytes_up, bytes_down, ..."""
        return self.history.rounds

    def plot_fleet(self) -> Figure:
        """Plot the first client tasks in simulated time: download, training, upload and waiting.

        Returns:
            A figure of matplotlib, time in seconds.

        Raises:
            InvalidInput: the run has no simulated time, or matplotlib is not installed.
        """
        if self.timeline is None:
            raise InvalidInput(
                "the run has no simulated time: give fs.run systems, such as systems = 'stragglers'"
            )
        return waiting(self.timeline)

    def save(self, folder: str | Path) -> Path:
        """Save the result to a new folder: `history.json`, `metrics.jsonl` and `model.safetensors`.

        The names of the model's leaves are their paths, such as `0.weight`. The files have checksums, and
        `fedsolve.load` reads them. Of a run that diverged there is no model, and `diverged.txt` says why.

        Args:
            folder: made if it is not there; files of a former result are replaced.

        Returns:
            The folder.

        Raises:
            InvalidInput: the folder cannot be written, or holds a sweep.
        """
        path = check_path("folder", folder)
        if (path / SUMMARY).exists():
            raise InvalidInput(f"{path} holds a sweep: choose another folder")
        if self.failure:
            write_failure(path, self.history, self.failure)
        else:
            about = facts_of(self.inference, self.client_models is not None)
            write_record(path, self.history, self.params, self.buffers, about)
        return path
