"""Pictures of the leakage experiment: what was found from each message, and how good it is by iteration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedsolve.report.plots import new_figure
from fedsolve.report.style import LIGHT

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Pictures(NamedTuple):
    """Images (n, height, width, channels) in [0, 1], labels (n,), and where they come from."""

    images: np.ndarray
    labels: np.ndarray
    source: str


def grey(pictures: Pictures) -> np.ndarray:
    """PSNR in dB of guessing 1/2 everywhere."""
    return -10 * np.log10(np.mean((pictures.images - 0.5) ** 2, axis=(1, 2, 3)))


def gallery(pictures: Pictures, best: Mapping[str, Any], setting: str) -> Figure:
    """The originals above what was found from each message, with its PSNR."""
    count, rows = len(pictures.images), 1 + len(best)
    figure = new_figure(1.0 + 1.05 * count, 0.6 + 1.22 * rows)
    axes = figure.subplots(rows, count, squeeze=False)
    shown = [("original", pictures.images, [""] * count)]
    shown += [(n, [b["image"] for b in p], [f"{b['psnr'][-1]:.1f} dB" for b in p]) for n, p in best.items()]
    for line, (name, images, notes) in zip(axes, shown, strict=True):
        for a, image, note in zip(line, images, notes, strict=True):
            picture = np.clip(np.squeeze(image), 0, 1)
            a.imshow(picture, cmap="gray" if picture.ndim == 2 else None, vmin=0, vmax=1)
            a.set(xticks=[], yticks=[])
            a.set_xlabel(note, fontsize=8, labelpad=2)
        line[0].set_ylabel(name.replace(" as ", "\nas "), fontsize=9)
    figure.suptitle(f"Pictures found, and their PSNR\n{setting}", x=0.01, ha="left", fontsize=10)
    return figure


def curves(pictures: Pictures, best: Mapping[str, Any], plan: Mapping[str, Any], setting: str) -> Figure:
    """PSNR by iteration: the median over the images, and the quartiles."""
    figure = new_figure(8.6, 4.6)
    axes = figure.subplots()
    at = plan["every"] * np.arange(plan["looks"] + 1)
    styles = zip(best.items(), LIGHT, ("-", "--", "-.", ":"), strict=False)
    for (name, parts), colour, dash in styles:
        curves = np.array([b["psnr"] for b in parts])
        axes.fill_between(at, *np.quantile(curves, (0.25, 0.75), axis=0), color=colour, alpha=0.15, lw=0)
        axes.plot(at, np.median(curves, axis=0), dash, color=colour, label=name, linewidth=1.8)
    axes.axhline(float(np.median(grey(pictures))), color="0.45", linewidth=1, label="a grey guess")
    axes.set_xlabel("Iteration of the attack (L-BFGS)")
    axes.set_ylabel("PSNR (dB)")
    axes.set_title(
        f"Median over {len(pictures.images)} images, band: quartiles\n{setting}", loc="left", fontsize=10
    )
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure
