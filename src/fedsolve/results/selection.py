"""How the best setting of a sweep is chosen: one named rule, the same for every setting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsolve.core.checks import check_integer
from fedsolve.core.errors import InvalidInput, unknown
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
        counted = rounds > rounds[-1] - self.last
        counted[0] &= len(rounds) == 1  # the initial model is no result
        mean = values[..., counted].mean(axis=-1)
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

    def check(self, metrics: dict[str, np.ndarray]) -> None:
        """Raise `InvalidInput` unless the metric is among those evaluated."""
        if self.metric not in metrics:
            raise unknown("metric of the selection", self.metric, metrics)


SELECTIONS = {
    "training-loss": Selection("train_loss", 100),
    "validation-accuracy": Selection("validation_accuracy", 5),
    "recovery-error": Selection("recovery_error", 100),
    "f1": Selection("f1", 100),
}
"""The rules of the papers: Reddi et al. 2021 (training loss of the last 100 rounds), Takakura et al. 2025
(validation accuracy of the last 5), Yuan et al. 2021 (recovery error or F1 score of the last 100)."""
