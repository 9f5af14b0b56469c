"""Figures of runs, drawn with matplotlib's object interface: no global state, no display."""

from __future__ import annotations

import importlib.util
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.core.errors import InvalidInput, check_known, require, unknown
from fedsolve.folders.files import write_atomically
from fedsolve.report.style import LIGHT, LineStyle, context, line_styles, wrapped
from fedsolve.report.table import headline
from fedsolve.results.clients import ClientMetrics
from fedsolve.results.history import BAND_WORDS, Bands, History, SeedGroup, band, group_by_seed
from fedsolve.results.metrics import describe, wants_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = tuple[SeedGroup, np.ndarray, np.ndarray]
"""A method, its x and its y values, both of shape (points,)."""
_MARKERS = "os^Dv"
_DPI = 130
_ALONG = {"round": "rounds", "seconds": "time", "megabytes": "data sent", "time": "simulated time"}


def require_matplotlib() -> None:
    """Raise `InvalidInput` if plots cannot be drawn: to be called before what they show is computed."""
    require("matplotlib", "plots need", "plot")


def load_meanwhile() -> None:
    """Load matplotlib in a thread beside a run, which needs little Python: it takes a second."""
    if importlib.util.find_spec("matplotlib") is not None:
        modules = ("matplotlib.figure", "matplotlib.backends.backend_agg")
        Thread(target=lambda: [*map(importlib.import_module, modules)], daemon=True).start()


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of `width` x `height` inches; `InvalidInput` if matplotlib is not installed."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return _shown(Figure)(figsize=(width, height), layout="constrained")


@cache
def _shown(figure: type[Figure]) -> type[Figure]:
    class Figure(figure):
        """A figure that a notebook shows although no backend of pyplot knows it."""

        def _repr_png_(self) -> bytes:
            return png(self)

    return Figure


def curves(
    histories: Sequence[History],
    metric: str = "test_accuracy",
    title: str = "",
    x: str = "round",
    bands: Bands = "range",
) -> Figure:
    """A metric of several runs over communication rounds, or another `x`; log scale by `wants_log`."""
    # What is recorded of each round (`server_lr`, `participants`) is drawn over rounds alone.
    check_known("bands", bands, BAND_WORDS)
    headline(histories)  # of none there is nothing to draw
    by_round = not any(metric in h.evaluations for h in histories)
    if by_round:
        known = {name for h in histories for name in (*h.evaluations, *h.rounds)}
        check_known("metric", metric, known - set(_ALONG))
    for history in histories:
        if x not in (known := [k for k in _ALONG if k == "megabytes" or k in history.evaluations]):
            raise unknown("x axis", x, known)
    if by_round and x != "round":
        raise InvalidInput(
            f"{metric} is recorded for each round, not at evaluations: x = '{x}' must be 'round'"
        )
    rows = len({h.label for h in histories})
    figure = new_figure(8.6, max(4.4, 0.9 + 0.24 * rows))
    axes = figure.subplots()
    drawn = _draw(axes, histories, metric, x, bands)
    handles, labels = axes.get_legend_handles_labels()
    legend = 0.8 + 0.07 * max(map(len, labels), default=0)
    heading = wrapped((title or drawn, _context(histories, bands)), 8.6 - legend)
    axes.set_title(heading, loc="left", fontsize=9)
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9, handlelength=4.5)
    return figure


def comparison(histories: Sequence[History]) -> Figure:
    """Test accuracy, training loss and global learning rate over rounds, and accuracy against MB sent or time."""
    # Where no run has a test accuracy, the test loss (or else the training loss) stands in its place.
    main = headline(histories)
    figure = new_figure(10.5, 8.2)
    panels = figure.subplots(2, 2)
    differ = focus(
        [m.history.evaluations[main] for m in group_by_seed(histories) if main in m.history.evaluations]
    )
    drawn = (
        _draw(panels[0, 0], histories, main),
        _draw(panels[0, 1], histories, "train_loss"),
        _draw(panels[1, 0], histories, "server_lr"),
        _draw(panels[1, 1], histories, main, x="time" if on_a_clock(histories) else "megabytes"),
    )
    for axes in (panels[0, 0], panels[1, 1]):
        # where they differ, not from the initial model on
        if differ is not None and axes.get_yscale() == "linear":
            axes.set_ylim(*(describe(main).scale * end for end in differ))
    for axes, letter, heading in zip(panels.flat, "abcd", drawn, strict=True):
        axes.set_title(f"({letter}) {heading}", loc="left", fontsize=10)
    figure.suptitle(_context(histories), x=0.01, ha="left", fontsize=11)
    handles, labels = panels[0, 1].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(4, len(labels)),
        frameon=False,
        handlelength=4.5,
    )
    return figure


def _context(histories: Sequence[History], bands: Bands = "range") -> str:
    # what the runs have in common, and what bands are where there are some
    several = any(method.several for method in group_by_seed(histories))
    return context(histories) + (f" · bands: {BAND_WORDS[bands]}" if several else "")


_SETTLED = 0.2
"""The first fraction of a run, in which all methods leave the same initial model."""


def reliability(clients: ClientMetrics, metric: str = "reliability") -> Figure:
    """Observed fraction of label 1 against mean predicted probability, of all clients and of each."""
    # `clients` measured `fs.metrics.Reliability` by the name `metric`, as `read_client_metrics(folder)[10]`.
    check_known("metric of clients", f"{metric}_n_0", clients.metrics)
    bins = range(sum(name.startswith(f"{metric}_n_") for name in clients.metrics))
    parts = [[clients.metrics[f"{metric}_{p}_{i}"] for i in bins] for p in ("n", "predicted", "observed")]
    n, *lines = np.array(parts)  # (bins, clients)
    pooled = np.nansum(lines * n, axis=2) / np.maximum(np.nansum(n, axis=1), 1)
    pooled[:, ~np.nansum(n, axis=1).astype(bool)] = np.nan
    figure = new_figure(5.6, 5.6)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1, label="calibrated")
    for i, name in enumerate(clients.names):
        colour = LIGHT[(i + 1) % len(LIGHT)]
        axes.plot(*(x[:, i] for x in lines), "o-", color=colour, alpha=0.7, markersize=3, label=name)
    axes.plot(*pooled, "s-", color=LIGHT[0], linewidth=2.2, label="all")
    axes.set(xlabel="Mean predicted probability", ylabel="Observed fraction of label 1")
    tidy(axes)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def focus(curves: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """The range of a linear axis in which curves of several methods differ; None where that is most of it.

    >>> focus([np.array([0.1, 0.9, 0.95, 0.95, 0.96]), np.array([0.1, 0.91, 0.92, 0.92, 0.92])])
    (0.896, 0.964)
    """
    values = [np.asarray(curve, float) for curve in curves]
    finite = [v[np.isfinite(v)] for v in (*values, *(v[math.ceil(_SETTLED * len(v)) :] for v in values))]
    whole, settled = (np.concatenate(half) for half in (finite[: len(values)], finite[len(values) :]))
    height = np.ptp(settled) if len(settled) else 0.0
    if len(values) < 2 or not 0 < height < 0.5 * np.ptp(whole):
        return None
    margin = 0.1 * height / 1.5
    return float(f"{settled.min() - margin:.6g}"), float(f"{settled.max() + margin:.6g}")


def on_a_clock(histories: Sequence[History]) -> bool:
    """Whether all runs were on the clock of a fleet."""
    return all("time" in h.evaluations for h in histories)


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG at 130 dots per inch, atomically; `InvalidInput` if it cannot be written."""
    return write_atomically(path, png(figure))


def png(figure: Figure) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.image import AxesImage
    from PIL import Image  # matplotlib has it

    _literal_where_no_tex(figure)
    canvas, before = FigureCanvasAgg(figure), figure.dpi
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a label in a script that the font lacks
        if figure.findobj(AxesImage):
            buffer = io.BytesIO()
            canvas.print_figure(buffer, format="png", dpi=_DPI)
            return buffer.getvalue()
        figure.dpi = _DPI
        try:
            canvas.draw()  # once: print_figure draws twice
            drawn = Image.fromarray(np.asarray(canvas.buffer_rgba()))
        finally:
            figure.dpi = before
    # a chart of lines in 256 colours is a third of the bytes and looks the same
    few = drawn.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small = io.BytesIO()
    few.save(small, "PNG", optimize=True)
    return small.getvalue()


def _literal_where_no_tex(figure: Figure) -> None:
    # a text with dollars that is no TeX, such as a method's label, is drawn as it is written
    from matplotlib.mathtext import MathTextParser
    from matplotlib.text import Text

    parser = MathTextParser("agg")
    for text in figure.findobj(Text):
        if "$" in text.get_text():
            try:
                parser.parse(text.get_text())
            except ValueError:
                text.set_parse_math(False)


def _draw(
    axes: Axes, histories: Sequence[History], metric: str, x: str = "round", bands: Bands = "range"
) -> str:
    # draw a metric of evaluations or of rounds, with its axes; returns what is drawn, as a title
    described = describe(metric)
    styles = line_styles(histories)
    lines = []
    for method in group_by_seed(histories):
        if (seeds := method.values(metric)) is None:
            continue
        seeds = seeds * described.scale
        at = method.history.rounds["round"]
        if metric in method.history.evaluations:
            at = method.history.megabytes() if x == "megabytes" else method.history.evaluations[x]
        if method.several:
            colour = LIGHT[styles[method.history.label].colour]
            axes.fill_between(at, *band(seeds, bands), color=colour, alpha=0.18, linewidth=0)
        lines.append((method, at, seeds.mean(axis=0)))
    _lines(axes, lines, styles)
    axes.set(xlabel=describe(x).label, ylabel=described.label)
    rates = metric == "server_lr" and any((y > 0).any() for _, _, y in lines)
    if rates or wants_log(metric, [y for _, _, y in lines]):
        log_scale(axes)
    return f"{described.title} against {_ALONG[x]}"


def _lines(axes: Axes, lines: Sequence[Line], styles: Mapping[str, LineStyle]) -> None:
    # draw (method, x, y), one legend entry per label; where it turns non-finite a line ends in a cross
    named: set[str] = set()
    for method, x, y in lines:
        label = method.history.label
        style = styles[label]
        finite, step = np.isfinite(y), max(1, len(x) // 6)
        axes.plot(
            x,
            np.where(finite, y, np.nan),
            color=LIGHT[style.colour],
            linestyle=(0, style.dash) if style.dash else "-",
            linewidth=1.6,
            marker=_MARKERS[style.position % len(_MARKERS)],
            markersize=4.5,
            markevery=(style.position * step // len(styles), step),
            alpha=0.9,
            label=label if label not in named else "_",
        )
        named.add(label)
        if not finite[-1] and finite.any():
            last = np.flatnonzero(finite)[-1]
            axes.plot(x[last], y[last], "x", color=LIGHT[style.colour], markersize=9, mew=2.5, zorder=5)
    tidy(axes)


def tidy(axes: Axes) -> None:
    axes.grid(True, which="major", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def log_scale(axes: Axes) -> None:
    """A log y axis with plain numbers."""
    axes.set_yscale("log")
    plain_numbers(axes)


def plain_numbers(axes: Axes) -> None:
    """Plain numbers beside a y axis that is logarithmic."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    few = (1, 2, 5) if high / low < 1000 else (1,)
    # the multiples of powers of ten to label
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7) if high / low < 10 else few))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
