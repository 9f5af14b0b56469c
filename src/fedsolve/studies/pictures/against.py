"""A paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.report.plots import new_figure, tidy
from fedsolve.results.metrics import describe
from fedsolve.studies.cells import Cells, Which
from fedsolve.studies.pictures.panels import styles
from fedsolve.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Against:
    """The paper's numbers against ours, a point a method: what agrees in order rises from left to right."""

    caption: str
    which: Which = "tuned"

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        names = [name for name, p in study.problems.items() if p.published] or list(study.problems)
        figure = new_figure(4.4 * len(names), 4.0)
        for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            problem = cells.problem(name)
            metric = describe(problem.metric)
            labels = [m for m in cells.methods(name) if m in problem.published]
            if not labels:
                axis.text(0.5, 0.5, "nothing is published for this size", ha="center", fontsize=9)
            points = {}
            for label, (colour, _) in styles(labels).items():
                ours = metric.scale * cells.final(name, label, self.which)
                theirs = metric.scale * problem.published[label]
                if not np.isfinite(ours).all():
                    continue
                low, high = ours.mean() - ours.min(), ours.max() - ours.mean()
                axis.errorbar(
                    theirs, ours.mean(), [[low], [high]], fmt="o", color=colour, capsize=3, markersize=5
                )
                points[label] = theirs, float(ours.mean())
            axis.set_title(problem.title, loc="left", fontsize=9.5)
            axis.set_xlabel(f"published: {metric.label.lower()}", fontsize=9)
            axis.set_ylabel(f"here: {metric.label.lower()}", fontsize=9)
            axis.tick_params(labelsize=8)
            axis.margins(0.2, 0.15)
            tidy(axis)
            _name(axis, points)
        return f"{self.caption} Bars: range of seeds. {study.seeds_in_words}", figure


def _name(axis: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Write each name beside its point, in data's units; below where another name stands already."""
    axis.autoscale_view()
    height, letter = 10.0, 5.0  # of the text, in points
    scale = axis.figure.dpi / 72
    placed: list[tuple[float, float, float]] = []
    for name, point in sorted(points.items(), key=lambda item: -item[1][1]):
        at = axis.transData.transform(point) / scale
        x, y, width = at[0] + 5, at[1] + 4, letter * len(name)
        while hit := [b for a, b, w in placed if x < a + w and a < x + width and abs(y - b) < height]:
            y = min(hit) - height
        placed.append((x, y, width))
        axis.annotate(name, point, (5, y - at[1]), textcoords="offset points", fontsize=8)
