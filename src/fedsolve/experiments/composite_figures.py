"""Pictures of the composite experiments: curves at the tuned rates, and every setting of the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.experiments.composite_grid import ETA_C, ETA_S, Swept
from fedsolve.report.heatmap import draw_map
from fedsolve.report.plots import new_figure
from fedsolve.report.style import LIGHT

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curves_figure(
    title: str,
    swept: Mapping[str, Swept],
    chosen: Mapping[str, int],
    panels: Sequence[tuple[str, str, bool]],
    central: Mapping[str, float],
) -> Figure:
    """One panel a metric (name, label, log scale): each method at its chosen setting, the centralised solution."""
    columns = 3
    rows = -(-len(panels) // columns)
    figure = new_figure(11.5, 3.4 * rows + 0.9)
    axes = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for ax, (name, label, log) in zip(axes, panels, strict=False):
        for i, (method, found) in enumerate(swept.items()):
            c, s = ETA_C[chosen[method] // len(ETA_S)], ETA_S[chosen[method] % len(ETA_S)]
            text = f"{method} ($\\eta_c$ {c:g}, $\\eta_s$ {s:g})"
            ax.plot(
                found.rounds, found.metrics[name][chosen[method]], color=LIGHT[i], label=text, linewidth=1.6
            )
        if name in central:
            ax.axhline(central[name], color="0.25", linestyle=":", linewidth=1.6, label="centralised (FISTA)")
        if log:
            ax.set_yscale("log")
        elif name in ("f1", "density", "precision", "recall"):
            ax.set_ylim(-0.03, 1.05)
        ax.set_xlabel("communication round")
        ax.set_ylabel(label)
        ax.grid(color="0.9")
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def grid_figure(
    title: str, swept: Mapping[str, Swept], name: str, label: str, best: float, worst: float
) -> Figure:
    """A metric at the end for every setting of every method, as one map of the grid each; diverged is grey."""
    figure = new_figure(2.45 * len(swept) + 0.6, 3.7)
    axes = np.atleast_1d(figure.subplots(1, len(swept), sharey=True))
    image = None
    for ax, (method, found) in zip(axes, swept.items(), strict=True):
        values = found.tail(name).reshape(len(ETA_C), len(ETA_S))
        x, y = ([f"{rate:g}" for rate in rates] for rates in (ETA_S, ETA_C))
        image = draw_map(
            ax, values, x, y, best=best, worst=worst, write=lambda v: f"{v:.2f}", lost="–", size=6.5
        )
        ax.set_title(f"{method}\n{found.alive} of {values.size} settings finite", fontsize=9)
        ax.tick_params(labelsize=7)
        ax.set_xlabel("server rate $\\eta_s$")
    axes[0].set_ylabel("client rate $\\eta_c$")
    if image is not None:
        figure.colorbar(image, ax=axes, shrink=0.9, label=label)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure
