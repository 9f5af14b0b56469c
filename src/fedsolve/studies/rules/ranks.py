"""Several methods on several problems: ranks, tests of all of them (Demšar 2006), and sign tests of pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, rankdata, studentized_range
from scipy.stats import f as fisher

from fedsolve.core.errors import InvalidInput, check_known
from fedsolve.results.metrics import describe
from fedsolve.studies.cells import Cells, Which
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.intervals import LEVEL
from fedsolve.studies.rules.comparisons import mixed, rule
from fedsolve.studies.rules.learnt import not_learnt
from fedsolve.studies.study import Decision

_DIGITS = 9
"""Significant digits by which losses are compared."""


@dataclass(frozen=True)
class Ranks:
    """Methods ranked on problems; 1 is best.

    Attributes:
        methods: of the rows, three or more.
        by_problem: shape (methods, problems), two problems or more; equal results share the mean of their places.

    Raises:
        InvalidInput: fewer methods or problems.
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
        """Over the problems, shape (methods,)."""
        return self.by_problem.mean(axis=1)

    def row(self, method: str) -> np.ndarray:
        """A method's rank on each problem; `InvalidInput` if it is none of the methods."""
        check_known("method of the ranks", method, self.methods)
        return self.by_problem[self.methods.index(method)]

    def of(self, method: str) -> float:
        """A method's mean rank; `InvalidInput` if it is none of the methods."""
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


def ends(which: Which = "tuned") -> Ranked:
    """Ranks by the mean over the seeds of each problem's metric at the end; a method that has not learnt is last."""

    def ranked(cells: Cells) -> Ranks:
        everywhere = [set(cells.methods(name)) for name in cells.problems]
        methods = [
            m for m in cells.methods(next(iter(cells.problems))) if all(m in have for have in everywhere)
        ]
        losses = {m: [_loss(cells, name, m, which) for name in cells.problems] for m in methods}
        return rank(losses)

    return ranked


def _loss(cells: Cells, problem: str, method: str, which: Which) -> float:
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
    adjusted = holm([_sign_test(*count) for count in counts], cells.sharing)
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


def _sign_test(won: int, lost: int) -> float:
    return float(binomtest(won, won + lost).pvalue) if won + lost else 1.0


def _of_signs(p: float, won: int, lost: int) -> Verdict:
    if p >= 1 - LEVEL:
        return "underpowered"
    return "reproduced" if won > lost else "not reproduced"
