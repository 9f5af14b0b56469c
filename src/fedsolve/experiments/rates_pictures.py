"""Pictures of measured rates, with the slopes of the theorems beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedsolve.studies.panels import Line, Panel, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def convex_picture(problems: dict[str, Any], lines: dict[tuple[str, str], Any], note: str) -> Figure:
    """A panel for each problem: F - F* against rounds, log-log."""
    row = [
        Panel(
            problem.title,
            [
                Line(label, c["round"][1:], c["suboptimality"][:, 1:])
                for (p, label), c in lines.items()
                if p == name
            ],
            "F(xbar) - F*",
            xlog=True,
        )
        for name, problem in problems.items()
    ]
    figure = panels([row], f"Convex: suboptimality by round · {note}", height=3.6)
    for axis, name in zip(figure.axes, problems, strict=False):
        top = max(c["suboptimality"][:, 1:].max() for (p, _), c in lines.items() if p == name)
        last = max(int(c["round"][-1]) for c in lines.values())
        for rate, text in ((1 / 2, "$t^{-1/2}$"), (1 / 3, "$t^{-1/3}$")):
            guide(axis, 10, last, 4 * top, rate, text)
    return figure


def nonconvex_picture(
    problems: dict[str, Any], gaps: dict[tuple[str, float, float], np.ndarray], horizons: Any, note: str
) -> Figure:
    """A panel for each problem: the smallest gap against T, log-log."""
    row = [
        Panel(
            problem.title,
            [
                Line(f"p = {part:g}, lam0 = {lam0:g}", np.array(horizons), g)
                for (p, part, lam0), g in gaps.items()
                if p == name
            ],
            "smallest gap of the run",
            xlabel="rounds T of the run",
            xlog=True,
        )
        for name, problem in problems.items()
    ]
    figure = panels([row], f"Not convex: smallest gap by T\n{note}", height=3.6, width=4.2)
    for axis, name in zip(figure.axes, problems, strict=False):
        top = max(g.max() for (p, _, _), g in gaps.items() if p == name)
        guide(axis, horizons[0], horizons[-1], 2 * top, 1 / 3, "$T^{-1/3}$")
    return figure


def guide(axis: Axes, start: float, stop: float, top: float, rate: float, text: str) -> None:
    """A grey line of a slope, from a height at its start, with its name at the end."""
    end = top * (stop / start) ** -rate
    axis.plot([start, stop], [top, end], color="0.6", linewidth=1, linestyle="--", zorder=0)
    axis.annotate(
        text, (stop, end), color="0.35", fontsize=9, ha="right", va="bottom", textcoords="offset points",
        xytext=(0, 8),
    )  # fmt: skip
