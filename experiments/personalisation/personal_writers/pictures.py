"""Several metrics of each method at the end, one panel each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsolve.studies import Cells, Study
from fedsolve.studies.pictures import new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class MetricPanels:
    """Means with 95 % intervals over seeds, a panel a metric, methods in the order of the study.

    Attributes:
        caption: what is shown.
        metrics: column of the evaluations -> the panel's title.
    """

    caption: str
    metrics: Mapping[str, str]

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        problem = next(iter(cells.problems))
        names = cells.methods(problem)[::-1]
        figure = new_figure(2.6 * len(self.metrics) + 1.2, 0.7 + 0.3 * len(names))
        axes = figure.subplots(1, len(self.metrics), sharey=True, squeeze=False)[0]
        for axis, (metric, title) in zip(axes, self.metrics.items(), strict=True):
            for place, name in enumerate(names):
                found = cells.interval(problem, 100 * cells.final(problem, name, metric=metric))
                axis.plot([found.low, found.high], [place, place], color="0.55", linewidth=2)
                axis.plot(found.mean, place, "o", color="C0", markersize=5)
            axis.set_yticks(range(len(names)), names, fontsize=8)
            axis.set_title(title, loc="left", fontsize=9.5)
            axis.set_xlabel("accuracy, %", fontsize=9)
            axis.margins(0.08, 0.08)
            tidy(axis)
        return f"{self.caption} {study.seeds_in_words}", figure
