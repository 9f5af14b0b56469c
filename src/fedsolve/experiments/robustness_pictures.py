"""Pictures of robustness: all accuracies as one map, and accuracy by the share of attackers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.experiments.robustness_statements import ATTACKS, SHARES, at
from fedsolve.report.heatmap import draw_map
from fedsolve.report.plots import new_figure
from fedsolve.results.metrics import describe
from fedsolve.studies.cells import Cells
from fedsolve.studies.panels import Line, Panel, panels
from fedsolve.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Overview:
    """The metric at the end, a row a problem, a column a method.

    Attributes:
        caption: what it shows.
    """

    caption: str

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        names = list(study.problems)[::-1]  # the first row of a map is at its bottom
        methods = cells.methods(names[0])
        metric = describe(cells.problem(names[0]).metric)
        values = np.array([[cells.final(name, m).mean() for m in methods] for name in names])
        figure = new_figure(8.4, 1.4 + 0.28 * len(names))
        axis = figure.subplots()
        columns = [name.replace(" ", "\n") for name in methods]
        rows = [cells.problem(name).title for name in names]
        image = draw_map(
            axis,
            metric.scale * values,
            columns,
            rows,
            best=100,
            worst=0,
            write=lambda v: f"{v:.0f}",
            lost="–",
            size=9,
        )
        axis.tick_params(labelsize=8)
        axis.xaxis.tick_top()
        figure.colorbar(image, ax=axis, label=metric.label)
        return self.caption, figure


@dataclass(frozen=True)
class ByShare:
    """The metric at the end by the share of attackers, a panel an attack, a line a method.

    Attributes:
        caption: what it shows.
    """

    caption: str

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        found = [self._panel(cells, attack) for attack in ATTACKS if at(attack, SHARES[0]) in study.problems]
        found = found or [Panel("nothing was attacked", [], "", ylog=False)]  # a quick run
        figure = panels([found[:3], found[3:]] if len(found) > 3 else [found], study.title, 3.3, 2.6)
        for axis in figure.axes:
            axis.set_ylim(0, 100)
        return self.caption, figure

    def _panel(self, cells: Cells, attack: str) -> Panel:
        problems = [at("", 0), *(at(attack, share) for share in SHARES)]
        metric = describe(cells.problem(problems[0]).metric)
        lines = []
        for method in cells.methods(problems[0]):
            ends = np.stack([cells.final(name, method) for name in problems], axis=1)
            lines.append(Line(method, np.array([0, *SHARES]), metric.scale * ends))
        return Panel(ATTACKS[attack], lines, metric.label, "clients that attack (%)", ylog=False, marks=True)
