"""Rules that turn numbers of the Frank-Wolfe experiments into verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsolve.studies.experiment import Verdict


def by_wins(ours: int, theirs: int) -> Verdict:
    """Reproduced with at least as many wins as published, partly with at least half as many.

    >>> by_wins(8, 8), by_wins(4, 8), by_wins(3, 8)
    ('reproduced', 'partly', 'not reproduced')
    """
    if ours >= theirs:
        return "reproduced"
    return "partly" if 2 * ours >= theirs else "not reproduced"


def by_order(values: Sequence[float] | np.ndarray) -> Verdict:
    """Whether values increase: at every step reproduced, only from first to last partly.

    >>> by_order([1, 2, 3]), by_order([1, 3, 2]), by_order([2, 3, 1])
    ('reproduced', 'partly', 'not reproduced')
    """
    found = np.asarray(values, float)
    if (np.diff(found) > 0).all():
        return "reproduced"
    return "partly" if found[-1] > found[0] else "not reproduced"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Reproduced if all are; not reproduced if none is, even partly; else partly.

    >>> together(["reproduced", "partly"]), together(["not reproduced"])
    ('partly', 'not reproduced')
    """
    if all(v == "reproduced" for v in verdicts):
        return "reproduced"
    return "not reproduced" if all(v == "not reproduced" for v in verdicts) else "partly"


def by_slope(slope: float, rate: float, tolerance: float = 0.02) -> Verdict:
    """A measured slope against a bound t^-rate: at least as steep (to a tolerance for the fit) reproduces it.

    Partly: at least three quarters as steep, as a bound that other terms still dominate would look.

    >>> by_slope(-0.9, 0.5), by_slope(-0.49, 0.5), by_slope(-0.4, 0.5), by_slope(-0.2, 0.5)
    ('reproduced', 'reproduced', 'partly', 'not reproduced')
    """
    if slope <= -rate + tolerance:
        return "reproduced"
    return "partly" if slope <= -0.75 * rate else "not reproduced"


def slope(x: np.ndarray, y: np.ndarray, start: float, stop: float, points: int = 25) -> float:
    """The least-squares slope of log y against log x on [start, stop], at points spread evenly in log x.

    >>> t = np.arange(1, 10_001)
    >>> round(slope(t, 3.0 / np.sqrt(t), 100, 10_000), 6)
    -0.5
    """
    keep = (x >= start) & (x <= stop) & np.isfinite(y) & (y > 0)
    if keep.sum() < 2:
        return float("nan")
    at, value = np.log(x[keep]), np.log(y[keep])
    grid = np.linspace(at[0], at[-1], points)
    return float(np.polyfit(grid, np.interp(grid, at, value), 1)[0])
