"""The map of a sweep: its score over two axes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.report.heatmap import DIVERGED, draw_map, frame
from fedsolve.report.plots import new_figure
from fedsolve.report.sweeps.sweep_words import add_title, axis_label, axis_phrase, tick_texts
from fedsolve.results.metrics import Metric, describe, wants_log
from fedsolve.results.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def pairs(sweep: Sweep) -> list[tuple[str, str]]:
    """The pairs of axes to map, each as (x, y); the server's rate lies along x, the client's along y."""
    names = [name for name, values in sweep.grid.items() if len(values) > 1]
    order = sorted(names, key=lambda n: {"server_lr": 0, "client_lr": 2}.get(n, 1))
    return list(itertools.combinations(order, 2))


def heat_map(sweep: Sweep, x: str, y: str) -> Figure:
    """The score over two axes, the best over all others; the best cell framed, diverged ones marked.

    Worse than the initial model all cells have one colour, so that a setting that nearly diverged does not
    take the colours from the others.

    Raises:
        InvalidInput: an unknown axis, twice the same, or matplotlib is absent.
    """
    if x == y:
        raise InvalidInput(f"a heat map needs two axes, not '{x}' twice")
    metric = describe(sweep.selection.metric)
    values = sweep.matrix(x, y) * metric.scale
    finite = values[np.isfinite(values)]
    columns, rows = tick_texts(sweep.grid[x]), tick_texts(sweep.grid[y])
    width, height = min(16.0, max(4.0, 0.68 * len(columns))), min(11.0, max(2.4, 0.5 * len(rows)))
    figure = new_figure(width + 2.4, height + 1.5)
    axes = figure.subplots()
    best, worst, clipped = _ends(sweep, finite, metric)
    log = len(finite) > 0 and min(best, worst) > 0 and wants_log(metric.key, [np.array([best, worst])])
    room = 72 * min(width / len(columns) / 3.2, height / len(rows) / 1.6)  # points a text may be high
    image = draw_map(
        axes, values, columns, rows, best=best, worst=worst, log=log, lost=_lost(sweep, x, y),
        write=(lambda v: _cell(v, metric)) if room >= 5 else None, size=min(9.0, max(5.0, room)),
    )  # fmt: skip
    if len(finite):
        # the best cell is that of the best setting, which ties leave to the first
        settings = sweep.best_settings
        frame(axes, sweep.grid[y].index(settings[y]), sweep.grid[x].index(settings[x]))
        extend = "neither" if not clipped else "min" if sweep.selection.most else "max"
        bar = figure.colorbar(image, ax=axes, label=_bar_label(metric, clipped), extend=extend)
        if log:
            _plain_numbers(bar.ax)
    axes.set_xlabel(axis_label(x, sweep.grid[x]))
    axes.set_ylabel(axis_label(y, sweep.grid[y]))
    if width / len(columns) < 0.08 * max(len(t.strip("$").replace("10^", "")) for t in columns) + 0.1:
        axes.tick_params(axis="x", labelrotation=90)
    others = [axis_phrase(n) for n, v in sweep.grid.items() if n not in (x, y) and len(v) > 1]
    over = f", best over {', '.join(others)}" if others else ""
    add_title(axes, f"{metric.title} by {axis_phrase(y)} and {axis_phrase(x)}{over}", [sweep])
    return figure


def _lost(sweep: Sweep, x: str, y: str) -> np.ndarray:
    """The words of cells that have no score, shape (values of y, values of x): how many seeds diverged."""
    names = list(sweep.grid)
    failed = ~np.isfinite(sweep.scores)
    failed = failed.reshape(*sweep.shape, -1)
    failed = np.moveaxis(failed, (names.index(y), names.index(x)), (0, 1))
    trials = failed.reshape(*failed.shape[:2], -1)
    count, total = trials.sum(axis=2), len(sweep.seeds)
    plain = trials.shape[2] != total  # the best over other axes: no one setting to count for
    words = [DIVERGED if plain or c == total else f"{DIVERGED}\n{c} of {total}" for c in count.ravel()]
    return np.array(words, object).reshape(count.shape)


def _ends(sweep: Sweep, finite: np.ndarray, metric: Metric) -> tuple[float, float, bool]:
    """The best and the worst value with colours of their own, and whether there are worse ones."""
    if not len(finite):
        return 1.0, 0.0, False
    best, worst = (finite.max(), finite.min()) if sweep.selection.most else (finite.min(), finite.max())
    start = sweep.metrics[sweep.selection.metric][..., 0]
    start = start[np.isfinite(start)]
    limit = float(start.mean()) * metric.scale if len(start) else worst
    if sweep.selection.most or not best < limit < worst:
        return float(best), float(worst), False
    return float(best), limit, True


def _cell(value: float, metric: Metric) -> str:
    return f"{value:.1f}" if metric.unit == "%" else f"{value:.3g}".replace("e+0", "e")


def _bar_label(metric: Metric, clipped: bool) -> str:
    return metric.label + ("\n(one colour above the initial model's)" if clipped else "")


def _plain_numbers(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
