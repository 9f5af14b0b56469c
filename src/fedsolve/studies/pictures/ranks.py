"""The critical-difference diagram: mean ranks on an axis, bars over methods that do not differ (Demšar 2006)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.report.plots import new_figure
from fedsolve.studies.cells import Cells
from fedsolve.studies.pictures.panels import styles
from fedsolve.studies.rules.ranks import Ranked, Ranks
from fedsolve.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class CriticalDifference:
    """Mean ranks over all problems of a study, a panel a way of ranking.

    Attributes:
        caption: what it shows; Friedman's test and the critical difference are added.
        ranked: what stands above a panel -> how its ranks follow from the cells.
    """

    caption: str
    ranked: dict[str, Ranked]

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        if len(cells.problems) < 2:  # a quick run has one
            figure = new_figure(4, 1)
            figure.text(0.05, 0.5, "one problem: nothing is ranked", fontsize=9)
            return self.caption, figure
        found = {title: ranked(cells) for title, ranked in self.ranked.items()}
        heights = [_rows(ranks) + 4.0 for ranks in found.values()]
        figure = new_figure(9, 0.24 * sum(heights) + 0.3)
        ratios = {"height_ratios": heights}
        axes = figure.subplots(len(found), 1, squeeze=False, gridspec_kw=ratios)[:, 0]
        for axis, (title, ranks) in zip(axes, found.items(), strict=True):
            _draw(axis, ranks, f"{title}: {_words(ranks)}")
        figure.suptitle(study.title, x=0.01, ha="left", fontsize=10.5)
        said = "; ".join(f"{title}: {_words(ranks)}" for title, ranks in found.items())
        caption = f"{self.caption} Methods under one bar cannot be told apart. {said}."
        return caption, figure


def _words(ranks: Ranks) -> str:
    return f"Friedman's p = {ranks.p:.2g}, critical difference {ranks.critical_difference:.2f}"


def _rows(ranks: Ranks) -> int:
    """Lines below the axis: half of the names, and a bar for each group."""
    return -(-len(ranks.methods) // 2) + len(ranks.groups)


def _draw(axis: Axes, ranks: Ranks, title: str) -> None:
    """Names fan out to both sides below the axis, best on the left; bars stand between the axis and the names."""
    k, order = len(ranks.methods), np.argsort(ranks.mean, kind="stable")
    colours = styles(sorted(ranks.methods))
    axis.plot([1, k], [0, 0], color="0.2", linewidth=1)
    for tick in range(1, k + 1):
        axis.plot([tick, tick], [0, 0.25], color="0.2", linewidth=1)
        axis.text(tick, 0.4, str(tick), ha="center", va="bottom", fontsize=8)
    room = ranks.critical_difference
    axis.plot([1, min(1 + room, k)], [1.7, 1.7], color="0.2", linewidth=2, marker="|")
    axis.text(1, 1.95, f"critical difference {room:.2f}", va="bottom", fontsize=8)
    for number, group in enumerate(ranks.groups):
        at = [ranks.of(group[0]) - 0.06, ranks.of(group[-1]) + 0.06]
        axis.plot(at, [-0.6 - number] * 2, color="0.45", linewidth=3.5, solid_capstyle="butt")
    left = -(-k // 2)
    for place, i in enumerate(order):
        on_left = place < left
        depth = -(len(ranks.groups) + 1.0 + (place if on_left else k - 1 - place))
        edge = 0.8 if on_left else k + 0.2
        colour, dash = colours[ranks.methods[i]]
        mean = ranks.mean[i]
        line = (0, dash) if dash else "-"
        axis.plot(
            np.array([mean, mean, edge]), [0, depth, depth], color=colour, linestyle=line, linewidth=1.4
        )
        text = f"{ranks.methods[i]}  {mean:.1f}" if on_left else f"{mean:.1f}  {ranks.methods[i]}"
        axis.text(
            edge - 0.08 if on_left else edge + 0.08, depth, text, color="0.1", fontsize=8.5,
            ha="right" if on_left else "left", va="center",
        )  # fmt: skip
    axis.set_xlim(1 - 0.28 * k, k + 0.28 * k)
    axis.set_ylim(-(_rows(ranks) + 1.0), 3.0)
    axis.set_title(title, loc="left", fontsize=9.5)
    axis.set_axis_off()
