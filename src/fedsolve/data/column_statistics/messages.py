"""What is asked of the clients about one column, and what they reply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

LARGEST = 2.0**64
"""Numbers of this size and beyond are refused: their squares would not add up to something useful."""
_POWERS = 2.0 ** np.arange(-63, 65)
_SMALLEST = float(np.finfo(float).tiny)
MAGNITUDE_EDGES = np.concatenate([-_POWERS[::-1], [0.0, _SMALLEST], _POWERS])
"""Of the bins of the first round: [-2^64, -2^63), ..., [-2^-63, 0), zero, up to 2^-63, ..., [2^63, 2^64)."""
MOST_CATEGORIES = 100
"""Categories of a column that a client names, at most."""
LONGEST_CATEGORY = 64
"""Characters of a category's name, at most."""


@dataclass(frozen=True)
class FindRange:
    """How large the numbers of a column are, roughly, or which categories it has.

    Attributes:
        categorical: whether it has categories even if all of its cells are numbers.
    """

    categorical: bool = False


@dataclass(frozen=True)
class Measure:
    """Sums around a shift, and a histogram of equal bins.

    Attributes:
        shift: what is subtracted from each number.
        low, high: of the histogram, low < high.
        bins: between them.
    """

    shift: float
    low: float
    high: float
    bins: int

    @property
    def edges(self) -> np.ndarray:
        """Of the bins, with one for what is below `low` and one for what is above `high`, shape (bins + 3,)."""
        return np.concatenate([[-np.inf], np.linspace(self.low, self.high, self.bins + 1), [np.inf]])


@dataclass(frozen=True)
class CountCategories:
    """How many rows are of each of these categories."""

    categories: tuple[str, ...]


Request = FindRange | Measure | CountCategories


@dataclass(frozen=True)
class Magnitudes:
    """The reply to `FindRange` for a column of numbers.

    Attributes:
        rows: that have a number.
        missing: rows that have none.
        total: sum of the numbers.
        counts: rows in each of the bins of `MAGNITUDE_EDGES`; -1 for one that is joined to the bin before it.
    """

    rows: int
    missing: int
    total: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class CategoryNames:
    """The reply to `FindRange` for a column of categories: those that have enough rows at this client."""

    rows: int
    missing: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Sums:
    """The reply to `Measure`.

    Attributes:
        rows, missing: as in `Magnitudes`.
        total, squares: sums of the numbers minus the shift, and of their squares.
        counts: rows in each bin of `Measure.edges`; -1 as in `Magnitudes`.
    """

    rows: int
    missing: int
    total: float
    squares: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class CategoryCounts:
    """The reply to `CountCategories`: rows of each category, and last those of all others."""

    rows: int
    missing: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Refused:
    """Why a client gives no reply about a column."""

    reason: str


Reply = Magnitudes | CategoryNames | Sums | CategoryCounts | Refused
Replies = Mapping[str, Reply]
"""What one client replies, by column."""
