"""Ranks of several methods on several problems, edges of grids, tuning by a small budget, other views of a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import binomtest, rankdata, studentized_range
from scipy.stats import f as fisher

from fedsolve.core.errors import InvalidInput, check_known
from fedsolve.results.intervals import LEVEL, holm
from fedsolve.results.metrics import describe
from fedsolve.results.sweep import SweepRecord
from fedsolve.studies.cells import Cell, Cells, SettingKind, exploded
from fedsolve.studies.experiment import Verdict, until
from fedsolve.studies.problem import Method
from fedsolve.studies.rules.comparisons import Rule, mixed, not_learnt, rule
from fedsolve.studies.study import Decision, Statement

if TYPE_CHECKING:
    from fedsolve.core.algorithm import Algorithm

_DIGITS = 9
"""Significant digits by which losses are compared."""


@dataclass(frozen=True)
class Ranks:
    """Methods ranked on problems; 1 is best.

    Attributes:
        methods: of the rows, three or more.
        by_problem: shape (methods, problems), two problems or more; equal results share the mean of their places.
    """

    methods: tuple[str, ...]
    by_problem: np.ndarray

    def __post_init__(self) -> None:
        rows, columns = self.by_problem.shape
        if rows < 3 or columns < 2:
            raise InvalidInput(
                f"ranks of {rows} methods on {columns} problems say nothing: give three and two or more"
            )

    @property
    def mean(self) -> np.ndarray:
        return self.by_problem.mean(axis=1)

    def row(self, method: str) -> np.ndarray:
        check_known("method of the ranks", method, self.methods)
        return self.by_problem[self.methods.index(method)]

    def of(self, method: str) -> float:
        return float(self.row(method).mean())

    @property
    def chi_square(self) -> float:
        """Friedman's statistic, not corrected for ties, which errs on the side of no difference."""
        k, n = self.by_problem.shape
        return float(12 * n / (k * (k + 1)) * ((self.mean**2).sum() - k * (k + 1) ** 2 / 4))

    @property
    def p(self) -> float:
        """Of Friedman's test that all methods are alike, by Iman and Davenport's F."""
        k, n = self.by_problem.shape
        left = n * (k - 1) - self.chi_square
        # inf: the same order on all problems
        statistic = (n - 1) * self.chi_square / left if left > 1e-9 else np.inf
        return float(fisher.sf(statistic, k - 1, (k - 1) * (n - 1)))

    @property
    def alike(self) -> bool:
        """Whether Friedman's test finds no difference between any methods: then none between two is looked for."""
        return self.p >= 1 - LEVEL

    @property
    def critical_difference(self) -> float:
        """Nemenyi's: mean ranks that differ by less do not differ significantly, at 5 % for all pairs together."""
        k, n = self.by_problem.shape
        return float(studentized_range.ppf(LEVEL, k, np.inf) / np.sqrt(2) * np.sqrt(k * (k + 1) / (6 * n)))

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The largest sets of methods without a significant difference, best first; all, by Friedman's test."""
        order = np.argsort(self.mean, kind="stable")
        mean = self.mean[order]
        room = np.inf if self.alike else self.critical_difference
        ends = [int(np.searchsorted(mean, m + room, side="right")) for m in mean]
        largest = [(i, end) for i, end in enumerate(ends) if end > i + 1 and (i == 0 or end > ends[i - 1])]
        return [tuple(self.methods[j] for j in order[i:end]) for i, end in largest]


Ranked = Callable[[Cells], Ranks]


def rank(losses: Mapping[str, Sequence[float]]) -> Ranks:
    """Ranks of the methods by a loss on each problem: the least is first, what is not finite shares the last places.

    Losses with the same nine significant digits are equal: more depend on the processor.

    >>> rank({"a": [2.0, 1.0], "b": [1.0, 1.0], "c": [np.nan, np.inf]}).by_problem.tolist()
    [[2.0, 1.5], [1.0, 1.5], [3.0, 3.0]]
    >>> rank({"a": [0.3, 1.0], "b": [0.1 + 0.2, 2.0], "c": [1.0, 3.0]}).by_problem.tolist()
    [[1.5, 1.0], [1.5, 2.0], [3.0, 3.0]]
    """
    values = np.array([[float(f"{loss:.{_DIGITS}g}") for loss in row] for row in losses.values()])
    return Ranks(tuple(losses), rankdata(np.where(np.isfinite(values), values, np.inf), axis=0))


def ends(which: SettingKind = "tuned") -> Ranked:
    """Ranks by the mean over the seeds of each problem's metric at the end; a method that has not learnt is last."""

    def ranked(cells: Cells) -> Ranks:
        everywhere = [set(cells.methods(name)) for name in cells.problems]
        methods = [
            m for m in cells.methods(next(iter(cells.problems))) if all(m in have for have in everywhere)
        ]
        losses = {m: [_loss(cells, name, m, which) for name in cells.problems] for m in methods}
        return rank(losses)

    return ranked


def _loss(cells: Cells, problem: str, method: str, which: SettingKind) -> float:
    if not_learnt(cells, problem, (method,), which):
        return np.inf
    sign = -1 if describe(cells.problem(problem).metric).higher_is_better else 1
    ends = cells.final(problem, method, which)
    # of float32 six digits are sure: means of as many right answers are equal
    digits = min(_DIGITS, np.finfo(ends.dtype).precision)
    return float(f"{sign * ends.mean(dtype=np.float64):.{digits}g}")


@rule
def wins_more(cells: Cells, a: str, others: Sequence[str], ranked: Ranked) -> Decision:
    """`a` is better than each of the others on more problems than it is worse.

    Sign tests of pairs named beforehand, two-sided, with Holm's correction: they do not depend on which other methods
    are ranked (Benavoli, Corani and Mangili 2016), as the mean ranks beside them do. Equal results count for neither.
    """
    ranks = ranked(cells)
    own = ranks.row(a)
    counts = [(int((own < theirs).sum()), int((own > theirs).sum())) for theirs in map(ranks.row, others)]
    # two-sided; nothing is known where all are equal
    tests = [float(binomtest(won, won + lost).pvalue) if won + lost else 1.0 for won, lost in counts]
    adjusted = holm(tests, cells.sharing)
    verdicts: list[Verdict] = [_of_signs(p, *n) for p, n in zip(adjusted, counts, strict=True)]
    held = [b for b, one in zip(others, verdicts, strict=True) if one == "reproduced"]
    verdict = mixed(verdicts)
    words = ", ".join(
        f"{b} {won} to {lost} (p {p:.2g})" for b, (won, lost), p in zip(others, counts, adjusted, strict=True)
    )
    places = ", ".join(f"{m} {ranks.of(m):.2f}" for m in (a, *others))
    reason = f"sign tests over {len(own)} problems" + (", with Holm's correction" if len(others) > 1 else "")
    reason += f": it holds against {', '.join(held)}" if verdict == "partly" else ""
    return Decision(f"{a} better to worse than {words}; mean rank {places}", verdict, reason)


def _of_signs(p: float, won: int, lost: int) -> Verdict:
    if p >= 1 - LEVEL:
        return "underpowered"
    return "reproduced" if won > lost else "not reproduced"


# Whether what lies beyond the edge of a grid could change a verdict: its last gains, continued.

AT_LEAST, WITHOUT_TREND = 2.0, 4.0
"""Times the last step's gain that a method may gain beyond an edge: at least, and where gains show no trend."""
SHARES = (0.5, 1.0)
"""Of that, at which the verdict is looked at."""
Moved = Mapping[tuple[str, str], Cell]
"""(problem, method) -> the cell as it is beyond the edge."""


def judged(statement: Statement, cells: Cells) -> Decision:
    """The statement's decision, provisional only where a wider grid could change its verdict."""
    # For example FedAvg is best at the largest client rate, 0.1, where it ends 1 % below 0.03, as that 4 % below
    # 0.01: further rates would bring less than 2 %, and FedAdam ends at half of its loss. Each method at an edge is
    # moved on as `beyond_edge` says, by half of that and by all of it, alone and with the others: where the verdict
    # stays as it is, its edge is no reason to doubt.
    found = statement.decide(cells)
    at_edge = {key: cell for key, cell in cells.by_name.items() if found.provisional and cell.edges}
    counted = [
        key
        for key, cell in at_edge.items()
        if statement.decide(_with(cells, {key: _settled(cell)})).provisional != found.provisional
    ]
    moved = {key: [beyond_edge(at_edge[key], share) for share in SHARES] for key in counted}
    bounded = {key: [one for one in by_share if one is not None] for key, by_share in moved.items()}

    def stays(others: Moved) -> bool:
        return statement.decide(_with(cells, others)).verdict == found.verdict

    safe = {key: far for key, far in bounded.items() if far and all(stays({key: one}) for one in far)}
    if not safe or not all(stays({key: far[i] for key, far in safe.items()}) for i in range(len(SHARES))):
        return found
    again = statement.decide(_with(cells, {key: _settled(at_edge[key]) for key in safe}))
    names = ", ".join(dict.fromkeys(method for _, method in safe))
    why = f"what lies beyond the edge of the grid, where {names} did best, could not change it"
    return replace(again, reason="; ".join(filter(None, (again.reason, why))))


class _Settled(Cell):
    """A cell whose edges are no reason to doubt."""

    @property
    def edges(self) -> list[str]:
        # ranks have no grid
        return []


def _settled(cell: Cell) -> Cell:
    return _Settled(cell.published, cell.grid, cell.tuned)


def _with(cells: Cells, others: Moved) -> Cells:
    return replace(cells, by_name={**cells.by_name, **others})


def beyond_edge(cell: Cell, share: float = 1.0) -> Cell | None:
    """The cell as a wider grid might have it: all columns move on as they did in the last step before the edge.

    Along an axis, the others tuned at each value, let the score's last gain be g and the one before it g / q with
    q < 1. If gains keep falling so, further steps bring g q / (1 - q) in all. The cell moves by that or by 2 g,
    whichever is more; by 4 g where the step before the last brought no gain, so that there is no trend. Scores of which
    the least is best, and columns of positive numbers, move by factors.

    Args:
        cell: with a grid and a tuned setting.
        share: of the move.

    Returns:
        None where the gains grow from step to step, so that nothing bounds them, there is none at the edge, the
        neighbour diverged, or the grid lacks a column.
    """
    grid, tuned = cell.grid, cell.tuned
    if grid is None or tuned is None or not set(tuned.metrics) <= set(grid.metrics):
        return None
    for axis in cell.edges:
        steps = _last_steps(grid, axis, cell.chosen[axis])
        if steps is None:
            return None
        inner, outer, times = steps
        tuned = _moved(tuned, grid, inner, outer, share * times)
    return replace(cell, tuned=tuned)


def _last_steps(grid: SweepRecord, axis: str, chosen: Any) -> tuple[int, int, float] | None:
    # the best settings one step before the edge and at it, and how many such steps may lie beyond
    values = grid.grid[axis]
    if isinstance(values[0], tuple):  # drawn at random: they have no neighbours
        return None
    inwards = values if chosen == values[0] else values[::-1]
    lost = exploded(grid).any(axis=1) | ~np.isfinite(grid.score)
    cost = np.where(lost, np.inf, -grid.score if grid.selection.most else grid.score)
    best = [
        min((i for i, point in enumerate(grid.points) if point[axis] == value), key=cost.__getitem__)
        for value in inwards[:3]
    ]
    outer, inner, before = cost[best]
    if not np.isfinite(inner):
        return None
    if outer > 0 and not grid.selection.most:
        outer, inner, before = np.log((outer, inner, before))
    last, earlier = inner - outer, before - inner
    if last < 0:  # it was chosen for another reason, such as its whole run
        return None
    if earlier <= 0:
        return best[1], best[0], WITHOUT_TREND
    if last >= earlier:
        return None
    ratio = last / earlier
    return best[1], best[0], max(AT_LEAST, ratio / (1 - ratio))


def _moved(tuned: SweepRecord, grid: SweepRecord, inner: int, outer: int, times: float) -> SweepRecord:
    # the tuned runs with every column moved by so many times what it changed between two settings of the grid
    metrics = {}
    for name, values in tuned.metrics.items():
        steps = grid.metrics[name][inner], grid.metrics[name][outer]
        factors = all((x > 0).all() for x in (values, *steps))
        first, second = np.log(steps) if factors else steps
        step = np.interp(tuned.rounds, grid.rounds, (second - first).mean(axis=0))
        metrics[name] = values * np.exp(times * step) if factors else values + times * step
    return replace(tuned, metrics=metrics)


# The same rule seen otherwise: by another metric, by its logarithm, or as if all runs had ended earlier.


@rule
def by_metric(cells: Cells, metric: str, rule: Rule) -> Decision:
    """The rule on another column of the evaluations than the problems' own."""
    problems = {name: replace(problem, metric=metric, tested=0) for name, problem in cells.problems.items()}
    return rule(replace(cells, problems=problems))


@rule
def incomparable(cells: Cells, rule: Rule, why: str) -> Decision:
    """The rule's numbers and no verdict on the paper, whose problem is another in what is asked."""
    decision = rule(cells)
    return replace(
        decision,
        verdict="not the paper's problem",
        reason=f"{why}; here {decision.verdict}: {decision.reason}",
    )


@rule
def in_decades(cells: Cells, rule: Rule) -> Decision:
    """The rule on log10 of the problems' metric, for losses that are decades apart: means become geometric."""
    metric = next(iter(cells.problems.values())).metric
    name = "log10"

    def logged(run: SweepRecord) -> SweepRecord:
        if metric not in run.metrics:
            return run
        return replace(run, metrics={**run.metrics, name: np.log10(run.metrics[metric])})

    decision = by_metric(name, rule)(cells.changed(logged))
    return replace(decision, ours=f"log10 of the {describe(metric).title.lower()}: {decision.ours}")


@rule
def at_round(cells: Cells, rounds: int, rule: Rule, last: int = 1) -> Decision:
    """The rule at a round, on the mean of the `last` rounds until then; settings stay those chosen at the end.

    Methods need not be better than chance by then.
    """
    problems = {name: replace(problem, last=last, chance=0.0) for name, problem in cells.problems.items()}
    early = cells.changed(lambda run: until(run, rounds, run.selection))
    return rule(replace(early, problems=problems))


@rule
def by_window(cells: Cells, problem: str, rule: Rule) -> Decision:
    """The rule, with whether its verdict hangs on how many of a problem's last rounds are averaged.

    Looked at besides: the last evaluation alone, and twice as many rounds, for curves that swing.
    """
    found, last = rule(cells), cells.problem(problem).last

    def over(rounds: int) -> Decision:
        return rule(
            replace(cells, problems={**cells.problems, problem: replace(cells.problem(problem), last=rounds)})
        )

    given = {
        f"of the last {2 * last} rounds": over(2 * last).verdict,
        "of the last evaluation": over(1).verdict,
    }
    others = [f"{what}: {verdict}" for what, verdict in given.items() if verdict != found.verdict]
    if not others:
        return replace(found, reason=f"{found.reason}; alike {' and '.join(given)}")
    hangs = f"means of the last {last} rounds, on which the verdict hangs; {', '.join(others)}"
    return replace(found, reason=f"{found.reason}; {hangs}")


@rule
def early(cells: Cells, problem: str, rule: Rule) -> Decision:
    """The rule on the way: on the mean of each curve over the first third of a problem's rounds."""
    rounds, _ = cells.curve(problem, cells.methods(problem)[0])
    third = int(rounds[rounds <= max(rounds[-1] / 3, rounds[:2][-1])][-1])  # the last evaluation there
    decision = at_round(third, rule, last=third)(cells)
    return replace(decision, reason=f"means of rounds 1 to {third}: {decision.reason}")


# Tuning by a small budget: settings drawn at random from ranges, and what the best of so many of them comes to.

Range = tuple[float, float]


def drawn(default: Mapping[str, float], ranges: Mapping[str, Range], count: int) -> dict[str, tuple]:
    """An axis of `count` settings: the default first, the others log-uniform from the ranges, to three digits."""
    # The first hyper-parameter has the same draws whichever others there are.
    shares = np.random.default_rng(0).random((len(default), count - 1))
    ends = np.log10([ranges[name] for name in default])
    values = 10 ** (ends[:, :1] + shares * (ends[:, 1:] - ends[:, :1]))
    settings = [tuple(float(f"{v:.3g}") for v in setting) for setting in values.T]
    return {", ".join(default): (tuple(default.values()), *settings)}


def budgeted(
    build: Callable[..., Algorithm], default: Mapping[str, float], ranges: Mapping[str, Range], count: int
) -> Method:
    """A method at its default, and tuned over the axis that `drawn` makes."""

    def make(**axis: tuple[float, ...]) -> Algorithm:
        ((names, values),) = axis.items()
        return build(**dict(zip(names.split(", "), values, strict=True)))

    grid = drawn(default, ranges, count)
    return Method(make, {names: values[0] for names, values in grid.items()}, grid)


def chances(scores: np.ndarray, tried: int) -> np.ndarray:
    """How likely each setting is chosen when the first is tried with `tried` - 1 of the others, drawn at random.

    Chosen is the least score of those tried; where all are infinite, the first. This is exact, over all subsets.

    Args:
        scores: shape (settings,), infinite where a setting diverged.
        tried: 1 to the number of settings.

    >>> chances(np.array([2.0, 3.0, 1.0, 0.0]), 2).round(3).tolist()
    [0.333, 0.0, 0.333, 0.333]
    """
    others, left = len(scores) - 1, tried - 1
    order = [i for i in np.argsort(scores, kind="stable") if scores[i] < scores[0]]
    probabilities = np.zeros(len(scores))
    for better, i in enumerate(order):  # i is chosen if it is tried and none of those better is
        probabilities[i] = comb(others - better - 1, left - 1) / comb(others, left) if left else 0.0
    probabilities[0] = 1 - probabilities.sum()
    return probabilities


def expected(cells: Cells, problem: str, tried: int) -> dict[str, float]:
    """What each method comes to on the tuning seed if `tried` settings are tried, on average over which these are."""
    # Chosen by the problem's selection, shown is its metric at the end: 0 is the start (or worse, or diverged), 1 the
    # best that any setting of any method reached.
    metric = describe(cells.problem(problem).metric)
    sign = 1 if metric.higher_is_better else -1
    grids = {m: grid for m in cells.methods(problem) if (grid := cells.cell(problem, m).grid) is not None}
    ends, start = {}, 0.0
    for method, grid in grids.items():
        values = sign * grid.metrics[metric.key][:, 0]
        start = float(values[0, 0])
        lost = (grid.diverged[:, 0] >= 0) | exploded(grid)[:, 0]
        ends[method] = np.where(lost | ~np.isfinite(values[:, -1]), start, values[:, -1])
    most = max((float(end.max()) for end in ends.values()), default=start)
    shares = {}
    for method, grid in grids.items():
        score = -grid.score if grid.selection.most else grid.score
        share = np.maximum(ends[method] - start, 0) / (most - start if most > start else 1)
        shares[method] = float(chances(score, tried) @ share)
    return shares


def budget(tried: int) -> Ranked:
    """Ranks by `expected` with so many settings tried."""

    def ranked(cells: Cells) -> Ranks:
        by_problem = [expected(cells, problem, tried) for problem in cells.problems]
        return rank({m: [-found[m] for found in by_problem] for m in by_problem[0]})

    return ranked
