"""Rules and pictures of `fw-rates`: shares of a bound, slopes on log-log axes, the smallest gap by the run's length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from experiments.fedfw.fw_rates.rate_problems import constants
from experiments.fedfw.theorems import Constants
from fedsolve.studies import Cells, Decision, Study
from fedsolve.studies.pictures import Line, Panel, Panelled
from fedsolve.studies.public import describe
from fedsolve.studies.rules import Difference, beyond, grade, interval, intervals, rule

FLOOR = 1e-12
"""F - F* below this is rounding."""
Bound = Callable[[Constants, Any], Any]
Series = Mapping[str, Mapping[int, str]]


@rule
def within(cells: Cells, problems: tuple[str, ...], bounds: Mapping[str, Bound]) -> Decision:
    """F - F* is within a method's bound at every evaluation after the start, by the interval over data sets."""
    shares = {}
    for problem in problems:
        for method, bound in bounds.items():
            rounds, apart = cells.curve(problem, method)
            most = bound(constants(cells, problem, method), rounds[1:])
            shares[f"{method} on {problem}"] = apart[:, 1:] / most
    return _held(shares, "F - F*")


@rule
def least(cells: Cells, series: Series, bounds: Mapping[str, Bound]) -> Decision:
    """The smallest gap of a run is within a method's bound at every T."""
    shares = {}
    for name, horizons in series.items():
        for method, bound in bounds.items():
            found = [
                smallest(cells, problem, method) / bound(constants(cells, problem, method), rounds)[:, 0]
                for rounds, problem in horizons.items()
            ]
            shares[f"{method}, {name}"] = np.stack(found, axis=1)
    return _held(shares, "the smallest gap")


def _held(shares: Mapping[str, np.ndarray], what: str) -> Decision:
    """Shares of the bounds, (data sets, points): refuted where one lies above 1 by the interval of its mean."""
    lows = {name: max(interval(column)[1] for column in found.T) for name, found in shares.items()}
    told = [f"{found.mean(axis=0).max():.2g} ({name})" for name, found in shares.items()]
    ours = f"{what} is at most this share of the bound, mean over data sets at the worst point: {', '.join(told)}"
    reason = "refuted by a share above 1 by the 95 % interval over data sets"
    return Decision(ours, "refuted" if max(lows.values()) > 1 else "consistent", reason)


def smallest(cells: Cells, problem: str, method: str) -> np.ndarray:
    """The smallest gap of a run, (data sets,)."""
    return cells.curve(problem, method, metric="gap")[1].min(axis=1)


@rule
def falls(cells: Cells, problems: tuple[str, ...], method: str, rate: float) -> Decision:
    """Slopes over the last decade of rounds are at most -rate, by their intervals over data sets together."""
    slopes = {}
    for problem in problems:
        rounds, apart = cells.curve(problem, method)
        slopes[problem] = np.array([slope(rounds, one) for one in apart])
    found = intervals(slopes)
    words = "; ".join(f"{problem} {one:.2f}" for problem, one in found.items())
    verdict, which = beyond(found.items(), -rate, -1)
    return Decision(
        f"slopes {words}", verdict, f"95 % intervals over data sets, all {len(problems)} together{which}"
    )


@rule
def nearer(cells: Cells, problems: tuple[str, ...], a: str, others: tuple[str, ...]) -> Decision:
    """F - F* of `a` ends below that of each of the others on every problem, by their ratio, in decades."""
    count, found = len(problems) * len(others), []
    for problem in problems:
        logs = {m: np.log10(np.maximum(cells.final(problem, m), FLOOR)) for m in (a, *others)}
        found += [Difference(a, f"{b} on {problem}", *interval(logs[b] - logs[a], count)) for b in others]
    verdict, where = grade(found)
    reason = f"95 % intervals over data sets of the ratio, all {count} together{where}"
    return Decision(f"decades of F - F* at the end: {'; '.join(d.words for d in found)}", verdict, reason)


def slope(rounds: np.ndarray, values: np.ndarray, points: int = 25) -> float:
    """The least-squares slope of log values against log rounds over the last decade, at points even in log rounds.

    Values that are rounding are left out; minus infinity where most of the decade is.

    >>> t = np.arange(0, 10_001, 10)
    >>> round(slope(t, 3.0 / np.sqrt(np.maximum(t, 1))), 6)
    -0.5
    """
    decade = rounds >= rounds[-1] / 10
    keep = decade & (values > FLOOR)
    if 2 * keep.sum() < decade.sum():
        return -np.inf
    at, found = np.log(rounds[keep]), np.log(values[keep])
    grid = np.linspace(at[0], at[-1], points)
    return float(np.polyfit(grid, np.interp(grid, at, found), 1)[0])


def by_round(caption: str, problems: tuple[str, ...], bound: Bound) -> Panelled:
    """F - F* by round on log-log axes, a panel a problem, with the bound of its first method."""

    def panel(cells: Cells, name: str) -> Panel:
        first, *_ = methods = cells.methods(name)
        curves = {m: cells.curve(name, m) for m in methods}
        lines = [Line(m, rounds[1:], values[:, 1:]) for m, (rounds, values) in curves.items()]
        rounds = curves[first][0][1:]
        if name in problems:
            lines.append(Line("bound", rounds, bound(constants(cells, name, first), rounds), reference=True))
        return Panel(name, lines, describe("suboptimality").label, xlog=True)

    def rows(study: Study, cells: Cells) -> list[list[Panel]]:
        names = [n for n in problems if n in cells.problems] or list(cells.problems)
        return [[panel(cells, name) for name in names]]

    return Panelled(caption, rows, 4.4, 3.6)


def by_length(caption: str, series: Series, bound: Bound) -> Panelled:
    """The smallest gap of a run by its length T, a panel a series of problems, with the bound of its first method."""

    def panel(cells: Cells, name: str, horizons: Mapping[int, str]) -> Panel:
        at, first = np.array(list(horizons)), next(iter(horizons.values()))
        lines = []
        for method in cells.methods(first):
            found = [smallest(cells, problem, method) for problem in horizons.values()]
            lines.append(Line(method, at, np.stack(found, axis=1)))
        known = constants(cells, first, lines[0].label)
        bounds = np.concatenate([bound(known, rounds) for rounds in horizons], axis=1)
        lines.append(Line("bound", at, bounds, reference=True))
        return Panel(name, lines, "Smallest gap of the run", "rounds T of the run", xlog=True, marks=True)

    def rows(study: Study, cells: Cells) -> list[list[Panel]]:
        there = {n: s for n, s in series.items() if set(s.values()) <= set(cells.problems)}
        return [[panel(cells, *one) for one in there.items()] or [Panel("", [], "")]]

    return Panelled(caption, rows, 4.4, 3.6)
