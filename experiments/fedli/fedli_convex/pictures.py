"""Pictures of `fedli-convex`: a curve by round, and below it what its line search cost in the same rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.fedli.fedli_convex import theorems
from experiments.fedli.fedli_convex.problems import L2, ONES, STEPS, smoothness
from fedsolve.studies import Cells, Study
from fedsolve.studies.pictures import Line, Panel, Panelled
from fedsolve.studies.public import describe

BOUND = "Theorem 2's bound"
LEAST = 1e-16
"""What is less, 0 or rounding, is drawn there."""


def beside_search(caption: str, metric: str, problems: Sequence[str]) -> Panelled:
    """A metric by round in problems side by side, and below each loss evaluations a local step.

    Args:
        caption: what it shows; the seeds are added.
        metric: a column of the evaluations; Theorem 2's bound is drawn where it is the squared distance.
        problems: of the study, all where it has none of them.
    """

    def above(cells: Cells, name: str) -> Panel:
        curves = {m: cells.curve(name, m, metric=metric) for m in cells.methods(name)}
        lines = [Line(m, rounds, np.maximum(values, LEAST)) for m, (rounds, values) in curves.items()]
        dataset = name.split(",")[0]
        if metric == "squared_distance" and dataset in ONES:
            rounds, squares = next(iter(curves.values()))
            start = squares[:, :1].mean(0, keepdims=True)
            bound = theorems.linear(smoothness(dataset), STEPS, L2, start, rounds)
            lines.append(Line(BOUND, rounds, bound, reference=True))
        return Panel(name, lines, describe(metric).label)

    def rows(study: Study, cells: Cells) -> list[list[Panel]]:
        names = [name for name in problems if name in cells.problems] or list(cells.problems)
        return [[above(cells, name) for name in names], [_evaluations(cells, name) for name in names]]

    return Panelled(f"{caption} Below each: loss evaluations a local step.", rows, 3.7, 2.3)


def _evaluations(cells: Cells, name: str) -> Panel:
    lines = []
    for method in cells.methods(name):
        one = cells.cell(name, method).of("tuned")
        if one is not None and "loss_evaluations" in one.metrics:
            rounds, values = cells.curve(name, method, metric="loss_evaluations")
            lines.append(Line(method, rounds, values / STEPS))
    return Panel("", lines, "evaluations a step", ylog=False)
