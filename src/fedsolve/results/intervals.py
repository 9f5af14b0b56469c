"""Student's intervals of means over seeds, and p-values of several comparisons: what studies and results decide by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

FEW = 5
"""Fewer seeds or data sets make a verdict provisional: Student's interval then hangs on their being normal."""
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
    from scipy.special import stdtrit  # of JAX's dependencies; not needed where nothing is compared

    quantile = stdtrit(len(values) - 1, 1 - tail(comparisons))
    half = float(quantile * values.std(ddof=1) * np.sqrt(1 / len(values) + overlap))
    return Interval(mean, mean - half, mean + half)


def tail(comparisons: int) -> float:
    # what lies beyond either end of an interval that is one of several
    return (1 - LEVEL) / (2 * comparisons)


def p_value(values: np.ndarray) -> float:
    """Of the t-test that a mean is 0, two-sided; of values that are not all alike, shape (replicates,), at least 2."""
    from scipy.special import stdtr

    count = len(values)
    return float(2 * stdtr(count - 1, -abs(values.mean()) * np.sqrt(count) / values.std(ddof=1)))


def holm(values: Sequence[float], sharing: int = 1) -> list[float]:
    """Holm's adjusted p-values of several tests, at most 1; `sharing` more rules have equal parts of the 5 %.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1) * sharing
    raised = np.minimum(np.maximum.accumulate(np.asarray(values)[order] * factors), 1.0)
    adjusted = np.empty(len(values))
    adjusted[order] = raised
    return adjusted.tolist()
