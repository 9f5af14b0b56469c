"""The record of a sweep: all settings and seeds by round, the criterion that chooses, and what it chose."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fedsolve.core.errors import Diverged, InvalidInput, check_integer, check_known
from fedsolve.core.metric_direction import check_recorded
from fedsolve.results.metrics import describe


@dataclass(frozen=True)
class Selection:
    """The mean of a metric over the last rounds; the least is best, of accuracies and the like the most.

    Attributes:
        metric: a column of the evaluations.
        last: evaluations of so many last rounds count; 1 is the last evaluation alone.

    >>> Selection("train_loss", 100)
    least train_loss, mean of the last 100 rounds
    """

    metric: str
    last: int

    def __post_init__(self) -> None:
        check_integer("last", self.last, 1)

    def __repr__(self) -> str:
        what = "most" if self.most else "least"
        return f"{what} {self.metric}, mean of the last {self.last} rounds"

    @classmethod
    def standard(cls, rounds: int) -> Selection:
        """What chooses where nothing is asked for: the training loss, its mean over the last tenth of the rounds."""
        return cls("train_loss", max(1, rounds // 10))

    def notes(self, rounds: int) -> tuple[str, ...]:
        """A remark where more than half of a run of so many rounds counts."""
        if self.last == 1 or 2 * self.last <= rounds:
            return ()
        return (
            f"the score averages {min(self.last, rounds)} of {rounds} rounds, more than half of the run: it prefers a "
            f"fast start to a good end; {self.metric}:{max(1, rounds // 10)} averages the last tenth",
        )

    def counted(self, rounds: np.ndarray) -> np.ndarray:
        """Which evaluations count, shape (evaluations,) of truths; `rounds` has that shape."""
        counted = rounds > rounds[-1] - self.last
        counted[0] &= len(rounds) == 1  # the initial model is no result
        return counted

    @property
    def most(self) -> bool:
        """Whether more is better."""
        return describe(self.metric).higher_is_better

    @property
    def worst(self) -> float:
        """The score of a setting that diverged."""
        return -np.inf if self.most else np.inf

    def score(self, rounds: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The score of each trial, the worst where a value is not finite.

        `rounds` has shape (evaluations,), `values` (..., evaluations), the result (...).
        """
        mean = values[..., self.counted(rounds)].mean(axis=-1)
        return np.where(np.isfinite(mean), mean, self.worst)

    @classmethod
    def parse(cls, text: str) -> Selection:
        """One of `SELECTIONS` by name, or `metric` or `metric:last`.

        Raises:
            InvalidInput: what follows the colon is not a number of rounds.
        """
        if text in SELECTIONS:
            return SELECTIONS[text]
        metric, colon, last = text.partition(":")
        if colon and not last.isdecimal():
            raise InvalidInput(
                f"selection '{text}': '{last}' must be a number of last rounds, as in {metric}:100"
            )
        return cls(metric, int(last) if colon else 1)

    def check(self, metrics: Mapping[str, np.ndarray]) -> None:
        """Raise `InvalidInput` unless the metric is among those evaluated."""
        check_recorded("the selection", self.metric, metrics)


SELECTIONS = {
    "training-loss": Selection("train_loss", 100),
    "validation-accuracy": Selection("validation_accuracy", 5),
    "recovery-error": Selection("recovery_error", 100),
    "f1": Selection("f1", 100),
}
"""The rules of the papers: Reddi et al. 2021 (training loss of the last 100 rounds), Takakura et al. 2025
(validation accuracy of the last 5), Yuan et al. 2021 (recovery error or F1 score of the last 100)."""


SENT = "bytes_up"
"""The setting that tells the bytes which a client sends in a round; None where messages differ in length."""


@dataclass(frozen=True, eq=False, repr=False)
class SweepRecord:
    """A finished sweep of one method.

    `fs.sweep` returns it as `Sweep`, which documents the attributes and adds tables and plots.
    """

    label: str
    task: str
    grid: Mapping[str, tuple[Any, ...]]
    seeds: tuple[int, ...]
    rounds: np.ndarray
    metrics: Mapping[str, np.ndarray]
    diverged: np.ndarray
    selection: Selection
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Values of each axis."""
        return tuple(len(values) for values in self.grid.values())

    def __repr__(self) -> str:
        axes = " x ".join(f"{len(values)} {axis}" for axis, values in self.grid.items()) or "one setting"
        return f"Sweep({self.label} on {self.task}: {axes}, {len(self.seeds)} seeds, {int(self.rounds[-1])} rounds)"

    @cached_property
    def points(self) -> list[dict[str, Any]]:
        """The settings in order."""
        return [
            dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())
        ]

    @cached_property
    def scores(self) -> np.ndarray:
        """The selection's score of each trial, shape (settings, seeds); the worst (infinite) where it diverged."""
        scores = self.selection.score(self.rounds, self.metrics[self.selection.metric])
        return np.where(self.diverged < 0, scores, self.selection.worst)

    @cached_property
    def score(self) -> np.ndarray:
        """The mean score of each setting over the seeds, shape (settings,); the worst if one seed diverged."""
        return self.scores.mean(axis=1)

    @property
    def best(self) -> int:
        """The number of the best setting; of several as good the first.

        Raises:
            Diverged: all settings diverged.
        """
        score = -self.score if self.selection.most else self.score
        if not np.isfinite(score).any():
            raise Diverged(self._all_diverged())
        return int(np.argmin(score))

    @property
    def best_settings(self) -> dict[str, Any]:
        """The grid's values at the best setting."""
        return self.points[self.best]

    def share_within(self, share: float = 0.05) -> float:
        """The share of the grid whose score is within `share` (5 %) of the best's: how easy it is to tune."""
        best = self.score[self.best]
        room = share * abs(best)
        good = self.score >= best - room if self.selection.most else self.score <= best + room
        return float(np.mean(good))

    def matrix(self, x: str, y: str) -> np.ndarray:
        """Scores over two axes, the best over all others, shape (values of y, values of x)."""
        names = list(self.grid)
        for name in (x, y):
            check_known("axis of the sweep", name, names)
        others = tuple(i for i, name in enumerate(names) if name not in (x, y))
        scores = self._best_over(others)
        return scores if names.index(y) < names.index(x) else scores.T

    def best_over_grid(self, axis: str) -> np.ndarray:
        """The best score over all other axes at each value of one, shape (values,)."""
        names = list(self.grid)
        check_known("axis of the sweep", axis, names)
        return self._best_over(tuple(i for i, name in enumerate(names) if name != axis))

    def curve(self, setting: int, metric: str) -> np.ndarray:
        """A metric of one setting by seed and evaluation, shape (seeds, evaluations)."""
        check_known("metric of the sweep", metric, self.metrics)
        return self.metrics[metric][setting]

    def _best_over(self, axes: tuple[int, ...]) -> np.ndarray:
        scores = self.score.reshape(self.shape)
        return (scores.max if self.selection.most else scores.min)(axis=axes)

    def _all_diverged(self) -> str:
        def smallest(values: tuple[Any, ...]) -> str:
            numbers = [v for v in values if isinstance(v, int | float)]
            return f"{min(numbers):g}" if numbers else str(values[0])

        what = f"all {math.prod(self.shape)} settings of {self.label} diverged"
        start = self.metrics["train_loss"][..., 0] if "train_loss" in self.metrics else np.zeros(1)
        if not np.isfinite(start).any():
            return (
                f"{what}: the training loss of the initial model is {start.flat[0]} already: look at the data, the "
                "loss and the initial model"
            )
        rates = {
            n: v for n, v in self.grid.items() if n.rpartition(".")[2].endswith(("lr", "eta", "eta_max"))
        }
        if not rates:
            return f"{what}; no axis ({', '.join(self.grid)}) is a rate: look at the data, the loss and the rates"
        tried = ", ".join(f"{name} = {smallest(values)}" for name, values in rates.items())
        return f"{what}; the smallest tried were {tried}: try smaller ones"
