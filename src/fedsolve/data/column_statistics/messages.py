"""What is asked of the clients about one column, and what they reply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

LARGEST = 2.0**64
"""Numbers of this size and beyond are refused: their squares would not add up to something useful."""
BINS = 100
"""Of a histogram, between its ends, where no other number is asked for."""
MOST_BINS = 4096
"""Of a histogram, between its ends."""
MOST_CATEGORIES = 100
"""Categories of a column that a client names, at most."""
LONGEST_CATEGORY = 64
"""Characters of a category's name, at most."""


@dataclass(frozen=True)
class Describe:
    """Mean, deviation and ends of a column of numbers, or the rows of each category.

    Attributes:
        categorical: whether it has categories even if all of its cells are numbers.
    """

    categorical: bool = False


@dataclass(frozen=True)
class Measure:
    """Mean and deviation of a column of numbers, and a histogram of equal bins in place of its ends.

    Attributes:
        low, high: of the histogram, low < high.
        bins: between them.
    """

    low: float
    high: float
    bins: int = BINS

    @property
    def edges(self) -> np.ndarray:
        """Of the bins, with one for what is below `low` and one for what is above `high`, shape (bins + 3,)."""
        return np.concatenate([[-np.inf], np.linspace(self.low, self.high, self.bins + 1), [np.inf]])


Request = Describe | Measure


@dataclass(frozen=True)
class Numbers:
    """The reply about a column of numbers.

    Attributes:
        rows: that have a number.
        missing: rows that have none.
        mean, rest: of the numbers, and what its rounding left out.
        squares: sum of their squared distances from the mean.
        ends: the smallest and the largest, rounded outwards; empty in a reply to `Measure`.
        counts: rows in each bin of `Measure.edges`; -1 for one that is joined to the bin before it. Empty in a reply to
            `Describe`.
    """

    rows: int
    missing: int
    mean: float
    rest: float
    squares: float
    ends: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Categories:
    """The reply about a column of categories: the names of those that have enough rows at this client, and their rows.

    Attributes:
        rows, missing: as in `Numbers`.
        names, counts: of each category, in order.
    """

    rows: int
    missing: int
    names: tuple[str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Refused:
    """Why a client gives no reply about a column."""

    reason: str


Reply = Numbers | Categories | Refused
Replies = Mapping[str, Reply]
"""What one client replies, by column."""
