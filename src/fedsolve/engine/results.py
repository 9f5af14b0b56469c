"""Results: of one run, of several seeds, and of several methods by label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from fedsolve.core.errors import Diverged, InvalidInput, check_path, is_integer, shown, unknown
from fedsolve.core.fleets import Timeline
from fedsolve.core.types import Params
from fedsolve.engine.evaluation.client_metrics import ClientModels
from fedsolve.engine.stored_task import StoredTask, model_metadata
from fedsolve.report.figures import waiting
from fedsolve.report.paired import Differences, differences
from fedsolve.report.records import Records
from fedsolve.results.history import History, group_by_seed, same_columns
from fedsolve.results.record_files import (
    HISTORY,
    SUMMARY,
    method_folders,
    seed_folder,
    stacked_leaves,
    write_failure,
    write_record,
)
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
        return (self.history,)

    @property
    def label(self) -> str:
        """The method's name in tables."""
        return self.history.label

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Result]:
        """Itself alone, so that a loop over seeds takes one run too."""
        return iter(self.runs)

    def __getitem__(self, place: int) -> Result:
        """Itself at place 0, as `Seeds` have the run of each seed; `InvalidInput` at another place."""
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

    def save_adapter(self, folder: str | Path, client: int | None = None) -> Path:
        """Save what training changed of a PyTorch module as an adapter that `peft.PeftModel.from_pretrained` reads.

        PEFT saves its own adapter. Else each matrix's change is written as a product B A of least rank, as `LowRank`
        with "both" and "A" makes it, and whatever else changed whole.

        Args:
            folder: made if it is not there; `adapter_config.json` and `adapter_model.safetensors` are replaced.
            client: whose model, as in `predict`.

        Returns:
            The folder.

        Raises:
            InvalidInput: no matrix changed by a product smaller than itself, as after "stack"; an embedding changed
                that is the output's matrix too; the task came from no module.
        """
        from fedsolve.pytorch.language_models import save_adapter

        path, after, how = check_path("folder", folder), self.module(client), cast(Inference, self.inference)
        before = cast(Any, how.to_module).args[0]  # `trained_copy` of the initial module
        save_adapter(path, getattr(before, "unwrapped", before), after)
        return path

    def _model_of(self, client: int | None) -> tuple[Params, Any]:
        # the final model and its buffers, or those of a client
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
            about = model_metadata(self.inference, self.client_models is not None)
            write_record(path, self.history, self.params, self.buffers, about)
        return path


# Several finished runs, and those of one method with several seeds.


class Several(Records):
    """Finished runs that are shown together."""

    runs: Any  # the finished runs: a field of Seeds, a property of Results

    @property
    def histories(self) -> tuple[History, ...]:
        return tuple(run.history for run in self.runs)

    @property
    def failures(self) -> tuple[str, ...]:
        """Why runs diverged, a line for each that did."""
        several = {m.history.label for m in group_by_seed(self.histories) if m.several}
        lines = []
        for run in self.runs:
            name, seed = run.history.label, run.history.settings.get("seed")
            if run.failure:
                lines.append(
                    f"{name}, seed {seed}: {run.failure}" if name in several else f"{name}: {run.failure}"
                )
        return tuple(lines)

    def check_alive(self) -> None:
        """Raise `Diverged` if all runs diverged, as the first did."""
        if all(run.failure for run in self.runs):
            raise Diverged(self.runs[0].failure, self.runs[0].history)


@dataclass(frozen=True, repr=False)
class Seeds(Several):
    """The finished runs of one method with several seeds; `seeds[i]` is the run at place `i`.

    What a `Result` has, it has with a leading axis of seeds. A notebook shows it as a table.

    Attributes:
        runs: one for each seed, in order.

    Raises:
        InvalidInput: no runs, or runs that differ in more than the seed.
    """

    runs: tuple[Result, ...]

    def __post_init__(self) -> None:
        wrong = [run for run in self.runs if not isinstance(run, Result)]
        if wrong or not self.runs:
            raise no_result(wrong[0] if wrong else ())
        object.__setattr__(self, "runs", tuple(self.runs))
        if len(group_by_seed(self.histories)) > 1:
            raise not_seeds(self.histories[0].label)

    def __repr__(self) -> str:
        return f"Seeds({self.label} x {len(self)} on {self.runs[0].history.task})"

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.runs)

    def __getitem__(self, place: int) -> Result:
        """The run at a place, counted from 0, or from the end if it is negative; `InvalidInput` if there is none."""
        if not is_integer(place) or not -len(self) <= place < len(self):
            raise InvalidInput(
                f"seeds[{shown(place)}]: {self.label} has {len(self)} runs: give 0 to {len(self) - 1}"
            )
        return self.runs[place]

    @property
    def label(self) -> str:
        """The method's name in tables."""
        return self.runs[0].history.label

    @property
    def seeds(self) -> tuple[Any, ...]:
        """The seed of each run."""
        return tuple(h.settings.get("seed") for h in self.histories)

    def final(self, metric: str) -> np.ndarray:
        """A metric at each run's last evaluation, shape (seeds,); NaN where a run diverged.

        Args:
            metric: a column of the runs' evaluations, such as `test_accuracy`.

        Returns:
            The values, shape (seeds,).

        Raises:
            InvalidInput: a run has no such metric (the nearest is named).
        """
        return np.array([h.final(metric) for h in self.histories])

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """Evaluations as columns, each of shape (seeds, evaluations), NaN after a run has ended."""
        return same_columns([h.evaluations for h in self.histories])

    @property
    def rounds(self) -> dict[str, np.ndarray]:
        """The log of every round as columns, each of shape (seeds, rounds), NaN after a run has ended."""
        return same_columns([h.rounds for h in self.histories])

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks and warnings of the runs, each once."""
        return tuple(dict.fromkeys(note for h in self.histories for note in h.notes))

    @property
    def params(self) -> Params:
        """The final models as one, each array with a leading axis of seeds.

        Raises:
            InvalidInput: a run diverged, and has no model.
        """
        return self._stacked([run.params for run in self.runs])

    @property
    def buffers(self) -> Any:
        """The models' buffers, with a leading axis of seeds; None without buffers.

        Raises:
            InvalidInput: a run diverged, and has no model.
        """
        given = [run.buffers for run in self.runs]
        return None if all(b is None for b in given) else self._stacked(given)

    def _stacked(self, trees: Sequence[Any]) -> Any:
        for seed, run in zip(self.seeds, self.runs, strict=True):
            if run.failure:
                raise InvalidInput(
                    f"{self.label} diverged with seed {seed} and has no model there: take the models of the others, "
                    "such as seeds[0].params"
                )
        return stacked_leaves(trees)

    def predict(self, x: Any, *, scores: bool = False) -> Any:
        """Predict inputs with the final models of all seeds.

        Args:
            x: inputs, as in `Result.predict`.
            scores: return the models' outputs (logits, margins) in place of labels.

        Returns:
            Predictions with a leading axis of seeds.

        Raises:
            InvalidInput: as in `Result.predict`, also for methods whose clients have personal models.
        """
        return stacked_leaves([run.predict(x, scores=scores) for run in self.runs])

    def save(self, folder: str | Path) -> Path:
        """Save each run to a subfolder `seed-S`; `fedsolve.load` reads all of them, or one.

        Args:
            folder: made if it is not there.

        Returns:
            The folder.

        Raises:
            InvalidInput: the folder cannot be written, or holds other results.
        """
        seeds = [
            seed_folder(Path(folder), run.history.settings.get("seed", i)) for i, run in enumerate(self.runs)
        ]
        check_replaces(Path(folder), seeds)
        for run, inside in zip(self.runs, seeds, strict=True):
            run.save(inside)
        return Path(folder)


def check_replaces(folder: Path, folders: Sequence[Path]) -> None:
    """Raise `InvalidInput` if a folder holds results besides those in some folders of it, which `load` would mix in."""
    for path in sorted(folder.glob("*")):
        is_result = path.name in (HISTORY, SUMMARY) or any(
            next(path.glob(pattern), None)
            for pattern in (HISTORY, f"{seed_folder(path, '*').name}/{HISTORY}")
        )
        if is_result and path not in folders:
            raise InvalidInput(f"{folder} holds another result, {path.name}: choose another folder")


def no_result(given: object) -> InvalidInput:
    return InvalidInput(f"runs = {shown(given)} must be results of fs.run, at least one")


def not_seeds(label: str) -> InvalidInput:
    return InvalidInput(
        f"two results are called {label} and are not seeds of one method: "
        "give each run a label, such as fs.run(..., label='slow')"
    )


# The finished runs of several methods, by label.


@dataclass(frozen=True, repr=False, init=False)
class Results(Several):
    """The finished runs of several methods; `results["FedAvg"]` is that method's `Result` or `Seeds`.

    Tables and plots show the seeds of a method as one: the mean, with ± the sample standard deviation (n - 1).

    Attributes:
        methods: the `Result` or `Seeds` of each method, in order.
        notes: on all of them together, such as that the methods minimise different objectives.

    Raises:
        InvalidInput: no runs, what is none, or two methods under one label.
    """

    methods: tuple[Result | Seeds, ...]
    notes: tuple[str, ...] = ()

    def __init__(self, methods: Sequence[Result | Seeds | Results], notes: Sequence[str] = ()) -> None:
        """Results side by side: of `fs.run`, `fs.compare` and `fs.load`; runs that differ in seeds are one method."""
        given = [methods] if isinstance(methods, Result | Several) else list(methods)
        parts = [part for x in given for part in (x.methods if isinstance(x, Results) else (x,))]
        by_label: dict[str, list[Result | Seeds]] = {}
        for part in parts:
            if not isinstance(part, Result | Seeds):
                raise no_result(part)
            by_label.setdefault(part.label, []).append(part)
        if not by_label:
            raise no_result(())
        object.__setattr__(self, "methods", tuple(_one_method(found) for found in by_label.values()))
        object.__setattr__(self, "notes", tuple(notes))

    def __repr__(self) -> str:
        methods = ", ".join(f"{m.label} x {len(m.runs)}" for m in self.methods)
        return f"Results({methods} on {self.runs[0].history.task})"

    @property
    def runs(self) -> tuple[Result, ...]:
        """All runs, method by method and seed by seed."""
        return tuple(run for method in self.methods for run in method.runs)

    @property
    def labels(self) -> tuple[str, ...]:
        """The methods' names."""
        return tuple(method.label for method in self.methods)

    def __len__(self) -> int:
        return len(self.methods)

    def __iter__(self) -> Iterator[str]:
        return iter(self.labels)

    def items(self) -> Iterator[tuple[str, Result | Seeds]]:
        """The label and the `Result` or `Seeds` of each method.

        Returns:
            An iterator of pairs (label, result), in order.
        """
        return iter(zip(self.labels, self.methods, strict=True))

    def __getitem__(self, label: str) -> Result | Seeds:
        """The `Result` or the `Seeds` of one method; `InvalidInput` names the nearest label if there is none."""
        if not isinstance(label, str):
            raise InvalidInput(
                f"results[{shown(label)}]: give the label of a method: {', '.join(map(repr, self.labels))}"
            )
        if label not in self.labels:
            raise unknown("method", label, self.labels)
        return self.methods[self.labels.index(label)]

    def final(self, metric: str) -> dict[str, Any]:
        """A metric at the last evaluation, by method: a number, or an array of shape (seeds,) for several seeds.

        Args:
            metric: a column of the runs' evaluations, such as `test_accuracy`.

        Returns:
            A value or an array by label.

        Raises:
            InvalidInput: a run has no such metric (the nearest is named).
        """
        return {label: method.final(metric) for label, method in self.items()}

    def compare_to(self, against: str, metric: str) -> Differences:
        """The difference of each method to one of them in a final metric, paired by seed.

        Args:
            against: the label of the method that the others are compared with.
            metric: a column of the evaluations, such as `test_accuracy`, or `accuracy` for the test's.

        Returns:
            A table of mean differences, intervals that hold together at 95 % (Student's t, Bonferroni), and with five
            seeds or more p-values of paired t-tests with Holm's correction; with `frame` and `to_latex`.

        Raises:
            InvalidInput: no such method or metric (the nearest is named), or no seed that all methods have.
        """
        return differences(self.histories, against, metric)

    @property
    def metrics(self) -> dict[str, dict[str, np.ndarray]]:
        """Evaluations as columns, by method; with a leading axis of seeds where there are several."""
        return {label: method.metrics for label, method in self.items()}

    @property
    def rounds(self) -> dict[str, dict[str, np.ndarray]]:
        """The log of every round as columns, by method; with a leading axis of seeds where there are several."""
        return {label: method.rounds for label, method in self.items()}

    @property
    def params(self) -> dict[str, Params]:
        """The final models by method, with a leading axis of seeds where there are several.

        Raises:
            InvalidInput: one of several seeds diverged, and has no model.
        """
        return {label: method.params for label, method in self.items()}

    def predict(self, x: Any, *, scores: bool = False) -> dict[str, np.ndarray]:
        """Predict inputs with the final models of all methods.

        Args:
            x: inputs, as in `Result.predict`.
            scores: return the models' outputs (logits, margins) in place of labels.

        Returns:
            Predictions by label, with a leading axis of seeds where there are several.

        Raises:
            InvalidInput: as in `Result.predict`, also for methods whose clients have personal models.
        """
        return {label: method.predict(x, scores=scores) for label, method in self.items()}

    def save(self, folder: str | Path) -> Path:
        """Save each method to a subfolder, with a folder `seed-S` for each of several seeds.

        `fedsolve.load` reads all of them, one method, or one run.

        Args:
            folder: made if it is not there.

        Returns:
            The folder.

        Raises:
            InvalidInput: the folder cannot be written, or holds other results.
        """
        folders = method_folders(Path(folder), self.labels)
        check_replaces(Path(folder), folders)
        for method, inside in zip(self.methods, folders, strict=True):
            method.save(inside)
        return Path(folder)


def _one_method(found: Sequence[Result | Seeds]) -> Result | Seeds:
    # what has one label: it, or its runs as seeds of one method
    if len(found) == 1:
        return found[0]
    runs = tuple(run for part in found for run in part.runs)
    if len(group_by_seed([run.history for run in runs])) > 1:
        raise not_seeds(runs[0].history.label)
    return Seeds(runs)
