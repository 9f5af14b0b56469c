"""Several metrics of each method at the end of a study, a panel each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsolve.report.plots import new_figure, tidy
from fedsolve.results.metrics import describe
from fedsolve.studies.cells import Cells
from fedsolve.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Ends:
    """Means with 95 % intervals over the seeds, in numbers too: a panel a metric, a row a problem, methods in order.

    Attributes:
        caption: what is shown.
        metrics: column of the evaluations -> the panel's title.
    """

    caption: str
    metrics: Mapping[str, str]

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        most = max(len(cells.methods(problem)) for problem in cells.problems)
        size = 2.6 * len(self.metrics) + 1.0, (0.8 + 0.3 * most) * len(cells.problems)
        figure = new_figure(*size)
        axes = figure.subplots(len(cells.problems), len(self.metrics), squeeze=False)
        for row, problem in zip(axes, cells.problems, strict=True):
            names = cells.methods(problem)[::-1]
            for axis, (metric, title) in zip(row, self.metrics.items(), strict=True):
                scale, unit = describe(metric).scale, describe(metric).unit
                for place, name in enumerate(names):
                    found = cells.interval(problem, scale * cells.final(problem, name, metric=metric))
                    axis.plot([found.low, found.high], [place, place], color="0.55", linewidth=2)
                    axis.plot(found.mean, place, "o", color="C0", markersize=4)
                    axis.annotate(
                        f"{found.mean:.3g}", (found.mean, place), xytext=(0, 4), textcoords="offset points",
                        fontsize=7, ha="center",
                    )  # fmt: skip
                axis.set_yticks(range(len(names)), names if axis is row[0] else [], fontsize=8)
                axis.set_title(f"{problem}: {title}" if len(axes) > 1 else title, loc="left", fontsize=8.5)
                axis.set_xlabel(unit, fontsize=8)
                axis.margins(0.15, 0.15)
                tidy(axis)
        return f"{self.caption} {study.seeds_in_words}", figure
