"""A matrix of results as a map: annotated cells, colours by score, what diverged marked in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIVERGED = "div."


@dataclass(frozen=True)
class Colours:
    """What the colours of a map mean.

    Attributes:
        best: the value of the brightest colour.
        worst: the value of the darkest; what is worse has the same colour.
        log: whether colours follow the logarithm.
    """

    best: float
    worst: float
    log: bool = False


def draw_map(
    axes: Axes,
    values: np.ndarray,
    x: Sequence[str],
    y: Sequence[str],
    colours: Colours,
    *,
    write: Callable[[float], str] | None = None,
    lost: str | np.ndarray = DIVERGED,
    size: float = 7.5,
) -> Any:
    """Draw `values` of shape (values of y, values of x), the first row at the bottom; returns the image.

    Args:
        axes: where.
        values: what is drawn; a value that is not finite is grey.
        x: ticks below the columns.
        y: ticks beside the rows.
        colours: which value has which.
        write: the text of a finite value; None for no texts.
        lost: the text of cells that are not finite, or one for each.
        size: of the texts, in points.
    """
    from matplotlib.colors import LogNorm, Normalize

    low, high = sorted((colours.best, colours.worst))
    if high <= low:  # one colour: any range around the value
        low, high = (low / 2, 2 * low) if colours.log else (low - 1, low + 1)
    shown = np.where(np.isfinite(values), values, np.nan)
    axes.set_facecolor("0.88")
    image = axes.imshow(
        shown,
        origin="lower",
        aspect="auto",
        cmap="viridis" if colours.best > colours.worst else "viridis_r",
        norm=(LogNorm if colours.log else Normalize)(low, high),
    )
    lost = np.broadcast_to(np.asarray(lost), values.shape)
    for (i, j), value in np.ndenumerate(shown):
        if np.isnan(value):
            axes.text(j, i, str(lost[i, j]), ha="center", va="center", fontsize=size, color="0.25")
        elif write is not None:
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            colour = "white" if dark else "black"
            axes.text(j, i, write(value), ha="center", va="center", fontsize=size, color=colour)
    axes.set_xticks(range(len(x)), x)
    axes.set_yticks(range(len(y)), y)
    axes.set_xticks(np.arange(len(x) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(y) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)
    axes.spines[:].set_visible(False)
    return image


def frame(axes: Axes, row: int, column: int) -> None:
    """A frame around a cell: the best."""
    from matplotlib.patches import Rectangle

    corner = (column - 0.5, row - 0.5)
    axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="white", linewidth=4.5, zorder=3))
    axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#D55E00", linewidth=2.4, zorder=4))
