"""Rules on how much of a known truth is found; each shows its verdict at other thresholds too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedsolve.studies import Cells, Decision
from fedsolve.studies.cells import Cell
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.public import describe
from fedsolve.studies.rules import (
    KNOWN,
    Interval,
    Rule,
    alike,
    around,
    decided,
    elsewhere,
    mixed,
    provisional,
    rule,
    shown_final,
)

THRESHOLDS = (0.8, 0.9, 0.95, 0.99)
"""Of F1: a verdict at one of them is shown at all."""


@rule
def reaches(
    cells: Cells,
    problem: str,
    method: str,
    threshold: float,
    thresholds: tuple[float, ...] = THRESHOLDS,
    side: int = 1,
) -> Decision:
    """The metric is at least the threshold: its mean over the seeds, by the interval; with side -1 it is below."""
    found = against(cells, problem, cells.final(problem, method), threshold, thresholds, side)
    ahead = (side > 0) == describe(cells.problem(problem).metric).higher_is_better
    safe = found.verdict == ("reproduced" if ahead else "not reproduced")  # a better setting only adds to it
    return replace(found, provisional=provisional(cells, problem, "tuned", () if safe else (method,)))


def stays_below(
    problem: str, method: str, threshold: float, thresholds: tuple[float, ...] = THRESHOLDS
) -> Rule:
    """The metric is below the threshold."""
    return reaches(problem, method, threshold, thresholds, side=-1)


@rule
def near_central(cells: Cells, problem: str, method: str, central: str, margin: float) -> Decision:
    """The problem's metric is at most `margin` worse than that of the centralised solution, in the column `central`."""
    values, best = (cells.final(problem, method, metric=column) for column in (None, central))
    there, title = np.isfinite(values), describe(cells.problem(problem).metric).title
    found = Interval(-np.inf, -np.inf, -np.inf)  # what diverged has found nothing
    ours = f"diverged on {(~there).sum()} of {len(values)} {cells.problem(problem).replicates}"
    if there.all():
        found = cells.interval(problem, values - best)
        ours = f"{title} {values.mean():.3f}, centralised {best.mean():.3f}; over it {found:+.3g}"
    elif there.any():
        ours += f"; {title} {values[there].mean():.3f}, centralised {best[there].mean():.3f} on the others"
    given: dict[float, Verdict] = {bar: decided(found, -bar) for bar in around(margin)}
    reason = f"at most {margin:g} below it by the 95 % interval over {cells.problem(problem).replicates}"
    weak = provisional(cells, problem, "tuned", () if given[margin] == "reproduced" else (method,))
    return Decision(ours, given[margin], f"{reason}; {elsewhere(given, margin)}", weak)


def against(
    cells: Cells,
    problem: str,
    values: np.ndarray,
    threshold: float,
    thresholds: tuple[float, ...] = THRESHOLDS,
    side: int = 1,
) -> Decision:
    """Whether the mean of values in the problem's metric, shape (seeds,), is at least the threshold, or below it.

    Args:
        cells: of the study.
        problem: its name.
        values: NaN where a run diverged, which then found nothing.
        threshold: one of the `thresholds`.
        thresholds: at which the verdict is shown.
        side: 1 for at least, -1 for below.
    """
    title, replicates = describe(cells.problem(problem).metric).title, cells.problem(problem).replicates
    there = values[np.isfinite(values)]
    if len(there) == len(values):
        found = cells.interval(problem, values)
        ours = f"{title} {found:.3f}, least {values.min():.3f}"
    else:
        found = Interval(-np.inf, -np.inf, -np.inf)
        ours = f"diverged on {len(values) - len(there)} of {len(values)} {replicates}"
        ours += f"; {title} {there.mean():.3f} on the others" if len(there) else ""
    given: dict[float, Verdict] = {bar: decided(found, bar, side) for bar in thresholds}
    what = f"{'at least' if side > 0 else 'below'} {threshold:g} by the 95 % interval of the mean"
    return Decision(ours, given[threshold], f"{what} over {replicates}; {elsewhere(given, threshold)}")


@rule
def times(
    cells: Cells, problem: str, a: str, b: str, factor: float, factors: tuple[float, ...], side: int = 1
) -> Decision:
    """The metric of `a` is at least `factor` times that of `b`, or with side -1 at most, by the mean ratio."""
    words = ", ".join(f"{name} {shown_final(cells, problem, name, 'tuned')}" for name in (a, b))
    weak = provisional(cells, problem, "tuned", (a, b))
    ratio = cells.final(problem, a) / cells.final(problem, b)
    if not np.isfinite(ratio).all():
        return Decision(words, "underpowered", "no ratio: a run diverged", weak)
    found = cells.interval(problem, ratio)
    given: dict[float, Verdict] = {bar: decided(found, bar, side) for bar in factors}
    what = f"{'at least' if side > 0 else 'at most'} {factor:g} times"
    reason = f"{what} by the 95 % interval, paired over {cells.problem(problem).over}"
    ours = f"{words}; {found.text('.3g', 'times as large')}"
    return Decision(ours, given[factor], f"{reason}; {elsewhere(given, factor)}", weak)


@rule
def within_a_factor(
    cells: Cells, problem: str, pairs: Sequence[tuple[str, str]], factor: float, factors: tuple[float, ...]
) -> Decision:
    """In each pair neither metric is more than `factor` times the other, by the geometric mean of their ratio."""
    apart = {f"{a} over {b}": cells.final(problem, a) / cells.final(problem, b) for a, b in pairs}
    found = {name: cells.interval(problem, np.log(x), len(pairs)) for name, x in apart.items()}
    given: dict[float, Verdict] = {
        bar: mixed({alike(x.low, x.high, np.log(bar)) for x in found.values()}) for bar in factors
    }
    names = dict.fromkeys(name for pair in pairs for name in pair)
    ends = ", ".join(f"{name} {shown_final(cells, problem, name, 'tuned')}" for name in names)
    told = "; ".join(f"{name} {one.factor.text('.3g', 'times')}" for name, one in found.items())
    reason = (
        f"within {factor:g} times one another by the 95 % interval, paired over {cells.problem(problem).over}"
    )
    weak = provisional(cells, problem, "tuned", tuple(names))
    return Decision(f"{ends}; {told}", given[factor], f"{reason}; {elsewhere(given, factor)}", weak)


@rule
def with_known(cells: Cells, names: Sequence[str], rule: Rule) -> Decision:
    """The rule on cells in which solutions that the columns of every run tell of stand beside the methods."""
    found = dict(cells.by_name)
    for problem in cells.problems:
        run = next(
            one for m in cells.methods(problem) if (one := cells.cell(problem, m).of("tuned")) is not None
        )
        for name in names:
            own = {
                key.removeprefix(f"{name}_"): x
                for key, x in run.metrics.items()
                if key.startswith(f"{name}_")
            }
            found[problem, name] = Cell(replace(run, label=name, metrics=own, notes=(KNOWN,)), None, None)
    return rule(replace(cells, by_name=found))
