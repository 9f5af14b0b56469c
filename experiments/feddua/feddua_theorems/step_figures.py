"""Pictures of `feddua-theorems`: the best step over FedDuA's, and the worst case along a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from experiments.feddua.feddua_theorems.step_search import along_the_step
from fedsolve.studies.pictures import LIGHT, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWS = 10


def ratios_by_geometry(ratios: Mapping[tuple[str, str], np.ndarray], steps: Sequence[str]) -> Figure:
    """A panel for each kind of step, a row for each geometry: range, middle half, median."""
    names = list(dict.fromkeys(name for _, name in ratios))[::-1]
    figure = new_figure(9.2, 3.4)
    axes = figure.subplots(1, len(steps), squeeze=False)[0]
    for axis, words in zip(axes, steps, strict=True):
        for place, name in enumerate(names):
            low, first, middle, third, high = np.quantile(ratios[words, name], (0, 0.25, 0.5, 0.75, 1))
            axis.plot([low, high], [place, place], color="0.6", linewidth=1.5)
            axis.plot([first, third], [place, place], color=LIGHT[0], linewidth=6, solid_capstyle="butt")
            axis.plot(middle, place, "|", color="white", markersize=9, markeredgewidth=2)
        axis.axvline(1, color="0.25", linestyle=(0, (1.0, 1.5)))
        axis.set_xscale("log")
        axis.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
        axis.minorticks_off()
        axis.set_yticks(range(len(names)), names if axis is axes[0] else [], fontsize=9)
        axis.set_title(words, loc="left", fontsize=9.5)
        axis.set_xlabel("best step size over FedDuA's", fontsize=9)
        tidy(axis)
    return figure


def worst_case_by_rate(names: Sequence[str], features: int, clients: int) -> Figure:
    """A panel for each geometry: the worst case in units of FedDuA's, a line a draw."""
    figure = new_figure(2.6 * len(names), 2.9)
    axes = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    lengths = np.linspace(0, 2.5, 101)
    with jax.enable_x64(True):
        for axis, name in zip(axes, names, strict=True):
            for seed in range(DRAWS):
                values = along_the_step(name, seed, features, clients, lengths)
                axis.plot(lengths, values, color=LIGHT[0], alpha=0.5, linewidth=1)
            axis.axvline(1, color="0.25", linestyle=(0, (1.0, 1.5)))
            axis.set_title(name, loc="left", fontsize=9.5)
            axis.set_xlabel("length of the step over FedDuA's", fontsize=9)
            tidy(axis)
    axes[0].set_ylim(-1.1, 1)
    axes[0].set_ylabel("V over |V| at FedDuA's step", fontsize=9)
    return figure
