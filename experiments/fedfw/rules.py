"""Rules over the columns of a table: in which of them the first of a pair is better, by paired intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsolve.studies import Cells, Decision
from fedsolve.studies.public import describe
from fedsolve.studies.rules import Difference, difference, grade, interval, rule

Pair = tuple[str, str, str]
"""A column, and two methods on it of which the first is said to be better."""


@rule
def columns(cells: Cells, pairs: Sequence[Pair]) -> Decision:
    """In every column the first is better; partly, with which, if it is in some. The columns share the 5 %."""
    found = [difference(cells, *pair, comparisons=len(pairs)) for pair in pairs]
    return _counted(cells, pairs, found)


@rule
def with_equal_bytes(cells: Cells, pairs: Sequence[Pair]) -> Decision:
    """In every column the first ends better than the second was when it had sent as many bytes up."""
    return _counted(cells, pairs, [_with_equal_bytes(cells, *pair, len(pairs)) for pair in pairs])


def _with_equal_bytes(cells: Cells, problem: str, a: str, b: str, comparisons: int) -> Difference:
    metric = describe(cells.problem(problem).metric)
    sign = metric.scale * (1 if metric.higher_is_better else -1)
    within = cells.sent(problem, b) <= cells.sent(problem, a)[-1]
    ends = cells.curve(problem, a)[1][:, -1], cells.curve(problem, b)[1][:, within][:, -1]
    return Difference(a, b, *interval(sign * (ends[0] - ends[1]), comparisons))


def _counted(cells: Cells, pairs: Sequence[Pair], found: Sequence[Difference]) -> Decision:
    """How many columns are on which side, with the mean differences."""
    held = [i for i, d in enumerate(found) if d.low > 0]
    contrary = [i for i, d in enumerate(found) if d.high < 0]
    unsure = [i for i in range(len(found)) if i not in (*held, *contrary)]
    metric = describe(cells.problem(pairs[0][0]).metric)
    unit = "points" if metric.unit == "%" else metric.unit

    def listed(rows: Sequence[int]) -> str:
        means = [f"{cells.problem(pairs[i][0]).title} {_shown(found[i].mean)}" for i in rows]
        return f"{len(rows)} ({'; '.join(means)})" if rows else "0"

    ours = f"{metric.title}: better in {listed(held)}, worse in {listed(contrary)}, open in {listed(unsure)}"
    reason = f"95 % intervals of the paired differences over {cells.problem(pairs[0][0]).replicates}"
    reason += f", shared by {len(pairs)} columns; numbers are mean differences{f' in {unit}' if unit else ''}"
    return Decision(ours, grade(found)[0], reason, _at_edges(cells, pairs))


def _shown(mean: float) -> str:
    return f"{mean:+.3g}" if np.isfinite(mean) else "diverged"


def _at_edges(cells: Cells, pairs: Sequence[Pair]) -> str:
    """In which columns a chosen setting lies at the edge of its grid."""
    at = []
    for problem, *methods in pairs:
        edges = [f"{m} {axis}" for m in methods for axis in cells.cell(problem, m).edges]
        if edges:
            at.append(f"{cells.problem(problem).title} ({', '.join(edges)})")
    return f"settings at an edge of their grid in {len(at)} of {len(pairs)}: {'; '.join(at)}" if at else ""
