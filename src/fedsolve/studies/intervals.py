"""Student's intervals of means over seeds: how they are written, what they decide against a bar and near it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import norm, rankdata
from scipy.stats import t as student

from fedsolve.studies.experiment import Verdict

LEVEL = 0.95
"""Of the intervals; several in one rule share it (Bonferroni), rules taken `together` have each its own."""


class Interval(NamedTuple):
    """A mean with the ends of its interval, infinite where nothing is known; `f"{found:.3g}"` is '2 [1.5, 2.5]'."""

    mean: float
    low: float
    high: float

    @property
    def factor(self) -> Interval:
        """Of a mean of logarithms: the geometric mean and its ends."""
        return Interval(*(float(x) for x in np.exp(self)))

    def text(self, form: str, unit: str = "") -> str:
        """In words: a sign that the format asks for stands at the mean alone, and the unit after it."""
        ends = form.lstrip("+")
        return f"{self.mean:{form}}{unit and ' ' + unit} [{self.low:{ends}}, {self.high:{ends}}]"

    def __format__(self, form: str) -> str:
        """As `text`."""
        return self.text(form)


def interval(values: np.ndarray, comparisons: int = 1, overlap: float = 0.0) -> Interval:
    """The mean's, by Student's t; endless for a single value.

    Args:
        values: shape (replicates,).
        comparisons: that share the 5 %: the level is 1 - 0.05 / comparisons.
        overlap: test over training examples of splits of one data set, whose training sets overlap; 0 where replicates
            are independent. The variance of the mean is then so many variances larger (Nadeau and Bengio 2003, (9)).
    """
    mean = float(values.mean())
    if len(values) < 2:
        return Interval(mean, -np.inf, np.inf)
    quantile = student.ppf(1 - _tail(comparisons), len(values) - 1)
    half = float(quantile * values.std(ddof=1) * np.sqrt(1 / len(values) + overlap))
    return Interval(mean, mean - half, mean + half)


def _tail(comparisons: int) -> float:
    """What lies beyond either end of an interval that is one of several."""
    return (1 - LEVEL) / (2 * comparisons)


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
    return float(norm.ppf(1 - _tail(comparisons)) * np.sqrt(variance))


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
