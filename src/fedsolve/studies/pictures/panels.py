"""Curves in a grid of panels with one legend; a method has one colour and line in every picture of every study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.report.plots import log_scale, new_figure, tidy
from fedsolve.report.style import DASHES, LIGHT, wrapped
from fedsolve.studies.cells import Cells
from fedsolve.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_ORDER = (
    "FedAvg", "FedAdam", "FedDuAdam", "FedDuA", "FedExP", "FedAvgM", "FedAdagrad", "FedDuAdagrad", "FedExPM", "FedYogi",
    "SCAFFOLD", "FedProx", "FedLiLU", "FedLiLS", "FedFW", "FedDualAvg", "FedMiD", "FedDR", "DiLoCo",
    "SCAFFOLD+FedExP", "SCAFFOLD+FedDuAdagrad",
    "FedFWPlus", "FedFWSto",
)  # fmt: skip


def styles(labels: Sequence[str]) -> dict[str, tuple[str, tuple[float, ...]]]:
    """Colour and dashes of each label: a method's own wherever it is drawn.

    Others take what is free in this figure, colours that none of those has before the rest.
    """
    every = [(colour, dash) for dash in DASHES for colour in LIGHT]
    known = {label: every[_ORDER.index(label)] for label in labels if label in _ORDER}
    taken = {colour for colour, _ in known.values()}
    rest = [style for style in every if style not in known.values()] or every
    free = cycle(sorted(rest, key=lambda style: style[0] in taken))
    return {label: known[label] if label in known else next(free) for label in dict.fromkeys(labels)}


_REFERENCE = "0.25", (1.0, 1.5)


@dataclass(frozen=True)
class Line:
    """A line of a panel: x of shape (points,), y of shape (seeds, points); the seeds' range is shaded.

    A `reference` is dotted and grey, no method's line.
    """

    label: str
    x: np.ndarray
    y: np.ndarray
    reference: bool = False


@dataclass(frozen=True)
class Panel:
    """Lines under a title, with the labels of the axes; `marks` shows the points that the lines join."""

    title: str
    lines: Sequence[Line]
    ylabel: str
    xlabel: str = "communication round"
    ylog: bool = True
    xlog: bool = False
    marks: bool = False


@dataclass(frozen=True)
class Panelled:
    """A picture of panels.

    Attributes:
        caption: what it shows; how to read it and the seeds are added.
        rows: from the study and its cells to the panels, row by row.
        width, height: of a panel, in inches.
    """

    caption: str
    rows: Callable[[Study, Cells], Sequence[Sequence[Panel]]]
    width: float = 4.6
    height: float = 3.2

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        figure = panels(self.rows(study, cells), study.title, self.width, self.height)
        return f"{self.caption} Lines are means, bands ranges. {study.seeds_in_words}", figure


def panels(
    rows_of_panels: Sequence[Sequence[Panel]], title: str, width: float = 3.7, height: float = 2.7
) -> Figure:
    """Rows of panels with one legend; equal labels have equal colours and dashes everywhere."""
    rows, columns = len(rows_of_panels), max(len(row) for row in rows_of_panels)
    figure = new_figure(width * columns, height * rows + 0.9)
    grid = figure.subplots(rows, columns, squeeze=False)
    labels = list(
        dict.fromkeys(line.label for row in rows_of_panels for panel in row for line in panel.lines)
    )
    for row, axes in zip(rows_of_panels, grid, strict=True):
        for i, axis in enumerate(axes):
            if i < len(row):
                draw(axis, row[i], labels, width)
            else:
                axis.set_axis_off()
    handles = {h.get_label(): h for axis in grid.flat for h in axis.get_lines() if h.get_label() in labels}
    figure.suptitle(title, x=0.01, ha="left", fontsize=10.5)
    figure.legend(
        [handles[label] for label in labels], labels, loc="outside lower center",
        ncols=min(2 * columns, _fitting(labels, width * columns)), frameon=False, fontsize=9, handlelength=3.5,
    )  # fmt: skip
    return figure


def _fitting(labels: Sequence[str], width: float) -> int:
    """How many columns of a legend with 9 points fit on a width in inches; matplotlib cuts what does not."""
    from matplotlib.textpath import TextPath

    text = [TextPath((0, 0), label, size=9).get_extents().width / 72 for label in labels]

    def needed(count: int) -> float:
        # each with its line and margins
        return sum(0.9 + max(column) for column in np.array_split(text, count))

    return max((n for n in range(1, len(labels) + 1) if needed(n) <= width), default=1)


def draw(axis: Axes, panel: Panel, labels: Sequence[str], width: float) -> None:
    """One panel, so many inches wide with its labels."""
    from matplotlib.ticker import NullFormatter

    drawn = styles(labels)
    for line in panel.lines:
        colour, dash = _REFERENCE if line.reference else drawn[line.label]
        y = np.where(np.isfinite(line.y) & ((line.y > 0) | (not panel.ylog)), line.y, np.nan)
        axis.plot(
            line.x,
            y.mean(axis=0),  # NaN where any seed has none
            color=colour,
            linestyle=(0, dash) if dash else "-",
            linewidth=1.6,
            marker="o" if panel.marks else None,
            markersize=4,
            label=line.label,
        )
        if len(y) > 1:
            axis.fill_between(line.x, y.min(0), y.max(0), color=colour, alpha=0.15, linewidth=0)
    axis.set_title(wrapped((panel.title,), width), loc="left", fontsize=9.5)
    axis.set_xlabel(panel.xlabel, fontsize=9)
    axis.set_ylabel(panel.ylabel, fontsize=9)
    axis.tick_params(labelsize=8)
    if panel.ylog:
        log_scale(axis)
    if panel.xlog:
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter(NullFormatter())  # within a decade they would stand on one another
    tidy(axis)
