"""Several finished runs, and those of one method with several seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.errors import Diverged, InvalidInput, is_integer, shown
from fedsolve.core.types import Params
from fedsolve.engine.result import Result
from fedsolve.report.records import Records
from fedsolve.results.history import History, over_seeds, same_columns
from fedsolve.results.record_files import HISTORY, seed_folder, stacked_leaves
from fedsolve.results.sweep import SUMMARY


class Several(Records):
    """Finished runs that are shown together."""

    runs: Any  # the finished runs: a field of Seeds, a property of Results

    @property
    def histories(self) -> tuple[History, ...]:
        """The record of each run."""
        return tuple(run.history for run in self.runs)

    @property
    def failures(self) -> tuple[str, ...]:
        """Why runs diverged, a line for each that did."""
        several = {m.history.label for m in over_seeds(self.histories) if m.several}
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
        object.__setattr__(self, "runs", _checked_runs(self.runs))
        if len(over_seeds(self.histories)) > 1:
            raise not_seeds(self.histories[0].label)

    def __repr__(self) -> str:
        return f"Seeds({self.label} x {len(self)} on {self.runs[0].history.task})"

    def __len__(self) -> int:
        """How many seeds there are."""
        return len(self.runs)

    def __iter__(self) -> Iterator[Result]:
        """The runs."""
        return iter(self.runs)

    def __getitem__(self, place: int) -> Result:
        """The run at a place, counted from 0, or from the end if it is negative.

        Raises:
            InvalidInput: there is no such run.
        """
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


def _checked_runs(runs: Sequence[Result]) -> tuple[Result, ...]:
    wrong = [run for run in runs if not isinstance(run, Result)]
    if wrong or not runs:
        raise no_result(wrong[0] if wrong else ())
    return tuple(runs)


def no_result(given: object) -> InvalidInput:
    """What to say of something that is no result."""
    return InvalidInput(f"runs = {shown(given)} must be results of fs.run, at least one")


def not_seeds(label: str) -> InvalidInput:
    """What to say of two results of one label that are not seeds of one method."""
    return InvalidInput(
        f"two results are called {label} and are not seeds of one method: "
        "give each run a label, such as fs.run(..., label='slow')"
    )
