"""Rules of the neural studies beside the common ones: what is learnt at all, all others, by what factor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedsolve.studies import Cells, Decision
from fedsolve.studies.cells import SettingKind
from fedsolve.studies.public import describe
from fedsolve.studies.rules import (
    Rule,
    better_than_all,
    decided,
    each_better,
    interval,
    provisional,
    rule,
    shown_final,
    together,
)

_BESIDE = "at the end"


@rule
def times_lower(
    cells: Cells, problem: str, a: str, b: str, factor: float, which: SettingKind = "tuned"
) -> Decision:
    """The error of `a` at the end is less than 1/`factor` of the error of `b`, by the interval of their ratio."""
    ours, theirs = (cells.final(problem, name, which) for name in (a, b))
    ratio = interval(np.log(theirs) - np.log(ours)).factor
    ends = ", ".join(f"{name} {shown_final(cells, problem, name, which)}" for name in (a, b))
    reason = (
        f"{b}'s error more than {factor:g} times {a}'s, by the 95 % interval of the ratio, paired by seed"
    )
    weak = provisional(cells, problem, which, (a, b))
    return Decision(f"{ends}; {ratio.text('.3g', 'times')}", decided(ratio, factor), reason, weak)


@rule
def across(cells: Cells, rule: Callable[..., Rule], *cells_of: tuple[str, str], **arguments: Any) -> Decision:
    """A rule on methods of different problems, each (problem, method), as if they were of one.

    Args:
        rule: of `fedsolve.studies.rules.comparisons`, which takes a problem and then methods.
        *cells_of: problem and method of each, in the order in which the rule takes methods.
        **arguments: of the rule, after the methods.
    """
    names = [f"{method} at {problem}" for problem, method in cells_of]
    found = {(_BESIDE, name): cells.cell(*where) for name, where in zip(names, cells_of, strict=True)}
    beside = replace(cells, problems={_BESIDE: cells.problem(cells_of[0][0])}, by_name=found)
    return rule(_BESIDE, *names, **arguments)(beside)


@rule
def if_learnt(cells: Cells, problem: str, rule: Rule) -> Decision:
    """The rule, or "not learnt" where even the best method has not.

    It must end better than the problem's `chance`; where there is none, with at least half of the paper's accuracy for
    it.
    """
    found, asked = rule(cells), cells.problem(problem)
    metric = describe(asked.metric)
    sign = 1 if metric.higher_is_better else -1
    ends = {m: sign * float(cells.final(problem, m).mean()) for m in cells.methods(problem)}
    best = max(ends, key=lambda m: ends[m] if np.isfinite(ends[m]) else -np.inf)
    bar = asked.chance or asked.published[best] / 2
    if ends[best] > sign * bar:
        return found
    what = "the best constant prediction" if asked.chance else "half of the paper's for it"
    reason = (
        f"the best, {best}, ends at {shown_final(cells, problem, best, 'tuned')}, no better than {what}, "
        f"{metric.scale * bar:.3g}; the rule alone says {found.verdict}"
    )
    return Decision(found.ours, "not learnt", reason)


@rule
def ahead_of_all(cells: Cells, problem: str, method: str, among: Collection[str] = ()) -> Decision:
    """The method is better than each other one that was run, of those `among` if any are named."""
    others = [m for m in cells.methods(problem) if m != method and (not among or m in among)]
    return better_than_all(problem, method, others)(cells)


@rule
def of_those_run(
    cells: Cells, problem: str, one: Callable[[str, str], Rule], pairs: Sequence[tuple[str, str]]
) -> Decision:
    """A rule on two methods for each pair of which both were run, together."""
    there = cells.methods(problem)
    return together(*(one(a, b) for a, b in pairs if a in there and b in there))(cells)


@rule
def everywhere(cells: Cells, a: str, b: str, of: int) -> Decision:
    """`a` is better than `b` on every problem that was run and learnt; partly, where the paper has more of them."""
    found = together(*(if_learnt(p, each_better(p, ((a, b),))) for p in cells.problems))(cells)
    if found.verdict != "reproduced" or len(cells.problems) == of:
        return found
    reason = f"{found.reason}; on {len(cells.problems)} of the paper's {of} problems, the others were not run"
    return replace(found, verdict="partly", reason=reason)
