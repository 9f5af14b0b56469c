"""Rules that turn numbers of `fedli-convex` into verdicts, and the record that they read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedsolve.studies.experiment import Verdict

Curves = dict[tuple[str, str, str, str], dict[str, np.ndarray]]
TOLERANCE = 1e-12
"""A rise of F by less, relative to it, is rounding."""
FLOOR = 1e-11
"""F - F* below this is rounding: no slopes are fitted there."""
PAR = 1.02
"""At par: a loss of at most so many times the other's."""


@dataclass
class Found:
    """All that was run: curves by (data set, kind, method, regime), minimisers and grids by (data set, kind)."""

    rounds: int
    long: int
    clients: int
    examples: int = 0
    smooth: dict[tuple[str, str], float] = field(default_factory=dict)
    convex: Curves = field(default_factory=dict)
    strong: Curves = field(default_factory=dict)
    minimiser: dict[tuple[str, str], dict[str, np.ndarray]] = field(default_factory=dict)
    tuned: dict[tuple[str, str, str], dict[str, np.ndarray]] = field(default_factory=dict)


def rises(values: np.ndarray) -> int:
    """Rounds after which F is larger.

    >>> rises(np.array([3.0, 2.0, 2.5, 1.0, 1.0]))
    1
    """
    return int((np.diff(values) > TOLERANCE * np.abs(values[:-1])).sum())


def by_kind(holds: Mapping[str, bool]) -> Verdict:
    """Reproduced if it holds everywhere (for all kinds of clients), partly somewhere, not reproduced nowhere.

    >>> by_kind({"identical": True, "unequal": False})
    'partly'
    """
    if all(holds.values()):
        return "reproduced"
    return "partly" if any(holds.values()) else "not reproduced"


def fit(values: np.ndarray) -> tuple[float, float, bool]:
    """Slope of log(F - F*) a round above the floor, the least F - F*, and whether the rate is kept.

    Kept: F - F* falls to the floor, or its slope over the second half of the rounds is at least half the first's.

    >>> fit(np.exp(-0.1 * np.arange(50)))[2], fit(np.exp(-0.1 * np.arange(50)) + 0.1)[2]
    (True, False)
    """
    under = np.flatnonzero(values <= FLOOR)
    stop = int(under[0]) if len(under) else len(values)
    log = np.log(values[:stop])
    middle = stop // 2

    def slope(part: np.ndarray) -> float:
        return float(np.polyfit(np.arange(len(part)), part, 1)[0]) if len(part) > 1 else float("-inf")

    kept = bool(len(under)) or slope(log[middle:]) <= 0.5 * slope(log[: middle + 1]) < 0
    return slope(log), float(values.min()), kept


def last(curve: np.ndarray) -> float:
    """The mean of the last fifth."""
    return float(np.mean(curve[-max(1, len(curve) // 5) :]))


def by_share(share: float) -> Verdict:
    """Whether gamma adapts: below 1 in half of the rounds reproduced, in a tenth partly."""
    return "reproduced" if share >= 0.5 else "partly" if share >= 0.1 else "not reproduced"


def names(found: Found) -> Iterable[str]:
    """The data sets in order."""
    return dict.fromkeys(d for d, _ in found.smooth)
