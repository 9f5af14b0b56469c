"""The finished runs of several methods, by label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput, shown, unknown
from fedsolve.core.types import Params
from fedsolve.engine.outcomes.several_seeds import Seeds, Several, check_replaces, no_result, not_seeds
from fedsolve.engine.result import Result
from fedsolve.results.history import over_seeds
from fedsolve.results.record_files import method_folders


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
        """How many methods there are."""
        return len(self.methods)

    def __iter__(self) -> Iterator[str]:
        """The methods' labels."""
        return iter(self.labels)

    def items(self) -> Iterator[tuple[str, Result | Seeds]]:
        """The label and the `Result` or `Seeds` of each method.

        Returns:
            An iterator of pairs (label, result), in order.
        """
        return iter(zip(self.labels, self.methods, strict=True))

    def __getitem__(self, label: str) -> Result | Seeds:
        """The `Result` or the `Seeds` of one method.

        Raises:
            InvalidInput: there is none of that label (the nearest is named).
        """
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
    """What has one label: it, or its runs as seeds of one method."""
    if len(found) == 1:
        return found[0]
    runs = tuple(run for part in found for run in part.runs)
    if len(over_seeds([run.history for run in runs])) > 1:
        raise not_seeds(runs[0].history.label)
    return Seeds(runs)
