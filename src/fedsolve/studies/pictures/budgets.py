"""What methods come to by the number of settings that are tried: who is easy to tune."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.report.plots import new_figure, tidy
from fedsolve.studies.budgets import expected
from fedsolve.studies.cells import Cells
from fedsolve.studies.pictures.panels import styles
from fedsolve.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OTHERS = "0.82"


@dataclass(frozen=True)
class Budgets:
    """`expected`, the mean over the problems, by settings tried: a panel a method, all others in grey behind it.

    Attributes:
        caption: what it shows; the seed is added.
        tried: numbers of settings.
        columns: panels side by side.
    """

    caption: str
    tried: Sequence[int]
    columns: int = 4

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        means = shares(cells, self.tried)
        rows = max(1, -(-len(means) // self.columns))
        figure = new_figure(2.6 * self.columns, 2.3 * rows + 0.5)
        axes = figure.subplots(rows, self.columns, sharex=True, sharey=True, squeeze=False)
        if not means:  # a quick run tunes nothing
            axes.flat[0].text(0, 0.5, "nothing was tuned", fontsize=9)
        for axis in axes.flat[len(means) :]:
            axis.set_axis_off()
        for axis, method in zip(axes.flat, means, strict=False):
            self._panel(axis, means, method)
            least = min(float(values.min()) for values in means.values())
            axis.set_ylim(max(least - 0.1, 0), 1.05)
        figure.supxlabel("settings tried (1: the default)", fontsize=9)
        figure.supylabel("share of the best that was reached", fontsize=9)
        figure.suptitle(study.title, x=0.01, ha="left", fontsize=10.5)
        return f"{self.caption} Seed {study.tuning_seed}.", figure

    def _panel(self, axis: Axes, means: dict[str, np.ndarray], method: str) -> None:
        for other, values in means.items():
            if other != method:
                axis.plot(self.tried, values, color=_OTHERS, linewidth=1)
        colour, dash = styles(sorted(means))[method]
        line = (0, dash) if dash else "-"
        axis.plot(
            self.tried, means[method], color=colour, linestyle=line, linewidth=2, marker="o", markersize=4
        )
        for at, side in ((0, "left"), (-1, "right")):
            value = float(means[method][at])
            at_point = {"xy": (self.tried[at], value), "xytext": (0, 7), "textcoords": "offset points"}
            axis.annotate(f"{value:.2f}", **at_point, fontsize=8, ha=side)
        axis.set_title(method, loc="left", fontsize=9.5)
        axis.set_xscale("log")
        axis.set_xticks(list(self.tried), [str(k) for k in self.tried])
        axis.minorticks_off()
        axis.tick_params(labelsize=8)
        tidy(axis)


def shares(cells: Cells, tried: Sequence[int]) -> dict[str, np.ndarray]:
    """Method -> the mean over the problems of `expected`, shape (tried,); empty where nothing was tuned."""
    found = {k: [expected(cells, problem, k) for problem in cells.problems] for k in tried}
    methods = found[tried[0]][0]
    return {m: np.array([np.mean([one[m] for one in found[k]]) for k in tried]) for m in methods}
