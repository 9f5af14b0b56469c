"""Methods at each client rate and at their best, on all data sets: which is lower, and the picture of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsolve.studies import Cells, Decision, Study
from fedsolve.studies.pictures import Line, Panel
from fedsolve.studies.rules import Interval, beyond, interval, mixed, rule

FLOOR = 1e-13
"""Excess losses below are rounding."""
LOSS = "log10 of the training loss"


def rates_of(cells: Cells, problem: str, method: str) -> tuple[float, ...]:
    """The client rates that were run; none in a quick run."""
    grid = cells.cell(problem, method).grid
    return () if grid is None else grid.grid["client_lr"]


def log_losses(cells: Cells, problem: str, method: str) -> np.ndarray:
    """log10 of the geometric mean of the training loss over the last rounds, (rates, data sets); inf where diverged."""
    grid = cells.cell(problem, method).grid
    if grid is None:  # a quick run
        return np.full((1, len(cells.seeds)), np.inf)
    losses = grid.metrics["train_loss"][..., grid.rounds > grid.rounds[-1] - cells.problem(problem).last]
    with np.errstate(invalid="ignore"):
        found = np.log10(np.maximum(losses, FLOOR)).mean(axis=-1)
    began = grid.metrics["train_loss"][..., 0]
    lost = (grid.diverged >= 0) | ~np.isfinite(found) | ~(losses.max(axis=-1) <= 10 * began)
    return np.where(lost, np.inf, found)


def at(cells: Cells, problem: str, method: str, rate: float | None) -> tuple[float, np.ndarray]:
    """The rate, or the best in the mean over the data sets, and the losses there."""
    rates, found = rates_of(cells, problem, method), log_losses(cells, problem, method)
    k = int(np.argmin(found.mean(axis=1))) if rate is None else rates.index(rate)
    return rates[k], found[k]


@rule
def lower(
    cells: Cells,
    problems: Sequence[str],
    a: str,
    others: Sequence[str],
    rate: float | None = None,
    over: str = "data sets",
) -> Decision:
    """On every problem `a` has a lower loss than each of the others, at a client rate or each at its best.

    A problem on which neither of two methods has learnt says nothing of them. Intervals are over `over`.
    """
    comparisons, words, given, edges = len(problems) * len(others), [], [], []
    for b in others:
        void = [p for p in problems if not (learnt(cells, p, a, rate) or learnt(cells, p, b, rate))]
        factors = {p: _ratio(cells, p, a, b, rate, comparisons) for p in problems if p not in void}
        verdict, which = beyond([(brief(p), one) for p, one in factors.items()], 0.0)
        given.append(
            "not learnt" if not factors else "partly" if void and verdict == "reproduced" else verdict
        )
        found = [Interval(*(10**end for end in one)) for one in factors.values() if np.isfinite(one.mean)]
        span = _span(found) or ("diverged" if factors else "unknown")
        beside = f"; neither has learnt in {', '.join(map(brief, void))}" if void else ""
        words.append(f"{b}'s loss over {a}'s {span}{which}{beside}")
        if rate is None:
            edges += [edge for p, one in factors.items() for edge in _edges(cells, p, a, b, one)]
    rates = "" if rate is not None else f"; best rates {_best(cells, problems, (a, *others))}"
    reason = (
        f"geometric means over the last rounds, 95 % intervals of their ratios over {over}, paired, all "
        f"{comparisons} together{rates}"
    )
    return Decision("; ".join(words), mixed(given), reason, "; ".join(dict.fromkeys(edges)))


def _span(found: Sequence[Interval]) -> str:
    """Factors in words: of one problem with its interval, of several the least and the greatest; "" of none."""
    if len(found) == 1:
        return found[0].text(".3g", "times")
    means = [one.mean for one in found]
    return f"{min(means):.3g} to {max(means):.3g} times" if found else ""


def learnt(cells: Cells, problem: str, method: str, rate: float | None) -> bool:
    """Whether the loss ends below the start's, and below the best constant prediction's, by the 95 % interval."""
    chosen, ends = at(cells, problem, method, rate)
    grid = cells.cell(problem, method).grid
    if grid is None or not np.isfinite(ends).all():
        return False
    start = np.log10(grid.metrics["train_loss"][rates_of(cells, problem, method).index(chosen), :, 0])
    bars = [start, *([np.log10(chance)] if (chance := cells.problem(problem).chance) else [])]
    return all(interval(ends - bar).high < 0 for bar in bars)


def _edges(cells: Cells, problem: str, a: str, b: str, ratio: Interval) -> list[str]:
    """Which best rates lie at an edge of the grid where a better one might change what is decided.

    On the regression the largest rate is near where local steps diverge: no more rates are to be tried.
    """
    tried = rates_of(cells, problem, a)
    open_ended = [] if problem.startswith("regression") else [tried[0], tried[-1]]
    moving = [name for name, ahead in ((a, ratio.low > 0), (b, ratio.high < 0)) if not ahead]
    found = {name: at(cells, problem, name, None)[0] for name in moving}
    where = f"lies at the edge of the grid on {brief(problem)}"
    return [
        f"{name}'s best client rate {best:g} {where}" for name, best in found.items() if best in open_ended
    ]


def _ratio(cells: Cells, problem: str, a: str, b: str, rate: float | None, comparisons: int) -> Interval:
    ours, theirs = (at(cells, problem, name, rate)[1] for name in (a, b))
    if not np.isfinite(ours).all() or not np.isfinite(theirs).all():
        worse = int(not np.isfinite(theirs).all()) - int(not np.isfinite(ours).all())
        end = np.inf * worse if worse else 0.0
        return Interval(end, end if worse else -np.inf, end if worse else np.inf)
    return interval(theirs - ours, comparisons)


def _best(cells: Cells, problems: Sequence[str], methods: Sequence[str]) -> str:
    found = {m: sorted({at(cells, p, m, None)[0] for p in problems}) for m in methods}
    return ", ".join(f"{m} {rates[0]:g} to {rates[-1]:g}" for m, rates in found.items())


def brief(problem: str) -> str:
    """A problem's name without commas.

    >>> brief("regression, residual, minibatches, half of the clients")
    'residual with minibatches of half of the clients'
    """
    on, batches, cohort = problem.rsplit(", ", 2)
    return f"{on.removeprefix('regression, ')} with {batches} of {cohort}"


def rows(study: Study, cells: Cells) -> list[list[Panel]]:
    """log10 of the loss by client rate, a panel a problem, four in a row."""
    tried = {name: [rates_of(cells, name, m) for m in cells.methods(name)] for name in cells.problems}
    names = [name for name, rates in tried.items() if rates and all(rates)]
    panels = []
    for name in names:
        lines = []
        for method in cells.methods(name):
            found = log_losses(cells, name, method)
            lines.append(
                Line(
                    method,
                    np.array(rates_of(cells, name, method)),
                    np.where(np.isfinite(found), found, np.nan).T,
                )
            )
        title = brief(name).replace(" with ", ", ", 1)
        panels.append(Panel(title, lines, LOSS, "client rate", ylog=False, xlog=True, marks=True))
    return [panels[k : k + 4] for k in range(0, len(panels), 4)] or [[Panel("", [], "")]]
