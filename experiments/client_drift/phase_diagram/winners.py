"""Who wins where: problems on two axes as a map, each in the colour and line of its best method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.studies import Cells, Study
from fedsolve.studies.author import describe
from fedsolve.studies.pictures import new_figure
from fedsolve.studies.pictures.panels import styles
from fedsolve.studies.rules import difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Winner:
    """The best method of a problem by the mean of its tuned runs, and which others it is not significantly better than.

    Attributes:
        name, second: the best and the second best method.
        mean, second_mean: their metric at the end, in the unit that is shown.
        tied: the methods without a significant difference to the best: the interval of the difference, paired by seed,
            holds zero; the intervals against all others share the 5 %.
    """

    name: str
    second: str
    mean: float
    second_mean: float
    tied: tuple[str, ...]


def winner(cells: Cells, problem: str) -> Winner:
    """The best method of a problem; one that diverged on any seed is worse than all that did not."""
    metric = describe(cells.problem(problem).metric)
    ends = {m: metric.scale * cells.final(problem, m).mean() for m in cells.methods(problem)}
    sign = -1 if metric.higher_is_better else 1
    order = sorted(ends, key=lambda m: sign * ends[m] if np.isfinite(ends[m]) else np.inf)
    first, others = order[0], order[1:]
    tied = [m for m in others if difference(cells, problem, first, m, comparisons=len(others)).low <= 0]
    return Winner(first, others[0], ends[first], ends[others[0]], tuple(tied))


@dataclass(frozen=True)
class WinnerMap:
    """A map of problems, each in its best method's colour and line; hatched where that is not better than all others.

    Attributes:
        caption: what it shows; how to read it and the seeds are added.
        at: row by row from the bottom, the problem of each column.
        rows, columns: ticks of the axes.
        ylabel, xlabel: of the axes.
    """

    caption: str
    at: Sequence[Sequence[str]]
    rows: Sequence[str]
    columns: Sequence[str]
    ylabel: str
    xlabel: str

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        at = self.at if self.at[0][0] in cells.problems else [[name] for name in cells.problems]
        names = dict.fromkeys(m for row in at for name in row for m in cells.methods(name))
        drawn = styles(list(names))
        figure = new_figure(2.1 * len(at[0]) + 1.2, 1.25 * len(at) + 1.1)
        axis = figure.subplots()
        for y, row in enumerate(at):
            for x, name in enumerate(row):
                _tile(axis, x, y, winner(cells, name), drawn)
        axis.set_xlim(-0.5, len(at[0]) - 0.5)
        axis.set_ylim(-0.5, len(at) - 0.5)
        axis.set_xticks(range(len(at[0])), self.columns[: len(at[0])])
        axis.set_yticks(range(len(at)), self.rows[: len(at)])
        axis.set_xlabel(self.xlabel)
        axis.set_ylabel(self.ylabel)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        axis.set_title(study.title, loc="left", fontsize=10.5)
        metric = describe(next(iter(cells.problems.values())).metric)
        reading = (
            f"Each tile: the best method, its {metric.title.lower()} at the end, the second best and by what "
            "factor its own is larger. Hatched: no significant difference to so many of the others (95 % "
            "intervals paired by seed, shared over all others)."
        )
        return f"{self.caption} {reading} {study.seeds_in_words}", figure


def _tile(
    axis: Axes, x: int, y: int, found: Winner, drawn: Mapping[str, tuple[str, tuple[float, ...]]]
) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    colour, dash = drawn[found.name]
    light = tuple(1 - 0.45 * (1 - c) for c in to_rgb(colour))  # black text stays readable
    hatch = "////" if found.tied else None
    corner, line = (x - 0.47, y - 0.45), (0, dash) if dash else "-"
    axis.add_patch(Rectangle(corner, 0.94, 0.9, facecolor=light, hatch=hatch, edgecolor="white", linewidth=0))
    axis.add_patch(Rectangle(corner, 0.94, 0.9, fill=False, edgecolor=colour, linestyle=line, linewidth=2))
    box = {"facecolor": light, "edgecolor": "none", "pad": 1.5}
    lines = [f"{found.mean:.3g}", f"{found.second} ×{found.second_mean / found.mean:.2f}"]
    lines += [f"tied: {len(found.tied)}"] if found.tied else []
    axis.text(x, y + 0.22, found.name, ha="center", va="center", fontsize=9.5, weight="bold", bbox=box)
    axis.text(x, y - 0.12, "\n".join(lines), ha="center", va="center", fontsize=8, bbox=box)
