"""How easy each method of some sweeps is to tune: the share of its grid that is about as good as its best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.report.heatmap import DIVERGED
from fedsolve.report.plots import new_figure, tidy
from fedsolve.report.style import LIGHT
from fedsolve.report.sweeps.sweep_words import add_title, as_list
from fedsolve.results.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def share_within(sweeps: Sequence[Sweep], share: float = 0.05) -> Figure:
    """The share of each method's grid within 5 % of its best score: how easy it is to tune; 0 if all diverged.

    Raises:
        InvalidInput: no sweeps, or matplotlib is absent.
    """
    several = as_list(sweeps)
    figure = new_figure(7.6, 1.5 + 0.34 * len(several))
    axes = figure.subplots()
    for i, sweep in enumerate(several):
        good = 100 * sweep.share_within(share) if np.isfinite(sweep.score).any() else 0.0
        axes.plot([0, good], [i, i], color=LIGHT[0], linewidth=3, solid_capstyle="butt")
        axes.plot(good, i, "o", color=LIGHT[0], markersize=8)
        text = f"{good:.0f} % of {len(sweep.score)}" if good else f"all {len(sweep.score)} {DIVERGED}"
        axes.annotate(text, (good, i), (8, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(several)), [s.label for s in several])
    axes.set_ylim(len(several) - 0.5, -0.5)
    axes.set_xlim(0, 118)
    axes.spines["bottom"].set_bounds(0, 100)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel(f"Share of the grid within {100 * share:g} % of the best score (%)")
    tidy(axes)
    axes.grid(False, axis="y")
    add_title(axes, "How easy each method is to tune", several)
    return figure
