"""Grids of two rates as maps: what every setting of every method came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsolve.report.plots import new_figure
from fedsolve.report.style import Colours, draw_map, frame
from fedsolve.results.metrics import describe
from fedsolve.results.sweep import SweepRecord
from fedsolve.studies.cells import Cells, ends
from fedsolve.studies.parts import fixed, within
from fedsolve.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Maps:
    """A metric at the end over the grids of one problem, all with the same two axes: a map a method.

    The chosen setting is framed. Left out, and told in the caption, are values that some method has not run, and those
    of the first axis at which every method diverged.

    Attributes:
        caption: what it shows; the seeds, over which it is the mean, and what is left out are added.
        metric: a column of the evaluations.
        best, worst: its values of the brightest and of the darkest colour, in the unit that is shown; None for the
            best and the worst on the maps.
        columns: maps side by side, at most.
        methods: whose grids are drawn, () for all.
        problem: of the study, None for the first.
        at: values of further axes at which the grids are shown.
    """

    caption: str
    metric: str
    best: float | None = None
    worst: float | None = None
    columns: int = 3
    methods: tuple[str, ...] = ()
    problem: str | None = None
    at: Mapping[str, Any] = field(default_factory=dict)

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        name = next((n for n in study.problems if n == self.problem), next(iter(study.problems)))
        problem = study.problems[name]
        methods = self.methods or cells.methods(name)
        drawn = [m for m in methods if m in cells.methods(name)]  # a quick run has but a few
        all_grids = {m: grid for m in drawn if (grid := cells.cell(name, m).grid) is not None}
        grids = {m: fixed(grid, **self.at) for m, grid in all_grids.items()}
        columns = max(1, min(self.columns, len(grids)))
        rows = max(1, -(-len(grids) // columns))
        figure = new_figure(max(3.6 * columns, 5.0), 3.2 * rows)
        places = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axis in places.flat[len(grids) :]:
            axis.set_axis_off()
        if not grids:  # a quick run tunes nothing
            places.flat[0].text(0, 0.5, "nothing was tuned", fontsize=9)
            return self.caption, figure
        (y_axis, y), (x_axis, x) = shared = _shared([grid.grid for grid in grids.values()])
        shown = [_ends(within(grid, dict(shared)), self.metric, problem.last) for grid in grids.values()]
        alive = np.any([np.isfinite(end).any(axis=1) for end in shown], axis=0)
        ticks = [f"{v:.3g}" for v in x], [f"{v:.3g}" for v in np.array(y)[alive]]
        colours = self._colours(np.stack(shown))
        images, outside = [], []
        for axis, (method, grid), end in zip(places.flat, grids.items(), shown, strict=False):
            look: dict[str, Any] = {"write": lambda v: f"{v:.2f}", "lost": "–"}
            images.append(draw_map(axis, end[alive], *ticks, colours, **look))
            axis.set_title(method, fontsize=9.5, loc="left")
            axis.tick_params(labelsize=8)
            chosen = grid.best_settings if np.isfinite(grid.score).any() else {}
            if chosen and chosen[y_axis] in y and chosen[x_axis] in x:
                frame(axis, int(alive[: y.index(chosen[y_axis])].sum()), x.index(chosen[x_axis]))
            elif chosen:
                outside.append(f"{method}'s {y_axis} {chosen[y_axis]:g}, {x_axis} {chosen[x_axis]:g}")
        figure.suptitle(study.title, x=0.01, ha="left", fontsize=10.5)
        figure.supxlabel(x_axis, fontsize=9)
        figure.supylabel(y_axis, fontsize=9)
        figure.colorbar(images[0], ax=places, label=describe(self.metric).label)
        lost = ", ".join(f"{v:g}" for v in np.array(y)[~alive])
        left_out = f" Every method diverged at {y_axis} {lost}." if lost else ""
        if any(dict(grid.grid) != dict(shared) for grid in grids.values()):
            left_out += " Values that only some methods have run are left out"
            left_out += f", among them what was chosen: {'; '.join(outside)}." if outside else "."
        seeds = next(iter(grids.values())).seeds
        mean = f"Seed {seeds[0]}" if len(seeds) == 1 else f"Mean over seeds {', '.join(map(str, seeds))}"
        return f"{self.caption} {mean}; the chosen setting is framed.{left_out}", figure

    def _colours(self, shown: np.ndarray) -> Colours:
        values = shown[np.isfinite(shown)]
        low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
        best, worst = (high, low) if describe(self.metric).higher_is_better else (low, high)
        return Colours(best if self.best is None else self.best, worst if self.worst is None else self.worst)


def _shared(grids: Sequence[Mapping[str, tuple[Any, ...]]]) -> list[tuple[str, tuple[Any, ...]]]:
    """Both axes with the values that every grid has."""
    return [
        (axis, tuple(v for v in values if all(v in grid[axis] for grid in grids)))
        for axis, values in grids[0].items()
    ]


def _ends(grid: SweepRecord, metric: str, last: int) -> np.ndarray:
    """The mean over seeds and the last rounds, of the grid's shape; NaN where a setting diverged."""
    return describe(metric).scale * ends(grid, metric, last).mean(axis=1).reshape(grid.shape)
