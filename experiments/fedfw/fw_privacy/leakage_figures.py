"""Pictures of the leakage experiment: what was found from each message, and how good it is by iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.studies.pictures import LIGHT, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREY = "a grey guess"


@dataclass(frozen=True)
class Leak:
    """What was found of one image: its part's arrays, by message and kind."""

    arrays: Mapping[str, np.ndarray]

    def image(self, name: str) -> np.ndarray:
        """(height, width, channels): the original, or what was found from a message."""
        return self.arrays[f"{name} image"]

    def psnr(self, name: str) -> np.ndarray:
        """In dB by look; of guessing 1/2 everywhere."""
        if name != GREY:
            return self.arrays[f"{name} psnr"]
        return -10 * np.log10(np.mean((self.image("original") - 0.5) ** 2, keepdims=True)).ravel()


def gallery(leaks: Sequence[Leak], names: Sequence[str], setting: str) -> Figure:
    """The originals above what was found from each message, with its PSNR."""
    rows = ("original", *names)
    figure = new_figure(1.6 + 1.05 * len(leaks), 0.6 + 1.22 * len(rows))
    for line, name in zip(figure.subplots(len(rows), len(leaks), squeeze=False), rows, strict=True):
        for axis, leak in zip(line, leaks, strict=True):
            picture = np.clip(np.squeeze(leak.image(name)), 0, 1)
            axis.imshow(picture, cmap="gray" if picture.ndim == 2 else None, vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
            if name != "original":
                axis.set_xlabel(f"{leak.psnr(name)[-1]:.1f} dB", fontsize=8, labelpad=2)
        line[0].set_ylabel(name.replace(" as ", "\nas "), fontsize=9)
    figure.suptitle(f"Pictures found, and their PSNR\n{setting}", x=0.01, ha="left", fontsize=10)
    return figure


def curves(leaks: Sequence[Leak], names: Sequence[str], every: int, setting: str) -> Figure:
    """PSNR by iteration: the median over the images, and the quartiles."""
    figure = new_figure(8.6, 4.6)
    axes = figure.subplots()
    for name, colour, dash in zip(names, LIGHT, ("-", "--", "-.", ":"), strict=False):
        values = np.array([leak.psnr(name) for leak in leaks])
        at = every * np.arange(values.shape[1])
        axes.fill_between(at, *np.quantile(values, (0.25, 0.75), axis=0), color=colour, alpha=0.15, lw=0)
        axes.plot(at, np.median(values, axis=0), dash, color=colour, label=name, linewidth=1.8)
    grey = float(np.median([leak.psnr(GREY)[0] for leak in leaks]))
    axes.axhline(grey, color="0.45", linewidth=1, label=GREY)
    axes.set_xlabel("Iteration of the attack (L-BFGS)")
    axes.set_ylabel("PSNR (dB)")
    axes.set_title(f"Median over the images, band: quartiles\n{setting}", loc="left", fontsize=10)
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure
