"""Rules and pictures of `feddua-dimension`: rounds to a share of the starting loss, slopes in d, shares of bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from experiments.feddua.feddua_dimension.dimension_problems import CLIENT_LR, STEPS
from experiments.margins import margin
from fedsolve.studies import Cells, Decision, Study
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.pictures import Line, Panel, Panelled
from fedsolve.studies.rules import Interval, alike, around, decided, elsewhere, interval, rule

TARGET = margin("feddua-dimension", "target")
NEAR_TARGET = (0.3, TARGET, 0.03)
MARGIN = margin("feddua-dimension", "none")
"""Of a slope of log rounds by log d that counts as none."""
BAR = margin("feddua-dimension", "growth")
NEAR_BAR = (BAR / 2, BAR, 2 * BAR)
"""Of a slope that counts as growth: rounds that grow as the root of d; the paper's bound grows as d."""
Series = Mapping[int, str]
"""Dimension -> problem."""


def rounds_to(cells: Cells, problem: str, method: str, share: float = TARGET) -> np.ndarray:
    """The first round at which the loss has this share of its start, (data sets,); NaN where it never has."""
    rounds, loss = cells.curve(problem, method)
    reached = loss <= share * loss[:, :1]
    return np.where(reached.any(axis=1), rounds[reached.argmax(axis=1)], np.nan)


def slope(cells: Cells, series: Series, method: str, share: float = TARGET) -> Interval:
    """Of log rounds by log d, by least squares for each data set: its mean, with an interval."""
    rounds = np.stack([rounds_to(cells, problem, method, share) for problem in series.values()])
    return (
        interval(np.polyfit(np.log(list(series)), np.log(rounds), 1)[0])
        if np.isfinite(rounds).all()
        else _UNKNOWN
    )


_UNKNOWN = Interval(np.nan, -np.inf, np.inf)


def _found(cells: Cells, series: Series, method: str) -> str:
    """The rounds at the least and the largest dimension, and the slope."""
    ends = {d: rounds_to(cells, problem, method).mean() for d, problem in series.items()}
    words = ", ".join(f"{rounds:.0f} at d = {d:,}" for d, rounds in ends.items())
    others = ", ".join(
        f"{slope(cells, series, method, share):.2f} to {share:g}" for share in NEAR_TARGET if share != TARGET
    )
    return f"slope {slope(cells, series, method):.3f}; mean rounds {words}; slope of the rounds {others} of the start"


_WHY = "95 % interval over data sets of the slope of log rounds by log d"


@rule
def free_of_dimension(cells: Cells, series: Series, method: str) -> Decision:
    """The slope lies within `MARGIN` of 0 as a whole."""
    one = slope(cells, series, method)
    given: dict[float, Verdict] = {margin: alike(one.low, one.high, margin) for margin in around(MARGIN)}
    return Decision(
        _found(cells, series, method), given[MARGIN], f"{_WHY}; within {MARGIN:g}; {elsewhere(given, MARGIN)}"
    )


@rule
def grows(cells: Cells, series: Series, method: str) -> Decision:
    """The slope lies above `BAR` as a whole."""
    one = slope(cells, series, method)
    given: dict[float, Verdict] = {bar: decided(one, bar) for bar in NEAR_BAR}
    return Decision(
        _found(cells, series, method), given[BAR], f"{_WHY}; above {BAR:g}; {elsewhere(given, BAR)}"
    )


@rule
def sooner_at(cells: Cells, problem: str, a: str, b: str) -> Decision:
    """`a` needs fewer rounds than `b`."""
    ours, theirs = (rounds_to(cells, problem, name) for name in (a, b))
    ratio = interval(np.log(theirs / ours))
    words = f"{b} needs {ratio.factor.text('.2f', 'times the rounds')}: {theirs.mean():.0f} against {ours.mean():.0f}"
    return Decision(words, decided(ratio, 0.0), "95 % interval of the ratio over data sets, paired")


def _weighted(cells: Cells, problem: str, method: str) -> tuple[np.ndarray, np.ndarray]:
    """After T = 1, 2, ... rounds: the mean of F(w_t) by eta_g, and K eta_l times the sum of eta_g; (data sets, T)."""
    loss = cells.curve(problem, method)[1][:, :-1]
    rates = cells.curve(problem, method, metric="server_lr")[1][:, 1:]
    total = rates.cumsum(axis=1)
    return (rates * loss).cumsum(axis=1) / total, STEPS * CLIENT_LR * total


def _share_of(
    cells: Cells, every: Mapping[str, Series], methods: Sequence[str], terms: Callable[[str, str], np.ndarray]
) -> Decision:
    """The largest share of 3 `terms` / (K eta_l sum of eta_g) of any data set, dimension and T: above 1 refutes."""
    worst = {}
    for method in methods:
        for series in every.values():
            for problem in series.values():
                mean, steps = _weighted(cells, problem, method)
                worst[f"{method}, {problem}"] = float((mean / (3 * terms(problem, method) / steps)).max())
    most = max(worst, key=worst.__getitem__)
    count = len(cells.seeds) * len(worst)
    return Decision(
        f"at most {worst[most]:.2g} of the bound ({most})",
        "refuted" if worst[most] > 1 else "consistent",
        f"the largest share of {count} runs at any of their rounds; refuted by one above 1",
    )


@rule
def theorem(cells: Cells, every: Mapping[str, Series], methods: Sequence[str]) -> Decision:
    """The weighted mean of F(w_t) is within Theorem 4.3's bound at every T."""
    return _share_of(cells, every, methods, lambda p, m: cells.curve(p, m, metric="divergences")[1][:, 1:])


@rule
def corollary(cells: Cells, every: Mapping[str, Series], method: str) -> Decision:
    """And within Corollary 4.4's, with D the largest |w_t - w*|_inf so far."""

    def terms(problem: str, name: str) -> np.ndarray:
        distance, trace = (
            cells.curve(problem, name, metric=metric)[1][:, 1:] for metric in ("distance", "trace")
        )
        return distance**2 * trace / 2

    return _share_of(cells, every, (method,), terms)


def by_dimension(caption: str, every: Mapping[str, Series]) -> Panelled:
    """Rounds by dimension: a panel for each kind of inputs."""

    def rows(study: Study, cells: Cells) -> list[list[Panel]]:
        found = []
        for title, series in every.items():
            there = {d: p for d, p in series.items() if p in cells.problems} or {
                1: next(iter(cells.problems))
            }
            lines = [
                Line(
                    m,
                    np.array(list(there)),
                    np.stack([rounds_to(cells, p, m) for p in there.values()], axis=1),
                )
                for m in cells.methods(next(iter(there.values())))
            ]
            reached = any(np.isfinite(line.y).all() for line in lines)
            label = f"rounds to {TARGET:g} of the start"
            found.append(Panel(title, lines, label, "dimension d", ylog=reached, xlog=reached, marks=True))
        return [found]

    return Panelled(caption, rows)


def curves(caption: str, every: Mapping[str, Series], dimensions: Sequence[int]) -> Panelled:
    """The loss by round at some dimensions, a row for each kind of inputs."""

    def rows(study: Study, cells: Cells) -> list[list[Panel]]:
        problems = [[series[d] for d in dimensions] for series in every.values()]
        there = [row for row in problems if row[0] in cells.problems] or [[next(iter(cells.problems))]]
        return [[_loss(cells, problem) for problem in row] for row in there]

    return Panelled(caption, rows)


def _loss(cells: Cells, problem: str) -> Panel:
    found = {method: cells.curve(problem, method) for method in cells.methods(problem)}
    lines = [Line(method, rounds, loss / loss[:, :1]) for method, (rounds, loss) in found.items()]
    return Panel(cells.problem(problem).title, lines, "loss over that at the start")
