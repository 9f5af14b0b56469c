"""Pictures of `fedli-convex`: a curve by round, and below it what its line search cost in the same rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.experiments import fedli_theorems as theorems
from fedsolve.experiments.fedli_problems import L2, ONES, STEPS, smoothness
from fedsolve.results.metrics import describe
from fedsolve.studies.cells import Cells
from fedsolve.studies.panels import Line, Panel, panels
from fedsolve.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOUND = "Theorem 2's bound"
LEAST = 1e-16
"""What is less, 0 or rounding, is drawn there."""


@dataclass(frozen=True)
class BesideSearch:
    """A metric by round in rows of problems, each with a row below it: loss evaluations a local step.

    Attributes:
        caption: what it shows; the seeds are added.
        metric: a column of the evaluations; Theorem 2's bound is drawn where it is the squared distance.
        rows: names of the problems side by side.
    """

    caption: str
    metric: str
    rows: Sequence[Sequence[str]]

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        rows = self.rows if self.rows[0][0] in cells.problems else [list(cells.problems)]
        found = []
        for names in rows:
            found.append([self._above(cells, name) for name in names])
            found.append([_evaluations(cells, name) for name in names])
        caption = (
            f"{self.caption} Below each: loss evaluations a local step. Mean and range over data sets, seeds "
        )
        return f"{caption}{', '.join(map(str, study.seeds))}.", panels(found, study.title, height=2.3)

    def _above(self, cells: Cells, name: str) -> Panel:
        lines = []
        for method in cells.methods(name):
            rounds, values = cells.curve(name, method, metric=self.metric)
            lines.append(Line(method, rounds, np.maximum(values, LEAST)))
        dataset = name.split(",")[0]
        if self.metric == "squared_distance" and dataset in ONES:
            rounds, squares = cells.curve(name, cells.methods(name)[0], metric=self.metric)
            bound = theorems.linear(
                smoothness(dataset), STEPS, L2, squares[:, :1].mean(0, keepdims=True), rounds
            )
            lines.append(Line(BOUND, rounds, bound, reference=True))
        return Panel(name, lines, describe(self.metric).label)


def _evaluations(cells: Cells, name: str) -> Panel:
    lines = []
    for method in cells.methods(name):
        one = cells.cell(name, method).of("tuned")
        if one is not None and "loss_evaluations" in one.metrics:
            rounds, values = cells.curve(name, method, metric="loss_evaluations")
            lines.append(Line(method, rounds, values / STEPS))
    return Panel("", lines, "evaluations a step", ylog=False)
