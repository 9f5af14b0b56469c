"""Figure 12 of Yuan et al. 2021: density against accuracy of every pair of rates, as the rounds go by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.experiments.composite import CENTRAL
from fedsolve.experiments.fmri_statements import ALONE, NAME, SHOWN, shown
from fedsolve.report.plots import new_figure, tidy
from fedsolve.studies.cells import Cells
from fedsolve.studies.study import Study
from fedsolve.studies.styles import styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_AT = (10, 30, 100, 300)
"""Rounds of the paper's panels."""


@dataclass(frozen=True)
class Dots:
    """A row a method, a column a round: a dot for each setting of the grid, up and to the left is better.

    Attributes:
        caption: what it shows.
    """

    caption: str

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        names = [m for m in cells.methods(next(iter(study.problems))) if (NAME, m) in cells.by_name]
        grids = {m: grid for m in names if (grid := cells.cell(NAME, m).grid) is not None}
        figure = new_figure(2.3 * len(_AT) + 0.8, 1.9 * max(1, len(grids)) + 1.0)
        axes = figure.subplots(max(1, len(grids)), len(_AT), sharex=True, sharey=True, squeeze=False)
        if not grids:  # a quick run tunes nothing
            axes.flat[0].text(0, 0.5, "nothing was tuned", fontsize=9)
            return self.caption, figure
        colours = styles(list(grids))
        for row, (method, grid) in zip(axes, grids.items(), strict=True):
            for axis, at in zip(row, _AT, strict=True):
                which = int(np.searchsorted(grid.rounds, at))
                here = {name: values[:, 0, which] for name, values in grid.metrics.items()}
                chosen = shown(grid)
                axis.scatter(
                    here["density"][chosen], 100 * here["validation_accuracy"][chosen], s=18, alpha=0.7,
                    color=colours[method][0], label="a pair of rates",
                )  # fmt: skip
                for name, mark, label in ((ALONE, "x", "a client alone"), (CENTRAL, "P", CENTRAL)):
                    point = here[f"{name}_density"][:1], 100 * here[f"{name}_validation_accuracy"][:1]
                    axis.scatter(*point, marker=mark, s=46, color="black", label=label, zorder=3)
                tidy(axis)
                axis.tick_params(labelsize=8)
            row[0].set_ylabel(f"{method}\naccuracy (%)", fontsize=9)
        for axis, at in zip(axes[0], _AT, strict=True):
            axis.set_title(f"round {at}", loc="left", fontsize=9.5)
        for axis in axes[-1]:
            axis.set_xlabel("density", fontsize=9)
        figure.suptitle(study.title, x=0.01, ha="left", fontsize=10.5)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
        low, high = SHOWN
        words = f"with client rate times server rate from {low:g} to {high:g}, on split {study.tuning_seed}; up and to"
        return f"{self.caption} {words} the left is better. Crosses: the baselines.", figure
