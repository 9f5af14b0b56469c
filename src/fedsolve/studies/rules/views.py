"""The same rule seen otherwise: by another metric, by its logarithm, or as if all runs had ended earlier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedsolve.results.metrics import describe
from fedsolve.results.sweep import SweepRecord
from fedsolve.studies.cells import Cells
from fedsolve.studies.parts import until
from fedsolve.studies.rules.comparisons import Rule, rule
from fedsolve.studies.study import Decision


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
