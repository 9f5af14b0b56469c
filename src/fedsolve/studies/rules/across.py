"""Comparisons made on several problems at once: on how many one holds, and who reaches a target sooner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedsolve.results.metrics import describe
from fedsolve.studies.cells import Cells, Which
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.intervals import elsewhere, interval
from fedsolve.studies.rules.comparisons import also, provisional, rule, with_chance
from fedsolve.studies.rules.differences import Difference, difference, grade, may_change
from fedsolve.studies.rules.learnt import no_better, not_learnt
from fedsolve.studies.study import Decision


@rule
def better_in_each(
    cells: Cells, problems: Sequence[str], a: str, others: Sequence[str], which: Which = "tuned"
) -> Decision:
    """On every problem `a` is better than each of the others; all these comparisons share the 5 %."""
    count = len(problems) * len(others)
    by_other = {b: {p: difference(cells, p, a, b, which, count) for p in problems} for b in others}
    every = [d for by in by_other.values() for d in by.values()]
    void = {p: not_learnt(cells, p, (a, *others), which) for p in problems}
    decided = [by[p] for by in by_other.values() for p in problems if not {a, by[p].b} <= set(void[p])]
    verdict: Verdict = grade(decided)[0] if decided else "not learnt"
    if verdict == "reproduced" and len(decided) < count:
        verdict = "partly"
    above, below = sum(d.low > 0 for d in every), sum(d.high < 0 for d in every)
    ends = ", ".join(f"{m} {_range(cells, problems, m, which)}" for m in (a, *others))
    differences = "; ".join(f"{a} over {b}: {_where(by)}" for b, by in by_other.items())
    return Decision(
        f"least and greatest of {len(problems)} problems: {ends}. {differences}",
        verdict,
        also(
            f"95 % intervals over {cells.problem(problems[0]).over}, paired, all {count} comparisons together: "
            f"{above} for it, {below} against it",
            *(f"{p}: {no_better(cells, p, names)}" for p, names in void.items() if names),
            with_chance(verdict, grade([d.wide for d in decided])[0] if decided else verdict),
        ),
        also(*(f"{p}: {w}" for p in problems if (w := _edges(cells, p, which, by_other)))),
    )


def _edges(cells: Cells, problem: str, which: Which, by_other: Mapping[str, Mapping[str, Difference]]) -> str:
    return provisional(cells, problem, which, may_change(by[problem] for by in by_other.values()))


def _range(cells: Cells, problems: Sequence[str], method: str, which: Which) -> str:
    metric = describe(cells.problem(problems[0]).metric)
    ends = [metric.scale * cells.final(p, method, which).mean() for p in problems]
    return f"{np.min(ends):.3g} to {np.max(ends):.3g}" if np.isfinite(ends).all() else "diverged on some"


def _where(by_problem: dict[str, Difference]) -> str:
    """Such as 'better on 7 of 9, worse on 1 (alpha 1, K 3), open on 1 (alpha 1, K 1)'."""
    worse = [p for p, d in by_problem.items() if d.high < 0]
    unknown = [p for p, d in by_problem.items() if d.low <= 0 <= d.high]
    words = [f"better on {len(by_problem) - len(worse) - len(unknown)} of {len(by_problem)}"]
    words += [
        f"{what} on {len(names)} ({'; '.join(names)})"
        for what, names in (("worse", worse), ("open", unknown))
        if names
    ]
    return ", ".join(words)


def time_to(cells: Cells, problem: str, method: str, target: float) -> np.ndarray:
    """Simulated seconds at the first evaluation as good as a target, (seeds,); NaN where it is never reached."""
    metric = describe(cells.problem(problem).metric)
    values = cells.curve(problem, method)[1]
    times = cells.curve(problem, method, metric="time")[1]
    reached = values >= target if metric.higher_is_better else values <= target
    return np.where(reached.any(axis=1), times[np.arange(len(times)), reached.argmax(axis=1)], np.nan)


@rule
def sooner(
    cells: Cells, problems: Sequence[str], a: str, b: str, target: float, neighbours: Sequence[float]
) -> Decision:
    """On every problem `a` reaches the target in less time than `b`; the comparisons share the 5 %.

    The verdict is shown at the target's neighbours too.
    """
    words, verdict = _sooner(cells, problems, a, b, target)
    metric = describe(cells.problem(problems[0]).metric)
    given: dict[float, Verdict] = {
        metric.scale * bar: _sooner(cells, problems, a, b, bar)[1] for bar in neighbours
    }
    reason = (
        f"seconds to {metric.scale * target:g} {metric.unit}".rstrip()
        + f", 95 % intervals of their ratio over {cells.problem(problems[0]).over}, paired, all {len(problems)} "
        f"together; {elsewhere(given, metric.scale * target)}"
    )
    return Decision(words, verdict, reason)


def _sooner(cells: Cells, problems: Sequence[str], a: str, b: str, target: float) -> tuple[str, Verdict]:
    """What was found, in words, and the verdict."""
    differences, words = [], []
    for problem in problems:
        ours, theirs = (time_to(cells, problem, name, target) for name in (a, b))
        title = cells.problem(problem).title
        if np.isnan(ours + theirs).any():
            lost = [name for name, times in ((a, ours), (b, theirs)) if np.isnan(times).any()]
            differences.append(Difference(a, b, np.nan, -np.inf, np.inf))
            words.append(f"{title}: not reached with every seed by {' and '.join(lost)}")
            continue
        ratio = interval(np.log(theirs / ours), len(problems))
        differences.append(Difference(a, b, *ratio))
        words.append(
            f"{title}: {a} {_mean(ours)}, {b} {_mean(theirs)} s, {ratio.factor.text('.2f', 'times as fast')}"
        )
    return "; ".join(words), grade(differences)[0]


def _mean(times: np.ndarray) -> str:
    """The geometric mean, which goes with ratios."""
    return f"{np.exp(np.log(times).mean()):.3g}"
