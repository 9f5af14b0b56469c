"""A comparison made on several problems at once, told in one line: on how many it holds, and on which it does not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsolve.results.metrics import describe
from fedsolve.studies.cells import Cells, Which
from fedsolve.studies.rules.comparisons import also, provisional, rule, with_chance
from fedsolve.studies.rules.differences import Difference, difference, grade
from fedsolve.studies.study import Judged


@rule
def better_in_each(
    cells: Cells, problems: Sequence[str], a: str, others: Sequence[str], which: Which = "tuned"
) -> Judged:
    """On every problem `a` is better than each of the others; all these comparisons share the 5 %."""
    count = len(problems) * len(others)
    found = {b: {p: difference(cells, p, a, b, which, count) for p in problems} for b in others}
    every = [d for by in found.values() for d in by.values()]
    verdict = grade(every)[0]
    above, below = sum(d.low > 0 for d in every), sum(d.high < 0 for d in every)
    ends = ", ".join(f"{m} {_range(cells, problems, m, which)}" for m in (a, *others))
    told = "; ".join(f"{a} over {b}: {_where(by)}" for b, by in found.items())
    return Judged(
        f"least and greatest of {len(problems)} problems: {ends}. {told}",
        verdict,
        f"95 % intervals over {cells.problem(problems[0]).over}, paired, all {count} comparisons together: {above} "
        f"for it, {below} against it",
        also(
            *(f"{p}: {w}" for p in problems if (w := provisional(cells, p, which, (a, *others)))),
            with_chance(verdict, grade([d.wide for d in every])[0]),
        ),
    )


def _range(cells: Cells, problems: Sequence[str], method: str, which: Which) -> str:
    metric = describe(cells.problem(problems[0]).metric)
    ends = [metric.scale * cells.final(p, method, which).mean() for p in problems]
    return f"{np.min(ends):.3g} to {np.max(ends):.3g}" if np.isfinite(ends).all() else "diverged on some"


def _where(found: dict[str, Difference]) -> str:
    """Such as 'better on 7 of 9, worse on 1 (alpha 1, K 3), open on 1 (alpha 1, K 1)'."""
    worse = [p for p, d in found.items() if d.high < 0]
    unknown = [p for p, d in found.items() if d.low <= 0 <= d.high]
    words = [f"better on {len(found) - len(worse) - len(unknown)} of {len(found)}"]
    words += [
        f"{what} on {len(names)} ({'; '.join(names)})"
        for what, names in (("worse", worse), ("open", unknown))
        if names
    ]
    return ", ".join(words)
