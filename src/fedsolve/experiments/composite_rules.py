"""Rules on how much of a known truth is found, and how soon; each shows its verdict at other thresholds too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedsolve.results.metrics import describe
from fedsolve.studies import Judged
from fedsolve.studies.cells import Cells
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.verdicts import Difference, Rule, interval, judged, provisional

THRESHOLDS = (0.8, 0.9, 0.95, 0.99)
"""Of F1: a verdict at one of them is shown at all."""


def reaches(problem: str, method: str, threshold: float) -> Rule:
    """The metric, of which more is better, is at least the threshold: its mean over the seeds, by the interval."""
    return _beside(problem, method, threshold, 1)


def stays_below(problem: str, method: str, threshold: float) -> Rule:
    """The metric, of which more is better, is below the threshold: its mean over the seeds, by the interval."""
    return _beside(problem, method, threshold, -1)


def _beside(problem: str, method: str, threshold: float, side: int) -> Rule:
    def rule(cells: Cells) -> Judged:
        found = against(cells, problem, cells.final(problem, method), threshold, side)
        return replace(found, provisional=provisional(cells, problem, "tuned", (method,)))

    return rule


def against(cells: Cells, problem: str, values: np.ndarray, threshold: float, side: int = 1) -> Judged:
    """Whether the mean of values in the problem's metric, shape (seeds,), is at least the threshold, or below it.

    Args:
        cells: of the study.
        problem: its name.
        values: NaN where a run diverged, which then found nothing.
        threshold: one of `THRESHOLDS`.
        side: 1 for at least, -1 for below.
    """
    title, replicates = describe(cells.problem(problem).metric).title, cells.problem(problem).replicates
    there = values[np.isfinite(values)]
    given: dict[float, Verdict]
    if len(there) == len(values):
        mean, low, high = interval(values)
        given = {bar: _side(side * (low - bar), side * (high - bar)) for bar in THRESHOLDS}
        ours = f"{title} {mean:.3f} [{low:.3f}, {high:.3f}], least {values.min():.3f}"
    else:
        given = {bar: _side(-side, -side) for bar in THRESHOLDS}
        ours = f"diverged on {len(values) - len(there)} of {len(values)} {replicates}"
        ours += f"; {title} {there.mean():.3f} on the others" if len(there) else ""
    what = f"{'at least' if side > 0 else 'below'} {threshold:g} by the 95 % interval of the mean"
    reason = f"{what} over {replicates}; {_elsewhere(given, threshold)}"
    return Judged(ours, given[threshold], reason)


def sooner(problem: str, a: str, others: Sequence[str], threshold: float) -> Rule:
    """`a` needs fewer rounds than each of the others until the metric stays at the threshold or above.

    A run that never comes there counts as if it did one evaluation after the last.
    """

    def rule(cells: Cells) -> Judged:
        found = {bar: _differences(cells, problem, a, others, bar) for bar in THRESHOLDS}
        verdicts = {bar: judged(cells, problem, "tuned", d, (a, *others)) for bar, d in found.items()}
        metric = describe(cells.problem(problem).metric).title
        counts = ", ".join(_words(cells, problem, name, threshold) for name in (a, *others))
        ours = f"rounds until the {metric} stays at {threshold:g} or above: {counts}"
        ours += "; fewer by " + ", ".join(
            f"{d.mean:.0f} [{d.low:.0f}, {d.high:.0f}] than {d.b}" for d in found[threshold]
        )
        elsewhere = _elsewhere({bar: one.verdict for bar, one in verdicts.items()}, threshold)
        one = verdicts[threshold]
        return replace(one, ours=ours, reason=f"{one.reason}; {elsewhere}")

    return rule


def _differences(
    cells: Cells, problem: str, a: str, others: Sequence[str], threshold: float
) -> list[Difference]:
    own, _ = until_reached(cells, problem, a, threshold)
    return [
        Difference(a, b, *interval(until_reached(cells, problem, b, threshold)[0] - own, len(others)))
        for b in others
    ]


def until_reached(cells: Cells, problem: str, method: str, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """Rounds until the metric stays at the threshold or above, and whether it ever does; each of shape (seeds,)."""
    rounds, values = cells.curve(problem, method)
    below = np.nan_to_num(values, nan=-np.inf) < threshold
    first = values.shape[1] - np.argmax(below[:, ::-1], axis=1)  # the evaluation after the last one below
    first = np.where(below.any(axis=1), first, 0)
    steps = np.append(rounds, 2 * rounds[-1] - rounds[-2:][0])
    return steps[first], first < len(rounds)


def _words(cells: Cells, problem: str, method: str, threshold: float) -> str:
    rounds, ever = until_reached(cells, problem, method, threshold)
    if not ever.any():
        return f"{method} never"
    never = f" (never on {(~ever).sum()} of {len(ever)})" if not ever.all() else ""
    return f"{method} {rounds[ever].mean():.0f}{never}"


def _side(low: float, high: float) -> Verdict:
    low, high = min(low, high), max(low, high)
    return "reproduced" if low >= 0 else "not reproduced" if high < 0 else "underpowered"


def _elsewhere(given: Mapping[float, Verdict], threshold: float) -> str:
    return "at " + ", ".join(f"{bar:g}: {verdict}" for bar, verdict in given.items() if bar != threshold)
