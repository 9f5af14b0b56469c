"""What a study's runs found, a cell for each problem and method, and the questions that studies ask of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy.stats import norm, rankdata

from fedsolve.core.errors import InvalidInput, check_known, unknown
from fedsolve.results.intervals import Interval, interval, tail
from fedsolve.results.sweep import SENT, SweepRecord
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.problem import Problem


def chance(shares: Iterable[float], tested: int, comparisons: int = 1) -> float:
    """Half the width of an interval for what the draw of the test examples does to a difference, at most.

    A mean of numbers in [0, 1] over the examples, such as an accuracy, varies most where each is 0 or 1. Two of
    them vary together where methods err on the same examples, as they do, so that the sum of their variances is
    more than that of the difference, which would take the predictions themselves to know.

    Args:
        shares: the two means, in [0, 1], each over the same examples and averaged over seeds or not.
        tested: test examples, at least 1.
        comparisons: that share the 5 %.

    >>> round(chance((0.98, 0.97), 359), 4)  # more than two points of 359 digits
    0.0228
    """
    variance = sum(share * (1 - share) for share in shares) / tested
    return float(norm.ppf(1 - tail(comparisons)) * np.sqrt(variance))


def intervals(values: Mapping[str, np.ndarray]) -> dict[str, Interval]:
    """Of several comparisons, which share the 5 %."""
    return {name: interval(one, len(values)) for name, one in values.items()}


def correlation(pairs: Iterable[tuple[np.ndarray, np.ndarray]], comparisons: int = 1) -> Interval:
    """Spearman's correlation of two series, found for each replicate: its mean, with an interval within -1 and 1."""
    mean, low, high = interval(np.array([rank_correlation(x, y) for x, y in pairs]), comparisons)
    return Interval(mean, max(low, -1.0), min(high, 1.0))


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's; 0 where one is constant or has fewer than two values."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(rankdata(x), rankdata(y))[0, 1])


def listed(intervals_by_name: Mapping[str, Interval], form: str) -> str:
    """Each with its name, such as 'FedAdam 2 [1.5, 2.5], FedYogi 3 [2, 4]'."""
    return ", ".join(f"{name} {one:{form}}" for name, one in intervals_by_name.items())


def decided(interval: Interval, bar: float, side: int = 1) -> Verdict:
    """Whether the whole interval lies above a bar, or (side -1) below it; one that holds the bar decides nothing."""
    if interval.low <= bar <= interval.high or np.isnan(interval.low + interval.high):
        return "underpowered"
    return "reproduced" if (interval.low > bar) == (side > 0) else "not reproduced"


def beyond(named: Iterable[tuple[str, Interval]], bar: float, side: int = 1) -> tuple[Verdict, str]:
    """The verdict that all of several intervals lie above a bar, or (side -1) below it, and which do if some do."""
    return combined([(name, decided(one, bar, side)) for name, one in named])


def combined(verdicts: Sequence[tuple[str, Verdict]]) -> tuple[Verdict, str]:
    """The verdict on several that are claimed together, and which hold if some do."""
    holds = [name for name, verdict in verdicts if verdict == "reproduced"]
    fails = [name for name, verdict in verdicts if verdict == "not reproduced"]
    if len(holds) == len(verdicts):
        return "reproduced", ""
    if not holds:
        return ("not reproduced" if fails else "underpowered"), ""
    contrary = f", the contrary in {len(fails)} ({', '.join(fails)})" if fails else ""
    return "partly", f": it holds in {len(holds)} of {len(verdicts)} ({', '.join(holds)}){contrary}"


def alike(low: float, high: float, margin: float) -> Verdict:
    """Whether an interval lies within `margin` of 0 as a whole; one that lies beyond it as a whole does not."""
    if -margin <= low and high <= margin:
        return "reproduced"
    return "not reproduced" if low > margin or high < -margin else "underpowered"


def around(margin: float) -> tuple[float, float, float]:
    """A margin that is ours, between its half and its double, at which verdicts are shown too."""
    return margin / 2, margin, 2 * margin


def around_factor(factor: float) -> tuple[float, ...]:
    """The same of a factor above 1: of what it exceeds 1 by.

    >>> around_factor(2.0)
    (1.5, 2.0, 3.0)
    """
    return tuple(1 + by for by in around(factor - 1))


def elsewhere(given: Mapping[float, Verdict], bar: float) -> str:
    """The verdicts at the neighbours of a bar that is ours: 'at 0.5: underpowered, 2: reproduced'."""
    return "at " + ", ".join(f"{other:g}: {verdict}" for other, verdict in given.items() if other != bar)


SettingKind = Literal["published", "tuned"]
_EXPLODED = 10.0
"""A run whose training loss ends at so many times its start has diverged, though its numbers are finite."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One method on one problem: its published setting and its tuned one with all seeds, and the grid.

    Each is None where there was none; `tuned` too if all of the grid diverged.
    """

    published: SweepRecord | None
    grid: SweepRecord | None
    tuned: SweepRecord | None

    def of(self, which: SettingKind) -> SweepRecord | None:
        """The published setting, or the tuned one; where a method has but one, that."""
        if which == "published":
            return self.published if self.published is not None or self.grid is not None else self.tuned
        return self.tuned if self.grid is not None else self.published

    @cached_property
    def chosen(self) -> dict[str, Any]:
        """The tuned setting; the published one where nothing was tuned."""
        one = self.of("tuned")
        return {} if one is None else one.points[0]

    @property
    def edges(self) -> list[str]:
        """The axes of the grid, of three values or more, at whose first or last value the chosen setting lies."""
        # Of an axis whose values are settings drawn at random, tuples of numbers: whether one is the least or most
        # drawn.
        if self.grid is None or self.tuned is None:
            return []
        return [
            axis
            for axis, values in self.grid.grid.items()
            if len(values) > 2 and _at_edge(self.chosen[axis], values)
        ]


@dataclass(frozen=True, eq=False)
class Cells:
    """All cells of a study that has run.

    Attributes:
        problems: by name.
        seeds: of the published and the tuned settings.
        by_name: (problem, method) -> cell.
        sharing: rules that are evaluated together, and have equal parts of the 5 %.
    """

    problems: Mapping[str, Problem]
    seeds: tuple[int, ...]
    by_name: Mapping[tuple[str, str], Cell]
    sharing: int = 1

    def changed(self, change: Callable[[SweepRecord], SweepRecord]) -> Cells:
        """The same with all that is shown changed, and the grids as they are."""

        def one(cell: Cell) -> Cell:
            shown = (None if run is None else change(run) for run in (cell.published, cell.tuned))
            return replace(cell, **dict(zip(("published", "tuned"), shown, strict=True)))

        return replace(self, by_name={key: one(cell) for key, cell in self.by_name.items()})

    def interval(self, problem: str, values: np.ndarray, comparisons: int = 1) -> Interval:
        """Of the mean over a problem's seeds: as wide as their overlap asks, one of several that share the 5 %."""
        return interval(values, comparisons * self.sharing, self.problem(problem).overlap)

    def problem(self, name: str) -> Problem:
        check_known("problem of the study", name, self.problems)
        return self.problems[name]

    def cell(self, problem: str, method: str) -> Cell:
        self.problem(problem)
        if (problem, method) not in self.by_name:
            raise unknown(f"method on {problem}", method, [m for p, m in self.by_name if p == problem])
        return self.by_name[problem, method]

    def methods(self, problem: str) -> list[str]:
        return [m for p, m in self.by_name if p == problem]

    def curve(
        self, problem: str, method: str, which: SettingKind = "tuned", metric: str | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rounds of the evaluations, (evaluations,), and a metric, (seeds, evaluations): NaN once diverged."""
        sweep = self.cell(problem, method).of(which)
        if sweep is None:
            return np.zeros(1), np.full((len(self.seeds), 1), np.nan)
        name = metric or self.problem(problem).metric
        check_known(f"metric of {problem}", name, sweep.metrics)
        lost = (sweep.diverged[0] >= 0) | exploded(sweep)[0]
        values = sweep.curve(0, name).copy()
        values[lost, -1] = np.nan
        return sweep.rounds, values

    def sent(self, problem: str, method: str, which: SettingKind = "tuned") -> np.ndarray:
        """Bytes that a client which takes part in every round has sent up at each evaluation, (evaluations,)."""
        sweep = self.cell(problem, method).of(which)
        if sweep is None:
            return np.zeros(1)
        if SENT not in sweep.settings:
            raise InvalidInput(f"{method} on {problem} has kept no bytes of its messages: draw it by round")
        return sweep.rounds * sweep.settings[SENT]

    def final(
        self, problem: str, method: str, which: SettingKind = "tuned", metric: str | None = None
    ) -> np.ndarray:
        """A metric at the end, the mean over the problem's last rounds, (seeds,): NaN where a seed diverged."""
        rounds, values = self.curve(problem, method, which, metric)
        counted = rounds > rounds[-1] - self.problem(problem).last
        return values[:, counted].mean(axis=1)

    def collapsed(self, problem: str, method: str, which: SettingKind = "tuned") -> np.ndarray:
        """The seeds whose test accuracy rose by less than half of what the median seed's did, (seeds,) of bool."""
        # They are counted and shown apart from the mean: it lies where no seed ends. None of another metric, or of
        # seeds with data of their own, whose ends may differ so much.
        asked = self.problem(problem)
        end = self.final(problem, method, which)
        if asked.metric != "test_accuracy" or asked.data_by_seed:
            return np.zeros(len(end), bool)
        gain = end - self.curve(problem, method, which)[1][:, 0]
        median = np.nanmedian(gain) if np.isfinite(gain).any() else 0.0
        return (gain < median / 2) & (median > 0)


def _at_edge(chosen: Any, values: tuple[Any, ...]) -> bool:
    if not isinstance(chosen, tuple):  # words have no order
        return chosen in (values[0], values[-1]) and all(isinstance(v, int | float) for v in values)
    columns = zip(*values, strict=True)
    return any(number in (min(tried), max(tried)) for number, tried in zip(chosen, columns, strict=True))


def exploded(sweep: SweepRecord) -> np.ndarray:
    """Which trials end with ten times the training loss they began with, shape (settings, seeds)."""
    loss = sweep.metrics.get("train_loss")
    if loss is None:
        return np.zeros(sweep.diverged.shape, bool)
    return ~(loss[..., -1] <= _EXPLODED * loss[..., 0])


def ends(sweep: SweepRecord, metric: str, last: int) -> np.ndarray:
    """A metric of each trial, the mean over the last rounds, shape (settings, seeds); NaN where it diverged."""
    counted = sweep.rounds > sweep.rounds[-1] - last
    lost = (sweep.diverged >= 0) | exploded(sweep)
    return np.where(lost, np.nan, sweep.metrics[metric][..., counted].mean(axis=-1))
