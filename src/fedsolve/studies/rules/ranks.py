"""Several methods on several problems: mean ranks, Friedman's test and Nemenyi's critical difference (Demšar 2006)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import f as fisher
from scipy.stats import rankdata, studentized_range

from fedsolve.core.errors import InvalidInput, check_known
from fedsolve.results.metrics import describe
from fedsolve.studies.cells import Cells, Which
from fedsolve.studies.intervals import LEVEL, Interval, beyond
from fedsolve.studies.rules.comparisons import rule
from fedsolve.studies.study import Decision


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

    def of(self, method: str) -> float:
        """A method's mean rank; `InvalidInput` if it is none of the methods."""
        check_known("method of the ranks", method, self.methods)
        return float(self.mean[self.methods.index(method)])

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
        statistic = (
            (n - 1) * self.chi_square / left if left > 1e-9 else np.inf
        )  # inf: the same order on all problems
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

    Losses with the same nine significant digits are equal: more digits depend on the processor.

    >>> rank({"a": [2.0, 1.0], "b": [1.0, 1.0], "c": [np.nan, np.inf]}).by_problem.tolist()
    [[2.0, 1.5], [1.0, 1.5], [3.0, 3.0]]
    >>> rank({"a": [0.3, 1.0], "b": [0.1 + 0.2, 2.0], "c": [1.0, 3.0]}).by_problem.tolist()
    [[1.5, 1.0], [1.5, 2.0], [3.0, 3.0]]
    """
    values = np.array([[float(f"{loss:.9g}") for loss in row] for row in losses.values()])
    return Ranks(tuple(losses), rankdata(np.where(np.isfinite(values), values, np.inf), axis=0))


def ends(which: Which = "tuned") -> Ranked:
    """Ranks by the mean over the seeds of each problem's metric at the end; a method that lost a seed is last."""

    def ranked(cells: Cells) -> Ranks:
        everywhere = [set(cells.methods(name)) for name in cells.problems]
        methods = [
            m for m in cells.methods(next(iter(cells.problems))) if all(m in have for have in everywhere)
        ]
        losses = {m: [_loss(cells, name, m, which) for name in cells.problems] for m in methods}
        return rank(losses)

    return ranked


def _loss(cells: Cells, problem: str, method: str, which: Which) -> float:
    sign = -1 if describe(cells.problem(problem).metric).higher_is_better else 1
    return sign * float(cells.final(problem, method, which).mean())


@rule
def ranks_above(cells: Cells, a: str, others: Sequence[str], ranked: Ranked) -> Decision:
    """`a` has a smaller mean rank than each of the others, by more than the critical difference."""
    ranks = ranked(cells)
    room = ranks.critical_difference
    apart = [(b, ranks.of(b) - ranks.of(a)) for b in others]
    below = ", ".join(b for b, d in apart if d < -room)
    verdict, which = beyond([(b, Interval(d, d - room, d + room)) for b, d in apart], 0.0)
    reason = (
        f"mean ranks of {len(ranks.methods)} methods on {ranks.by_problem.shape[1]} problems: Friedman's p = "
        f"{ranks.p:.2g}, Nemenyi's critical difference {room:.2f}"
    )
    reason += ": no significant difference between any two methods" if ranks.alike else which
    reason += f"; below {below}" if verdict == "not reproduced" and not ranks.alike else ""
    places = ", ".join(f"{m} {ranks.of(m):.2f}" for m in (a, *others))
    return Decision(f"mean rank {places}", "underpowered" if ranks.alike else verdict, reason)
