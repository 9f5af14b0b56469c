"""A picture of the Frank-Wolfe experiments: accuracies beside the published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedsolve.report.plots import new_figure
from fedsolve.report.style import LIGHT

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def beside(points: Mapping[str, tuple[Sequence[float], Sequence[float]]], title: str) -> Figure:
    """Published accuracies against ours, a marker for each method; on the line they are equal."""
    figure = new_figure(6.4, 5.2)
    axis = figure.subplots()
    axis.plot([0, 100], [0, 100], color="0.7", linewidth=1, zorder=0)
    for i, (label, (theirs, ours)) in enumerate(points.items()):
        axis.plot(theirs, ours, "os^D"[i % 4], color=LIGHT[i], label=label, markersize=6, alpha=0.85)
    axis.set(xlim=(0, 100), ylim=(0, 100))
    axis.set_xlabel("published test accuracy (%)")
    axis.set_ylabel("test accuracy here (%)")
    axis.set_title(title, loc="left", fontsize=10)
    axis.grid(True, color="0.9", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9, loc="upper left")
    return figure
