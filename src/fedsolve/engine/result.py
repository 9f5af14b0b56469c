"""What a run returns: the model and its record; and several runs together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsolve.core.checks import check_path
from fedsolve.core.errors import Diverged, InvalidInput, shown, unknown
from fedsolve.core.fleets.timeline import Timeline
from fedsolve.core.types import Params
from fedsolve.engine.compute.keys import start_params
from fedsolve.report.fleet import waiting
from fedsolve.report.plots import curves
from fedsolve.report.records import Records
from fedsolve.report.table import headline
from fedsolve.results.history import History
from fedsolve.results.record_files import (
    MODEL,
    like,
    method_folders,
    read_result,
    seed_folder,
    write_failure,
    write_record,
)
from fedsolve.results.seeds import over_seeds
from fedsolve.tasks.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def load(folder: str | Path, task: Task | None = None) -> Result:
    """The result in a folder: of `Result.save`, of `fedsolve run`, or of one method of `fedsolve compare`.

    Args:
        folder: it.
        task: that of the run, for the model's structure and for `Result.module`. Without it the model is a dict from
            the paths of its leaves, such as `0.weight`, to NumPy arrays.

    Returns:
        The record and the model of the run. Without `task` its `params` are that dict, and `Result.module` is
        refused. Files without checksums, as they were once written, are read with a note in the record.

    Raises:
        InvalidInput: a file is missing or is not as it was written (it is named), or the model is not the task's (the
            first difference is named).
    """
    path = check_path("folder", folder)
    if task is not None and not isinstance(task, Task):
        raise InvalidInput(f"task = {shown(task)} must be a fedsolve.Task or None")
    history, params, buffers = read_result(path)
    if task is None:
        return Result(params, history, buffers)
    given = task.assemble(start_params(task, 0, np.float32))
    if (buffers is None) != (task.buffers is None):
        has = "has no" if buffers is None else "has"
        raise InvalidInput(
            f"{path / MODEL} {has} buffers, unlike the task {task.name}: it is of another task or model"
        )
    restored = None if buffers is None else like(buffers, task.buffers, str(path / MODEL))
    return Result(like(params, given, str(path / MODEL)), history, restored, task.module)


class Finished(Records):
    """One finished run or several."""

    runs: Any  # the finished runs: a field of Results, a property of Result

    @property
    def histories(self) -> tuple[History, ...]:
        """The record of each run."""
        return tuple(run.history for run in self.runs)

    def compare(self, *others: Result | Results) -> Results:
        """It and others side by side, in one table and one plot; runs that differ in the seed alone are one method.

        Raises:
            InvalidInput: what is no result, or two methods under one label.
        """
        for other in others:
            if not isinstance(other, Finished):
                raise InvalidInput(f"{shown(other)} is no result of fs.run or fs.compare")
        return Results(tuple(run for finished in (self, *others) for run in finished.runs))


@dataclass(frozen=True, repr=False)
class Result(Finished):
    """A finished run; a notebook shows it as a table with a small curve.

    Attributes:
        params: the final model, with the structure in which the task's parameters were given; None of a run that
            diverged.
        history: the whole record: settings, evaluations, rounds, times, notes.
        buffers: what the model keeps beside its parameters (`Task.buffers`), None if it keeps nothing.
        make: what `module` calls (`Task.module`); None where the model is its parameters.
        timeline: its updates on the clock of its fleet; None without one, and of a result that was loaded.
        failure: why the run diverged, '' if it did not; only runs beside others are returned all the same.
    """

    params: Params
    history: History
    buffers: Any = None
    make: Callable[[Params, Any], Any] | None = None
    timeline: Timeline | None = field(default=None, repr=False, compare=False)
    failure: str = ""

    def __repr__(self) -> str:
        return f"Result({self.history.words()})"

    @property
    def runs(self) -> tuple[Result, ...]:
        """Itself, as what takes several runs has them."""
        return (self,)

    def module(self) -> Any:
        """The trained model as the module that `fs.tasks.from_torch` was given: a copy, its buffers included.

        Returns:
            What was given to `from_torch`, in evaluation mode or not as it was, with the trained parameters.

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

    def plot(self, metric: str = "loss", x: str = "round") -> Figure:
        """A metric over rounds; "loss" shows train_loss, validation_loss and test_loss together, and so on.

        Args:
            metric: a column of `metrics` or of `rounds`, or what follows `train_`, `validation_` and `test_`.
            x: `round`, `seconds` of the machine, `megabytes` sent, or `time`, the fleet's; of a column of `rounds`
                `round` alone.

        Returns:
            A figure of matplotlib, which a notebook shows.

        Raises:
            InvalidInput: no such metric (the nearest is named), no such x, or matplotlib is not installed.
        """
        parts = [p for p in ("train", "validation", "test") if f"{p}_{metric}" in self.metrics]
        if not parts or metric in self.metrics:
            return curves([self.history], metric, x=x)
        title = f"{metric.capitalize()} of {self.history.label}"
        return curves([self._part(p, metric) for p in parts], metric, title, x)

    def plot_fleet(self) -> Figure:
        """Who waits for whom: the first tasks on the clock, from the model's way down to the end of their round.

        Returns:
            A figure of matplotlib, time in seconds.

        Raises:
            InvalidInput: the run was on no clock, or matplotlib is not installed.
        """
        if self.timeline is None:
            raise InvalidInput("the run was on no clock: give fs.run systems, such as systems = 'stragglers'")
        return waiting(self.timeline)

    def save(self, folder: str | Path) -> Path:
        """Keep it in a folder, which is made: `history.json`, `metrics.jsonl` and `model.safetensors`.

        The names of the model's leaves are their paths, such as `0.weight`. The files have checksums, and
        `fedsolve.load` reads them. Of a run that diverged there is no model, and `diverged.txt` says why.

        Args:
            folder: made if it is not there; files of a former result are replaced.

        Returns:
            The folder.

        Raises:
            InvalidInput: the folder cannot be written.
        """
        path = check_path("folder", folder)
        if self.failure:
            write_failure(path, self.history, self.failure)
        else:
            write_record(path, self.history, self.params, self.buffers)
        return path

    def _part(self, part: str, metric: str) -> History:
        columns = self.metrics | {metric: self.metrics[f"{part}_{metric}"]}
        return dataclasses.replace(self.history, label=part, evaluations=columns)


@dataclass(frozen=True, repr=False)
class Results(Finished):
    """Finished runs side by side: of one method with several seeds, or of several methods.

    Tables and plots show runs that differ in the seed alone as one method: the mean, with ± the standard deviation
    over seeds in tables and the range of the seeds as a band in plots.

    Attributes:
        runs: one for each method and seed.
        notes: on all of them together, such as that the methods minimise different objectives.

    Raises:
        InvalidInput: no runs, what is none, or two methods under one label.
    """

    runs: tuple[Result, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(self.runs))
        wrong = [run for run in self.runs if not isinstance(run, Result)]
        if wrong or not self.runs:
            raise InvalidInput(
                f"runs = {shown(wrong[0]) if wrong else '()'} must be results of fs.run, at least one"
            )
        labels = [method.history.label for method in over_seeds(self.histories)]
        for label in labels:
            if labels.count(label) > 1:
                raise InvalidInput(
                    f"two results are called {label} and are not seeds of one method: "
                    "give each run a label, such as fs.run(..., label='slow')"
                )

    def __repr__(self) -> str:
        methods = ", ".join(f"{m.history.label} x {len(m.runs)}" for m in over_seeds(self.histories))
        return f"Results({methods} on {self.runs[0].history.task})"

    @property
    def labels(self) -> tuple[str, ...]:
        """The methods' names."""
        return tuple(dict.fromkeys(h.label for h in self.histories))

    def __getitem__(self, label: str) -> Results:
        """The runs of one method.

        Raises:
            InvalidInput: there is none of that name (the nearest is named).
        """
        if label not in self.labels:
            raise unknown("method", str(label), self.labels)
        return Results(tuple(run for run in self.runs if run.history.label == label))

    def final(self, metric: str) -> dict[str, np.ndarray]:
        """A metric at each run's last evaluation, by method, each of shape (seeds,); NaN where a run diverged.

        Args:
            metric: a column of the runs' evaluations, such as `test_accuracy`.

        Returns:
            Values by the methods' labels.

        Raises:
            InvalidInput: a run has no such metric (the nearest is named).
        """
        return {x: np.array([h.final(metric) for h in self[x].histories]) for x in self.labels}

    def plot(self, metric: str | None = None, x: str = "round") -> Figure:
        """A metric over rounds, a line a method with the range over its seeds as a band; by default test accuracy.

        Where no run has a test accuracy, the test loss (or else the training loss) is the default.

        Args:
            metric: a column of the runs' evaluations, or of their rounds, such as `server_lr`; None for the default.
            x: as in `Result.plot`.

        Returns:
            A figure of matplotlib, which a notebook shows.

        Raises:
            InvalidInput: no such metric (the nearest is named), no such x, or matplotlib is not installed.
        """
        return curves(self.histories, metric or headline(self.histories), x=x)

    def save(self, folder: str | Path) -> Path:
        """Keep each run in a folder of its own inside: `METHOD` and, where it has several seeds, `seed-S`.

        With one method, which has several seeds, the folder is itself that of the method. `fedsolve.load` reads each.

        Args:
            folder: made if it is not there.

        Returns:
            The folder.

        Raises:
            InvalidInput: the folder cannot be written.
        """
        path = Path(folder)
        folders = method_folders(path, self.labels) if len(self.labels) > 1 else [path]
        for label, inside in zip(self.labels, folders, strict=True):
            runs = self[label].runs
            for i, run in enumerate(runs):
                seed = run.history.settings.get("seed", i)
                run.save(seed_folder(inside, seed) if len(runs) > 1 or len(self.labels) == 1 else inside)
        return path

    @property
    def failures(self) -> tuple[str, ...]:
        """Why runs diverged, a line for each that did."""
        return tuple(
            f"{name}: {run.failure}" for name, run in zip(self._names, self.runs, strict=True) if run.failure
        )

    @property
    def _names(self) -> list[str]:
        several = {m.history.label for m in over_seeds(self.histories) if m.several}
        return [
            f"{h.label}, seed {h.settings['seed']}" if h.label in several else h.label for h in self.histories
        ]

    def check_alive(self) -> None:
        """Raise `Diverged` if all runs diverged, as the first did."""
        if all(run.failure for run in self.runs):
            raise Diverged(self.runs[0].failure, self.runs[0].history)
