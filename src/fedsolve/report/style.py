"""Colours, lines, numbers as people write them, and annotated maps, the same on pages and in plots.

Six colours of Okabe and Ito times four line styles; the first six methods are solid lines.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsolve.results.history import History
from fedsolve.results.metrics import describe, duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Line colours on a white ground."""
DARK = ("#4C9BE8", "#FF8A4C", "#2BC79B", "#E79CC8", "#A5DEFF", "#F5C242")
"""The same colours, lighter, on a dark ground."""
DASHES: tuple[tuple[float, ...], ...] = ((), (7, 3), (2, 2), (8, 2, 2, 2))
"""Line and gap lengths; empty is a solid line."""


@dataclass(frozen=True)
class LineStyle:
    """Colour number (into LIGHT or DARK), dash pattern and position of a method."""

    colour: int
    dash: tuple[float, ...]
    position: int


def line_styles(histories: Sequence[History]) -> dict[str, LineStyle]:
    # a style for each label, in order of appearance; runs of one label (its seeds) share it
    return styles_of([h.label for h in histories])


def styles_of(labels: Sequence[str]) -> dict[str, LineStyle]:
    return {
        label: LineStyle(i % len(LIGHT), DASHES[i // len(LIGHT) % len(DASHES)], i)
        for i, label in enumerate(dict.fromkeys(labels))
    }


def context(histories: Sequence[History]) -> str:
    # what the runs have in common, for a title: task, clients per round, seeds.
    #
    # Several values are listed; a setting that no run has is left out.
    parts = [", ".join(dict.fromkeys(h.task for h in histories))]
    cohorts = _values(histories, "sampling")
    sizes = [re.fullmatch(r"Uniform\(size=(\d+)\)", cohort) for cohort in cohorts]
    if all(sizes) and sizes:
        parts.append(f"{' / '.join(sorted((s[1] for s in sizes if s), key=int))} clients per round")
    elif cohorts:
        parts.append(f"cohorts by {' / '.join(cohorts)}")
    seeds = _values(histories, "seed")
    if seeds:
        shown = seeds if len(seeds) <= 5 else [*seeds[:2], "…", seeds[-1]]
        parts.append(f"seed{'s' if len(seeds) > 1 else ''} {', '.join(shown)}")
    return " · ".join(parts)


def _values(histories: Sequence[History], setting: str) -> list[str]:
    values = dict.fromkeys(h.settings.get(setting) for h in histories)
    return [str(v) for v in sorted((v for v in values if v is not None), key=lambda v: (str(type(v)), v))]


def distinct_names(histories: Sequence[History]) -> list[str]:
    # a name for each run: its label, with a number where a label comes more than once
    labels = [h.label for h in histories]
    return [
        f"{label} (run {labels[:i].count(label) + 1})" if labels.count(label) > 1 else label
        for i, label in enumerate(labels)
    ]


def wrapped(lines: Iterable[str], inches: float) -> str:
    # lines of a title of 9 points, broken where one is wider than an axis that ends so far from the left edge
    return "\n".join(part for line in lines for part in _parts(line, 72 * (inches - 0.9)))


def _parts(line: str, points: float) -> list[str]:
    from matplotlib.textpath import TextPath

    letters = max(len(line), 1)
    while True:
        parts = textwrap.wrap(line, letters)
        # a dollar is measured as another letter: it may begin what is no TeX
        widths = [TextPath((0, 0), part.replace("$", "S"), size=9).get_extents().width for part in parts]
        if letters <= 20 or max(widths, default=0) <= points:
            return parts
        letters -= max(1, letters // 20)


# Numbers as people write them: losses, accuracies, mean ± deviation, bytes and times.

_SMALLEST, _LARGEST = 1e-4, 1e7
"""Between these a number is written without a power of ten."""
_DIGITS = 6
"""Significant digits of a mean at most, however small its deviation."""


def show_number(value: float) -> str:
    """A loss or another number with four decimals, small ones with three digits; 'diverged' if it is not finite.

    >>> show_number(0.123456), show_number(0.00087151), show_number(3.2e-9), show_number(float("nan"))
    ('0.1235', '0.000872', '3.2e-9', 'diverged')
    >>> show_number(12345.6), show_number(123456789.0), show_number(0.0)
    ('12,346', '1.23e8', '0')
    """
    if not math.isfinite(value):
        return "diverged"
    size = abs(value)
    if size == 0:
        return "0"
    if not _SMALLEST <= size < _LARGEST:
        return power_of_ten(f"{value:.3g}" if size >= _LARGEST else f"{value:.2g}")
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4f}" if size >= 0.01 else f"{value:.{2 - math.floor(math.log10(size))}f}"


def power_of_ten(text: str) -> str:
    """A number of the format `g` or `e`, its exponent as one types it.

    >>> power_of_ten("3.2e-09"), power_of_ten("1e+08"), power_of_ten("0.5")
    ('3.2e-9', '1e8', '0.5')
    """
    digits, e, exponent = text.partition("e")
    return f"{digits}e{int(exponent)}" if e else text


def plus_minus(mean: float, deviation: float) -> str:
    """A mean with a deviation, both to the second significant digit of the deviation.

    The mean has six significant digits at most; where no digit of the deviation is left, it has four.

    >>> plus_minus(0.43127, 0.0213), plus_minus(96.1, 1.96), plus_minus(1234.0, 87.1)
    ('0.431 ± 0.021', '96.1 ± 2.0', '1,234 ± 87')
    >>> plus_minus(8.74e-10, 2.1e-11), plus_minus(0.25, 0.0), plus_minus(98.3287, 3e-12)
    ('(8.74 ± 0.21)e-10', '0.25 ± 0', '98.33 ± 0')
    """
    if not math.isfinite(mean):
        return show_number(mean)
    size = max(abs(mean), deviation)
    if size and not _SMALLEST <= size < _LARGEST:
        power = math.floor(math.log10(size))
        return f"({plus_minus(mean / 10.0**power, deviation / 10.0**power)})e{power}"
    most = _DIGITS - 1 - (math.floor(math.log10(size)) if size else 0)
    decimals = 1 - math.floor(math.log10(float(f"{deviation:.1e}"))) if deviation else most + 1
    if decimals > most and deviation < 0.5 * 10.0**-most:
        text = f"{mean:,.{max(0, most - 2)}f}"
        return f"{text.rstrip('0').rstrip('.') if '.' in text else text} ± 0"
    decimals = max(0, min(decimals, most))
    return f"{mean:,.{decimals}f} ± {deviation:,.{decimals}f}"


def number_writer(key: str) -> Callable[[float], str]:
    # how a metric's value is written: accuracies in per cent, the rest by `show_number`
    if describe(key).unit != "%":
        return show_number
    return lambda v: f"{100 * v:.2f}" if math.isfinite(v) else "diverged"


def human_bytes(count: float) -> str:
    """A number of bytes with three digits in decimal units.

    >>> human_bytes(999), human_bytes(1_250_000)
    ('999 B', '1.25 MB')
    """
    size, units = float(count), ("B", "kB", "MB", "GB", "TB", "PB")
    for unit in units:
        if size < 999.5 or unit == units[-1]:
            return f"{int(size)} B" if unit == "B" else f"{size:#.3g} {unit}".replace(". ", " ")
        size /= 1000
    raise AssertionError("unreachable")


def human_time(seconds: float) -> str:
    """A time in one unit, of short ones a digit more.

    >>> human_time(0.0004), human_time(0.08), human_time(0.41), human_time(12.3), human_time(750)
    ('< 1 ms', '80 ms', '0.4 s', '12 s', '12 min')
    """
    if seconds < 0.001:
        return "< 1 ms" if seconds > 0 else "0 s"
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 599.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return duration(seconds)


def count_text(value: float) -> str:
    # a count, or a mean of counts with one decimal
    return f"{value:.1f}".removesuffix(".0")


# A matrix of results as a map: annotated cells, colours by score, what diverged marked in words.

DIVERGED = "div."


@dataclass(frozen=True)
class Colours:
    """What the colours of a map mean: `worst`, and what is worse, is darkest; `log`: they follow the logarithm."""

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
    # draw `values` of shape (values of y, values of x), the first row at the bottom; returns the image
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
    # a frame around a cell: the best
    from matplotlib.patches import Rectangle

    corner = (column - 0.5, row - 0.5)
    axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="white", linewidth=4.5, zorder=3))
    axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#D55E00", linewidth=2.4, zorder=4))
