"""A sweep's settings as rows, the best first, and its plots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsolve.core.errors import InvalidInput, check_known, is_plain_number
from fedsolve.report.plots import log_scale, new_figure, plain_numbers, tidy
from fedsolve.report.style import (
    DIVERGED,
    LIGHT,
    Colours,
    LineStyle,
    draw_map,
    frame,
    number_writer,
    power_of_ten,
    styles_of,
    wrapped,
)
from fedsolve.report.table import Cell, ResultTable, metric_head
from fedsolve.results.history import BAND_WORDS, Bands, band
from fedsolve.results.metrics import Metric, describe, wants_log
from fedsolve.results.sweep import SweepRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The settings of a sweep as rows, the best first and those that diverged last: for terminal, JSON and page.

_TITLES = {
    "client_lr": "Client learning rate",
    "server_lr": "Server learning rate",
    "tau": "Adaptivity τ",
    "eps_g": "Extrapolation ε_g",
    "eps": "ε",
    "mu": "Proximal weight μ",
    "beta1": "β₁",
    "beta2": "β₂",
    "client_momentum": "Client momentum",
    "weight_decay": "Weight decay",
    "clip_norm": "Clipping norm",
    "psi.weight": "Weight of the penalty",
    "constraint.radius": "Radius of the set",
}


def axis_title(name: str) -> str:
    """The title of an axis, with the setting's own name.

    >>> axis_title("client_lr"), axis_title("solver")
    ('Client learning rate (client_lr)', 'solver')
    """
    return f"{_TITLES[name]} ({name})" if name in _TITLES else name


def is_numeric(values: Sequence[Any]) -> bool:
    return all(is_plain_number(v) and np.isfinite(v) for v in values)


def is_log(values: Sequence[Any]) -> bool:
    """Whether an axis is spaced by factors: positive, over at least a decade, more evenly than by differences.

    >>> is_log([0.01, 0.03, 0.1]), is_log([1, 2, 3, 4]), is_log([None, 1.0])
    (True, False, False)
    """
    if len(values) < 2 or not is_numeric(values) or min(values) <= 0 or max(values) < 10 * min(values):
        return False
    x = np.sort(np.array(values, float))
    factors, steps = np.diff(np.log(x)), np.diff(x)
    return bool(np.ptp(factors) / factors.mean() <= np.ptp(steps) / steps.mean())


def value_text(value: Any, digits: int = 2) -> str:
    """A value of an axis as it was typed; one that was computed, such as those of `0.03:3:5log`, in a few digits.

    >>> value_text(0.94868), value_text(0.125), value_text(None), value_text(True), value_text(1e-5), value_text(1e4)
    ('0.95', '0.125', 'none', 'true', '1e-5', '10000')
    """
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if not isinstance(value, float):
        return str(value)
    if 1000 <= abs(value) < 1e6 and value.is_integer():
        return f"{value:.0f}"
    typed = f"{value:.10g}" == f"{value:.3g}"
    return power_of_ten(f"{value:.3g}" if typed else f"{value:.{digits}g}")


def axis_texts(values: Sequence[Any]) -> list[str]:
    """The values of an axis, each by `value_text`, with as many digits as distinguish them.

    >>> axis_texts([0.03, 0.0948683, 0.3]), axis_texts([0.12345, 0.1241])
    (['0.03', '0.095', '0.3'], ['0.123', '0.124'])
    """
    for digits in (2, 3, 4, 6):
        texts = [value_text(v, digits) for v in values]
        if len(set(texts)) == len(texts):
            return texts
    return [str(v) for v in values]


def tick_texts(values: Sequence[Any]) -> list[str]:
    """The values for the ticks of an axis: powers of ten where all are whole or half decades.

    >>> tick_texts([0.01, 0.0316227766, 0.1])
    ['$10^{-2}$', '$10^{-1.5}$', '$10^{-1}$']
    """
    if len(values) > 2 and is_log(values):
        decades = 2 * np.log10(np.array(values, float))
        if np.allclose(decades, decades.round(), atol=2e-3) and (decades.round() % 2).any():
            return [f"$10^{{{d / 2:g}}}$" for d in decades.round()]
    return axis_texts(values)


def setting_texts(sweep: SweepRecord, setting: int) -> dict[str, str]:
    """The values of a setting, axis by axis, with as many digits as distinguish the axis's values; 4 of those drawn."""
    at = sweep.points[setting]
    if sweep.drawn:
        return {name: value_text(value, 4) for name, value in at.items()}
    return {name: axis_texts(values)[values.index(at[name])] for name, values in sweep.grid.items()}


def rule_text(sweep: SweepRecord) -> str:
    return f"{'highest' if sweep.selection.most else 'lowest'} {averaged_text(sweep)}"


def averaged_text(sweep: SweepRecord) -> str:
    """What the score of a setting averages, in words: the metric, the evaluations and their rounds."""
    at = sweep.rounds[sweep.selection.counted(sweep.rounds)]
    title = describe(sweep.selection.metric).title
    several = f"mean of {len(at)} evaluations, rounds {at[0]} to {at[-1]}"
    when = f"at round {at[-1]}" if len(at) == 1 else several
    return f"{title[0].lower() + title[1:] if title[1:2].islower() else title}, {when}"


def seeds_text(seeds: Sequence[int]) -> str:
    """Seeds in words.

    >>> seeds_text((0,)), seeds_text((0, 1, 2)), seeds_text(range(9))
    ('seed 0', '3 seeds: 0, 1, 2', '9 seeds: 0, 1, …, 8')
    """
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    listed = [*seeds] if len(seeds) <= 5 else [*seeds[:2], "…", seeds[-1]]
    return f"{len(seeds)} seeds: {', '.join(map(str, listed))}"


def axis_phrase(axis: str) -> str:
    title = axis_title(axis).split(" (")[0]
    return title[0].lower() + title[1:] if title[1:2].islower() else title


def axis_label(axis: str, values: Sequence[Any]) -> str:
    return axis_title(axis) + (", log scale" if is_log(values) else "")


def add_title(axes: Axes, text: str, sweeps: Sequence[SweepRecord], pad: float = 6.0) -> None:
    """What is drawn, and below it methods, task, seeds and rule."""
    parts = [sweeps[0].label] if len(sweeps) == 1 else []
    parts.append(", ".join(dict.fromkeys(s.task for s in sweeps)))
    parts.append("; ".join(dict.fromkeys(seeds_text(s.seeds) for s in sweeps)))
    rule = "; ".join(dict.fromkeys(rule_text(s) for s in sweeps))
    lines = (text, " · ".join(parts), f"chosen by: {rule}")
    inches = axes.figure.bbox.width / axes.figure.dpi
    axes.set_title(wrapped(lines, inches), loc="left", fontsize=9, pad=pad)


def as_list(sweeps: SweepRecord | Sequence[SweepRecord]) -> list[SweepRecord]:
    """The sweeps, which must have one selection criterion."""
    several = [sweeps] if isinstance(sweeps, SweepRecord) else list(sweeps)
    if not several:
        raise InvalidInput("no sweeps to show: give at least one")
    rules = dict.fromkeys(repr(s.selection) for s in several)
    if len(rules) > 1:
        raise InvalidInput(
            f"sweeps with different selection criteria cannot share an axis: {'; '.join(rules)}"
        )
    return several


def ranking(sweep: SweepRecord) -> list[int]:
    """The numbers of all settings: the best first, then those stopped, the last one first, then those that diverged."""
    score = -sweep.score if sweep.selection.most else sweep.score
    return [int(i) for i in np.lexsort((-sweep.stops, score))]


def setting_rows(sweep: SweepRecord, count: int | None = None) -> list[dict[str, Any]]:
    """The `count` best settings (all if None) as plain data: values, mean, range and scores over seeds."""
    # `score`, `lowest` and `highest` are None where a seed diverged or the setting was stopped, after round
    # `stopped`; `diverged` counts the seeds that did, and `round` is the first round in which one did.
    rows = []
    for rank, setting in enumerate(ranking(sweep)[:count], 1):
        scores, rounds = sweep.scores[setting], sweep.diverged[setting]
        finite, stopped = bool(np.isfinite(scores).all()), int(sweep.stops[setting])
        rows.append(
            {
                "rank": rank,
                "setting": setting,
                "values": sweep.points[setting],
                "score": float(sweep.score[setting]) if finite else None,
                "lowest": float(scores.min()) if finite else None,
                "highest": float(scores.max()) if finite else None,
                "scores": [float(s) if np.isfinite(s) else None for s in scores],
                "diverged": 0 if stopped >= 0 else int((~np.isfinite(scores)).sum()),
                "stopped": stopped if stopped >= 0 else None,
                "round": int(rounds[rounds >= 0].min()) if (rounds >= 0).any() else None,
            }
        )
    return rows


def heads(sweep: SweepRecord) -> list[str]:
    over = [f"Range over {len(sweep.seeds)} seeds"] if len(sweep.seeds) > 1 else []
    return ["Rank", *sweep.grid, metric_head("mean" if over else "", sweep.selection.metric), *over]


def row_texts(sweep: SweepRecord, row: dict[str, Any]) -> list[str]:
    write = number_writer(sweep.selection.metric)
    several = len(sweep.seeds) > 1
    values = list(setting_texts(sweep, row["setting"]).values())
    if row["score"] is None:
        return ["-", *values, divergence(sweep, row), *[""] * several]
    band = [f"{write(row['lowest'])} … {write(row['highest'])}"] if several else []
    return [str(row["rank"]), *values, write(row["score"]), *band]


def divergence(sweep: SweepRecord, row: dict[str, Any]) -> str:
    """That a setting diverged, in how many seeds and when, or when it was stopped."""
    if row["stopped"] is not None:
        return f"stopped after round {row['stopped']}"
    seeds = f" in {row['diverged']} of {len(sweep.seeds)} seeds" if len(sweep.seeds) > 1 else ""
    when = f", from round {row['round']}" if row["round"] is not None else ", not finite"
    return f"diverged{seeds}{when}"


def setting_table(sweep: SweepRecord, count: int | None = 10) -> ResultTable:
    """The `count` best settings, all if None, with their scores."""
    several, rows = len(sweep.seeds) > 1, []
    for row in setting_rows(sweep, count):
        score = row["score"]
        values = [None if score is None else row["rank"], *map(_sorted_by, row["values"].values()), score]
        values += [None if score is None else row["highest"] - row["lowest"]] * several
        rows.append([Cell(text, value) for text, value in zip(row_texts(sweep, row), values, strict=True)])
    return ResultTable("All settings by score", heads(sweep), rows)


def _sorted_by(value: Any) -> Any:
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    return value_text(value) if value else None


def outcome_lines(sweep: SweepRecord) -> list[str]:
    """The best setting, how easy the method was to tune, and how much diverged, in a sentence each."""
    stopped, settings = int((sweep.stops >= 0).sum()), len(sweep.score)
    lost = int((~np.isfinite(sweep.scores)).any(axis=1).sum()) - stopped
    diverged = f"{lost} of {settings} settings diverged" if lost else f"none of {settings} settings diverged"
    diverged += f", {stopped} were stopped early" if stopped else ""
    if lost + stopped == settings:
        return [f"all {lost} settings diverged{' that were not stopped' * (stopped > 0)}"]
    share = "not known" if stopped else f"{100 * sweep.share_within(0.05):.0f} % of {settings}"
    write, best = number_writer(sweep.selection.metric), sweep.best
    unit = " %" if describe(sweep.selection.metric).unit == "%" else ""
    at = ", ".join(f"{name} = {value}" for name, value in setting_texts(sweep, best).items())
    return [
        f"best: {at}, with {describe(sweep.selection.metric).title.lower()} {write(sweep.score[best])}{unit} "
        f"({averaged_text(sweep).partition(', ')[2]})",
        f"share of settings within 5 % of the best: {share}; {diverged}",
        *edges(sweep),
    ]


def edges(sweep: SweepRecord) -> list[str]:
    """Axes on whose edge the best setting lies: the best may be outside."""
    sentences = []
    for name, values in sweep.grid.items() if np.isfinite(sweep.score).any() else ():
        numbers = [v for v in values if is_plain_number(v)]
        value = sweep.best_settings[name]
        if len(numbers) == len(values) > 2 and value in (min(numbers), max(numbers)):
            end, others = ("smallest", "smaller") if value == min(numbers) else ("largest", "larger")
            sentences.append(f"the best {name} is the {end} tried: {others} ones may be better")
    return sentences


_MARKERS = "os^Dv"
_WIDTH = 5.6
"""Inches of a figure of one sweep: pages show it whole at 400 pixels, with letters of 9."""


def pairs(sweep: SweepRecord) -> list[tuple[str, str]]:
    """The pairs of axes to map, of numbers if drawn, as (x, y); the server's rate is along x, the client's along y."""
    names = [n for n, v in sweep.grid.items() if len(v) > 1 and (not sweep.drawn or is_numeric(v))]
    order = sorted(names, key=lambda n: {"server_lr": 0, "client_lr": 2}.get(n, 1))
    return list(itertools.combinations(order, 2))


def heat_map(sweep: SweepRecord, x: str, y: str) -> Figure:
    """The score over two axes, the best over all others; the best cell framed, diverged ones marked."""
    # Worse than the initial model all cells have one colour, so that a setting that nearly diverged does not take the
    # colours from the others.
    if x == y:
        raise InvalidInput(f"a heat map needs two axes, not '{x}' twice")
    if sweep.drawn:
        return _scatter(sweep, x, y)
    metric = describe(sweep.selection.metric)
    values = sweep.matrix(x, y) * metric.scale
    finite = values[np.isfinite(values)]
    columns, rows = tick_texts(sweep.grid[x]), tick_texts(sweep.grid[y])
    width, height = min(16.0, max(3.2, 0.68 * len(columns))), min(11.0, max(2.4, 0.5 * len(rows)))
    figure = new_figure(width + 2.4, height + 1.5)
    axes = figure.subplots()
    best, worst, clipped = _ends(sweep, finite, metric)
    log = len(finite) > 0 and min(best, worst) > 0 and wants_log(metric.key, [np.array([best, worst])])
    write = "{:.1f}".format if metric.unit == "%" else lambda v: f"{v:.3g}".replace("e+0", "e")
    room = 72 * min(width / len(columns) / 3.2, height / len(rows) / 1.6)  # points a text may be high
    image = draw_map(
        axes, values, columns, rows, Colours(best, worst, log), lost=_lost(sweep, x, y),
        write=write if room >= 5 else None, size=min(9.0, max(5.0, room)),
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
    axes.set(xlabel=axis_label(x, sweep.grid[x]), ylabel=axis_label(y, sweep.grid[y]))
    if width / len(columns) < 0.08 * max(len(t.strip("$").replace("10^", "")) for t in columns) + 0.1:
        axes.tick_params(axis="x", labelrotation=90)
    others = [axis_phrase(n) for n, v in sweep.grid.items() if n not in (x, y) and len(v) > 1]
    over = f", best over {', '.join(others)}" if others else ""
    add_title(axes, f"{metric.title} by {axis_phrase(y)} and {axis_phrase(x)}{over}", [sweep])
    return figure


def _scatter(sweep: SweepRecord, x: str, y: str) -> Figure:
    # a dot for each setting drawn, the brighter the better its rank; the best ringed, circles stopped, crosses diverged
    figure = new_figure(_WIDTH, 4.4)
    axes, at = figure.subplots(), np.array([sweep.grid[x], sweep.grid[y]], float)
    ended, stopped = np.isfinite(sweep.score), sweep.stops >= 0
    axes.scatter(*at[:, stopped], facecolors="none", edgecolors="0.5", s=22)
    axes.scatter(*at[:, ~ended & ~stopped], marker="x", color="0.5", s=22)
    ranked = at[:, ranking(sweep)[: ended.sum()]]
    axes.scatter(*ranked[:, :1], s=130, facecolors="none", edgecolors="#D55E00", linewidths=2)
    axes.scatter(*ranked, c=np.arange(ended.sum()), cmap="viridis_r", s=40)
    axes.set(xlabel=axis_label(x, sweep.grid[x]), ylabel=axis_label(y, sweep.grid[y]))
    axes.set(**{f"{side}scale": "log" for side, name in (("x", x), ("y", y)) if is_log(sweep.grid[name])})
    tidy(axes)
    add_title(axes, f"Settings by {axis_phrase(y)} and {axis_phrase(x)}", [sweep])
    return figure


def _lost(sweep: SweepRecord, x: str, y: str) -> np.ndarray:
    # the words of cells without a score, shape (values of y, values of x): how many seeds diverged, or the last round
    names = list(sweep.grid)
    told = np.column_stack([~np.isfinite(sweep.scores), sweep.stops]).reshape(*sweep.shape, -1)
    told = np.moveaxis(told, (names.index(y), names.index(x)), (0, 1))
    trials, after = told[..., :-1].reshape(*told.shape[:2], -1), told[..., -1].reshape(*told.shape[:2], -1)
    count, total = trials.sum(axis=2), len(sweep.seeds)
    plain = trials.shape[2] != total  # the best over other axes: no one setting to count for
    words = [DIVERGED if plain or c == total else f"{DIVERGED}\n{c} of {total}" for c in count.ravel()]
    last = after.max(axis=2).ravel()
    words = [f"stop.\n{rounds}" if rounds > 0 else word for word, rounds in zip(words, last, strict=True)]
    return np.array(words, object).reshape(count.shape)


def _ends(sweep: SweepRecord, finite: np.ndarray, metric: Metric) -> tuple[float, float, bool]:
    # the best and the worst value with colours of their own, and whether there are worse ones
    if not len(finite):
        return 1.0, 0.0, False
    best, worst = (finite.max(), finite.min()) if sweep.selection.most else (finite.min(), finite.max())
    start = sweep.metrics[sweep.selection.metric][..., 0]
    start = start[np.isfinite(start)]
    limit = float(start.mean()) * metric.scale if len(start) else worst
    if sweep.selection.most or not best < limit < worst:
        return float(best), float(worst), False
    return float(best), limit, True


def best_over_grid(sweeps: SweepRecord | Sequence[SweepRecord], axis: str, bands: Bands = "range") -> Figure:
    """The best score over all other axes at each value of one: a line a method, with a band over seeds."""
    # Where all settings at a value diverged, the line has a gap, marked in words.
    several = as_list(sweeps)
    figure = new_figure(8.6 if len(several) > 1 else _WIDTH, 4.2)
    axes = figure.subplots()
    pad = _draw_best(axes, several, axis, bands)
    others = any(len(v) > 1 for s in several for n, v in s.grid.items() if n != axis and not s.drawn)
    metric = describe(several[0].selection.metric)
    what = "Best over the grid" if others else metric.title
    add_title(axes, f"{what} at each {axis_phrase(axis)}", several, pad)
    if len(several) > 1:
        figure.legend(loc="outside right upper", frameon=False, fontsize=9, handlelength=4.5)
    return figure


def sensitivity(sweep: SweepRecord, metric: str | None = None, bands: Bands = "range") -> Figure:
    """The best setting by round: the mean over seeds, with a band over seeds."""
    # A sweep of one axis also shows the score at each of its values, with a band over seeds.
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
    panels[0].set(xlabel=describe("round").label, ylabel=drawn.label)
    for curve in sweep.metrics[name][sweep.stops >= 0].mean(axis=1):
        panels[0].plot(sweep.rounds, curve * drawn.scale, color="0.75", linewidth=0.8, zorder=1)
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
    # lines and bands of the best over all other axes; returns the points to leave above for marks
    metric = describe(sweeps[0].selection.metric)
    for sweep in sweeps:
        sweep.best_over_grid(axis)  # names an unknown axis
    every = list(dict.fromkeys(v for s in sweeps for v in s.grid[axis]))
    numeric = is_numeric(every)
    if numeric:
        every.sort()
    positions = {v: v if numeric else i for i, v in enumerate(every)}
    styles = styles_of([s.label for s in sweeps])
    drawn, lost = [], {}
    at_random = any(sweep.drawn for sweep in sweeps)
    for sweep in sweeps:
        values = sweep.grid[axis]
        order = np.argsort([positions[v] for v in values])
        scores = _best_trials(sweep, axis)[order] * metric.scale
        x = np.array([positions[values[i]] for i in order], float)
        style = styles[sweep.label]
        marker = _MARKERS[style.position % len(_MARKERS)]
        shift = 0.0 if numeric else 0.12 * style.position
        _band(axes, x + shift, scores, style, sweep.label, marker, bands, joined=numeric and not at_random)
        drawn.append(scores)
        stopped = {positions[sweep.points[i][axis]] for i in np.flatnonzero(sweep.stops >= 0)}
        words = ("○", "×") if at_random else ("stop.", DIVERGED)
        failed = x[~np.isfinite(scores).all(axis=1)]
        lost |= {(xi, style.position): words[xi not in stopped] for xi in failed}
    if numeric and is_log(every):
        axes.set_xscale("log")
    if not (numeric and at_random):
        ticks = every if len(every) <= 12 else every[:: -(-len(every) // 12)]
        axes.set_xticks([positions[v] for v in ticks], tick_texts(every)[:: -(-len(every) // 12) or 1])
        axes.set_xticks([], minor=True)
    elif len(every) > 1:
        axes.set_xlim(every[0], every[-1])  # also of those that have no score
    if wants_log(metric.key, drawn):
        log_scale(axes)
    marked = sorted({position for _, position in lost})
    for (x, position), word in lost.items():  # above the axes, a row a method, where no line runs
        axes.annotate(
            word, (x, 1.0), (0, 5 + 10 * marked.index(position)), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="center", va="center", color=LIGHT[position % len(LIGHT)], fontsize=8,
        )  # fmt: skip
    axes.set(xlabel=axis_label(axis, every), ylabel=metric.label)
    tidy(axes)
    return 6.0 + 10 * len(marked)


def _best_trials(sweep: SweepRecord, axis: str) -> np.ndarray:
    # the scores by seed of the best setting at each value of an axis, shape (values, seeds)
    shape = (*sweep.shape, len(sweep.seeds))
    at = 0 if sweep.drawn else list(sweep.grid).index(axis)
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
    # mean and band over seeds of `values`, shape (points, seeds); a gap where one is not finite
    values = np.where(np.isfinite(values).all(axis=1, keepdims=True), values, np.nan)
    colour = LIGHT[style.colour]
    low, high = band(values.T, bands if values.shape[1] > 1 else "range")
    line, size = (0, style.dash) if style.dash else "-", 5
    if joined:
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    else:
        axes.vlines(x, low, high, color=colour, alpha=0.4, linewidth=5)
        line, size = "none", 6
    look: dict[str, Any] = {"color": colour, "linestyle": line, "marker": marker, "markersize": size}
    axes.plot(x, values.mean(axis=1), **look, label=label)


def share_within(sweeps: Sequence[SweepRecord], share: float = 0.05) -> Figure:
    """The share of each method's grid within 5 % of its best score: how easy it is to tune; 0 if all diverged."""
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
    axes.set(ylim=(len(several) - 0.5, -0.5), xlim=(0, 118))
    axes.spines["bottom"].set_bounds(0, 100)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel(f"Share of the grid within {100 * share:g} % of the best score (%)")
    tidy(axes)
    axes.grid(False, axis="y")
    add_title(axes, "How easy each method is to tune", several)
    return figure
