"""Rules of the neural studies beside the common ones: by what factor, across problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedsolve.studies import Cells, Decision
from fedsolve.studies.cells import Which
from fedsolve.studies.rules import Rule, decided, interval, provisional, rule, shown_final

_BESIDE = "at the end"


@rule
def times_lower(
    cells: Cells, problem: str, a: str, b: str, factor: float, which: Which = "tuned"
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
