"""Grids of two rates as maps: what every setting of every method came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.report.heatmap import draw_map
from fedsolve.report.plots import new_figure
from fedsolve.results.metrics import describe
from fedsolve.results.sweep import Sweep
from fedsolve.studies.cells import Cells, exploded
from fedsolve.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Maps:
    """A metric at the end over the first problem's grids, all with the same two axes and values: a map a method.

    The chosen setting is framed. Values of the first axis at which every method diverged are left out, and named in the
    caption.

    Attributes:
        caption: what it shows; the seed and what is left out are added.
        metric: a column of the evaluations.
        best, worst: its values of the brightest and of the darkest colour, in the unit that is shown; None for the
            best and the worst on the maps.
        columns: maps side by side, at most.
        methods: whose grids are drawn, () for all.
    """

    caption: str
    metric: str
    best: float | None = None
    worst: float | None = None
    columns: int = 3
    methods: tuple[str, ...] = ()

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        name, problem = next(iter(study.problems.items()))
        methods = self.methods or cells.methods(name)
        drawn = [m for m in methods if m in cells.methods(name)]  # a quick run has but a few
        grids = {m: grid for m in drawn if (grid := cells.cell(name, m).grid) is not None}
        columns = max(1, min(self.columns, len(grids)))
        rows = max(1, -(-len(grids) // columns))
        figure = new_figure(max(3.6 * columns, 5.0), 3.2 * rows)
        places = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axis in places.flat[len(grids) :]:
            axis.set_axis_off()
        if not grids:  # a quick run tunes nothing
            places.flat[0].text(0, 0.5, "nothing was tuned", fontsize=9)
            return self.caption, figure
        ends = [_ends(grid, self.metric, problem.last) for grid in grids.values()]
        (y_axis, y), (x_axis, x) = next(iter(grids.values())).grid.items()
        alive = np.any([np.isfinite(end).any(axis=1) for end in ends], axis=0)
        ticks = [f"{v:g}" for v in x], [f"{v:g}" for v in np.array(y)[alive]]
        best, worst = self._range(np.stack(ends))
        images = []
        for axis, (method, grid), end in zip(places.flat, grids.items(), ends, strict=False):
            image = draw_map(
                axis,
                end[alive],
                *ticks,
                best=best,
                worst=worst,
                write=lambda v: f"{v:.2f}",
                lost="–",
            )
            images.append(image)
            axis.set_title(method, fontsize=9.5, loc="left")
            axis.tick_params(labelsize=8)
            _frame(axis, grid, alive)
        figure.suptitle(study.title, x=0.01, ha="left", fontsize=10.5)
        figure.supxlabel(x_axis, fontsize=9)
        figure.supylabel(y_axis, fontsize=9)
        figure.colorbar(images[0], ax=places, label=describe(self.metric).label)
        lost = ", ".join(f"{v:g}" for v in np.array(y)[~alive])
        left_out = f" Every method diverged at {y_axis} {lost}." if lost else ""
        return f"{self.caption} Seed {study.tuning_seed}; the chosen setting is framed.{left_out}", figure

    def _range(self, ends: np.ndarray) -> tuple[float, float]:
        """The values of the brightest and of the darkest colour."""
        found = ends[np.isfinite(ends)]
        low, high = (found.min(), found.max()) if len(found) else (0.0, 1.0)
        best, worst = (high, low) if describe(self.metric).higher_is_better else (low, high)
        return (best if self.best is None else self.best, worst if self.worst is None else self.worst)


def _ends(grid: Sweep, metric: str, last: int) -> np.ndarray:
    """The first seed's mean over the last rounds, of the grid's shape; NaN where a setting diverged."""
    counted = grid.rounds > grid.rounds[-1] - last
    end = describe(metric).scale * grid.metrics[metric][:, 0, counted].mean(axis=-1)
    lost = (grid.diverged[:, 0] >= 0) | exploded(grid)[:, 0]
    return np.where(lost, np.nan, end).reshape(grid.shape)


def _frame(axis: Axes, grid: Sweep, alive: np.ndarray) -> None:
    """A frame around the chosen setting, on a map of the rows that are shown."""
    from matplotlib.patches import Rectangle

    if not np.isfinite(grid.score).any():
        return
    row, column = np.unravel_index(grid.best, grid.shape)
    corner = (float(column) - 0.5, float(alive[:row].sum()) - 0.5)
    axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="tab:red", linewidth=2))
