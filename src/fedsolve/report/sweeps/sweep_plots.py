"""Plots of sweeps: a map over two axes, the best over the grid along one, the best setting, methods compared."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsolve.core.errors import InvalidInput, check_known
from fedsolve.report.heatmap import DIVERGED, Colours, draw_map, frame
from fedsolve.report.plots import log_scale, new_figure, plain_numbers, tidy
from fedsolve.report.style import LIGHT, LineStyle, styles_of
from fedsolve.report.sweeps.sweep_table import (
    add_title,
    as_list,
    axis_label,
    axis_phrase,
    is_log,
    is_numeric,
    setting_texts,
    tick_texts,
)
from fedsolve.results.history import BAND_WORDS, Bands, band
from fedsolve.results.metrics import Metric, describe, wants_log
from fedsolve.results.sweep import SweepRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "os^Dv"
_WIDTH = 5.6
"""Inches of a figure of one sweep: pages show it whole at 400 pixels, with letters of 9."""


def pairs(sweep: SweepRecord) -> list[tuple[str, str]]:
    """The pairs of axes to map, each as (x, y); the server's rate lies along x, the client's along y."""
    names = [name for name, values in sweep.grid.items() if len(values) > 1]
    order = sorted(names, key=lambda n: {"server_lr": 0, "client_lr": 2}.get(n, 1))
    return list(itertools.combinations(order, 2))


def heat_map(sweep: SweepRecord, x: str, y: str) -> Figure:
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
    width, height = min(16.0, max(3.2, 0.68 * len(columns))), min(11.0, max(2.4, 0.5 * len(rows)))
    figure = new_figure(width + 2.4, height + 1.5)
    axes = figure.subplots()
    best, worst, clipped = _ends(sweep, finite, metric)
    log = len(finite) > 0 and min(best, worst) > 0 and wants_log(metric.key, [np.array([best, worst])])
    room = 72 * min(width / len(columns) / 3.2, height / len(rows) / 1.6)  # points a text may be high
    image = draw_map(
        axes, values, columns, rows, Colours(best, worst, log), lost=_lost(sweep, x, y),
        write=(lambda v: _cell(v, metric)) if room >= 5 else None, size=min(9.0, max(5.0, room)),
    )  # fmt: skip
    if len(finite):
        # the best cell is that of the best setting, which ties leave to the first
        settings = sweep.best_settings
        frame(axes, sweep.grid[y].index(settings[y]), sweep.grid[x].index(settings[x]))
        extend = "neither" if not clipped else "min" if sweep.selection.most else "max"
        label = metric.label + ("\n(one colour above the initial model's)" if clipped else "")
        bar = figure.colorbar(image, ax=axes, label=label, extend=extend)
        if log:
            plain_numbers(bar.ax)
    axes.set_xlabel(axis_label(x, sweep.grid[x]))
    axes.set_ylabel(axis_label(y, sweep.grid[y]))
    if width / len(columns) < 0.08 * max(len(t.strip("$").replace("10^", "")) for t in columns) + 0.1:
        axes.tick_params(axis="x", labelrotation=90)
    others = [axis_phrase(n) for n, v in sweep.grid.items() if n not in (x, y) and len(v) > 1]
    over = f", best over {', '.join(others)}" if others else ""
    add_title(axes, f"{metric.title} by {axis_phrase(y)} and {axis_phrase(x)}{over}", [sweep])
    return figure


def _lost(sweep: SweepRecord, x: str, y: str) -> np.ndarray:
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


def _ends(sweep: SweepRecord, finite: np.ndarray, metric: Metric) -> tuple[float, float, bool]:
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


def best_over_grid(sweeps: SweepRecord | Sequence[SweepRecord], axis: str, bands: Bands = "range") -> Figure:
    """The best score over all other axes at each value of one: a line a method, with a band over seeds.

    Where all settings at a value diverged, the line has a gap, marked in words.

    Raises:
        InvalidInput: an unknown axis, sweeps with different selection criteria, or matplotlib is absent.
    """
    several = as_list(sweeps)
    figure = new_figure(8.6 if len(several) > 1 else _WIDTH, 4.2)
    axes = figure.subplots()
    pad = _draw_best(axes, several, axis, bands)
    others = any(len(v) > 1 for s in several for n, v in s.grid.items() if n != axis)
    metric = describe(several[0].selection.metric)
    what = "Best over the grid" if others else metric.title
    add_title(axes, f"{what} at each {axis_phrase(axis)}", several, pad)
    if len(several) > 1:
        _legend(figure, axes)
    return figure


def sensitivity(sweep: SweepRecord, metric: str | None = None, bands: Bands = "range") -> Figure:
    """The best setting by round: the mean over seeds, with a band over seeds.

    A sweep of one axis also shows the score at each of its values, with a band over seeds.

    Args:
        sweep: whose best setting.
        metric: what is drawn; by default that of the selection.
        bands: the range over seeds, or another of `Bands`.

    Raises:
        Diverged: all settings diverged.
        InvalidInput: an unknown metric or band, or matplotlib is absent.
    """
    check_known("bands", bands, BAND_WORDS)
    name = metric or sweep.selection.metric
    curves = sweep.curve(sweep.best, name)
    long = [axis for axis, values in sweep.grid.items() if len(values) > 1]
    count = 2 if len(long) == 1 else 1
    figure = new_figure(_WIDTH, 3.9 * count + 0.3)
    panels = np.atleast_1d(figure.subplots(count, 1))
    drawn = describe(name)
    style = styles_of([sweep.label])[sweep.label]
    _band(panels[0], sweep.rounds, curves.T * drawn.scale, style, sweep.label, "", bands)
    panels[0].xaxis.get_major_locator().set_params(integer=True)
    panels[0].set_xlabel(describe("round").label)
    panels[0].set_ylabel(drawn.label)
    if wants_log(name, [curves]):
        log_scale(panels[0])
    tidy(panels[0])
    at = ", ".join(f"{n} {t}" for n, t in setting_texts(sweep, sweep.best).items())
    add_title(panels[0], f"{drawn.title} of the best setting ({at})", [sweep])
    if len(long) == 1:
        pad = _draw_best(panels[1], [sweep], long[0], bands)
        title = f"{describe(sweep.selection.metric).title} at each {axis_phrase(long[0])}"
        panels[1].set_title(title, loc="left", fontsize=9, pad=pad)
    return figure


def _draw_best(axes: Axes, sweeps: Sequence[SweepRecord], axis: str, bands: Bands) -> float:
    """Lines and bands of the best over all other axes; returns the points to leave above for marks."""
    metric = describe(sweeps[0].selection.metric)
    every = list(dict.fromkeys(v for s in sweeps for v in _values(s, axis)))
    numeric = is_numeric(every)
    if numeric:
        every.sort()
    positions = {v: v if numeric else i for i, v in enumerate(every)}
    styles = styles_of([s.label for s in sweeps])
    drawn, lost = [], set()
    for sweep in sweeps:
        values = [*_values(sweep, axis)]
        order = np.argsort([positions[v] for v in values])
        scores = _best_trials(sweep, axis)[order] * metric.scale
        x = np.array([positions[values[i]] for i in order], float)
        style = styles[sweep.label]
        marker = _MARKERS[style.position % len(_MARKERS)]
        _band(axes, x, scores, style, sweep.label, marker, bands, joined=numeric)
        drawn.append(scores)
        lost |= {(xi, style.position) for xi, s in zip(x, scores, strict=True) if not np.isfinite(s).all()}
    if numeric and is_log(every):
        axes.set_xscale("log")
    ticks = every if len(every) <= 12 else every[:: -(-len(every) // 12)]
    axes.set_xticks([positions[v] for v in ticks], tick_texts(every)[:: -(-len(every) // 12) or 1])
    axes.set_xticks([], minor=True)
    if wants_log(metric.key, drawn):
        log_scale(axes)
    marked = sorted({position for _, position in lost})
    for x, position in lost:  # above the axes, a row a method, where no line runs
        axes.annotate(
            DIVERGED, (x, 1.0), (0, 5 + 10 * marked.index(position)), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="center", va="center", color=LIGHT[position % len(LIGHT)], fontsize=8,
        )  # fmt: skip
    axes.set_xlabel(axis_label(axis, every))
    axes.set_ylabel(metric.label)
    tidy(axes)
    return 6.0 + 10 * len(marked)


def _best_trials(sweep: SweepRecord, axis: str) -> np.ndarray:
    """The scores by seed of the best setting at each value of an axis, shape (values, seeds)."""
    shape = (*sweep.shape, len(sweep.seeds))
    at = list(sweep.grid).index(axis)
    trials = np.moveaxis(sweep.scores.reshape(shape), at, 0).reshape(shape[at], -1, shape[-1])
    means = trials.mean(axis=2)
    chosen = (means.argmax if sweep.selection.most else means.argmin)(axis=1)
    return trials[np.arange(len(trials)), chosen]


def _band(
    axes: Axes,
    x: np.ndarray,
    values: np.ndarray,
    style: LineStyle,
    label: str,
    marker: str,
    bands: Bands,
    joined: bool = True,
) -> None:
    """Mean and band over seeds of `values`, shape (points, seeds); a gap where one is not finite."""
    values = np.where(np.isfinite(values).all(axis=1, keepdims=True), values, np.nan)
    colour = LIGHT[style.colour]
    low, high = band(values.T, bands if values.shape[1] > 1 else "range")
    if joined:
        line = (0, style.dash) if style.dash else "-"
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(
            x, values.mean(axis=1), color=colour, linestyle=line, marker=marker, markersize=5, label=label
        )
        return
    x = x + 0.12 * style.position
    axes.vlines(x, low, high, color=colour, alpha=0.4, linewidth=5)
    axes.plot(
        x, values.mean(axis=1), color=colour, linestyle="none", marker=marker, markersize=6, label=label
    )


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9, handlelength=4.5)


def _values(sweep: SweepRecord, axis: str) -> tuple[Any, ...]:
    sweep.best_over_grid(axis)  # names an unknown axis
    return tuple(sweep.grid[axis])


def share_within(sweeps: Sequence[SweepRecord], share: float = 0.05) -> Figure:
    """The share of each method's grid within 5 % of its best score: how easy it is to tune; 0 if all diverged.

    Raises:
        InvalidInput: no sweeps, or matplotlib is absent.
    """
    several = as_list(sweeps)
    figure = new_figure(7.6, 1.5 + 0.34 * len(several))
    axes = figure.subplots()
    for i, sweep in enumerate(several):
        good = 100 * sweep.share_within(share) if np.isfinite(sweep.score).any() else 0.0
        axes.plot([0, good], [i, i], color=LIGHT[0], linewidth=3, solid_capstyle="butt")
        axes.plot(good, i, "o", color=LIGHT[0], markersize=8)
        text = f"{good:.0f} % of {len(sweep.score)}" if good else f"all {len(sweep.score)} {DIVERGED}"
        axes.annotate(text, (good, i), (8, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(several)), [s.label for s in several])
    axes.set_ylim(len(several) - 0.5, -0.5)
    axes.set_xlim(0, 118)
    axes.spines["bottom"].set_bounds(0, 100)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel(f"Share of the grid within {100 * share:g} % of the best score (%)")
    tidy(axes)
    axes.grid(False, axis="y")
    add_title(axes, "How easy each method is to tune", several)
    return figure
