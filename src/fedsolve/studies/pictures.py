"""Pictures of studies: a method has one colour and line on every page; seeds are bands or points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedsolve.report.plots import log_scale, new_figure, save, tidy
from fedsolve.report.style import DASHES, LIGHT, Colours, draw_map, frame, wrapped
from fedsolve.results.metrics import describe, wants_log
from fedsolve.studies.cells import Cells, SettingKind, ends
from fedsolve.studies.experiment import fixed, within
from fedsolve.studies.rules.ranks import Ranked, Ranks, expected
from fedsolve.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "LIGHT",
    "Against",
    "Along",
    "Budgets",
    "Colours",
    "CriticalDifference",
    "Curves",
    "Ends",
    "Line",
    "Maps",
    "Panel",
    "Panelled",
    "Several",
    "draw_map",
    "log_scale",
    "new_figure",
    "panels",
    "save",
    "styles",
    "tidy",
]

# Curves in a grid of panels with one legend; a method has one colour and line in every picture of every study.

_ORDER = (
    "FedAvg", "FedAdam", "FedDuAdam", "FedDuA", "FedExP", "FedAvgM", "FedAdagrad", "FedDuAdagrad", "FedExPM", "FedYogi",
    "SCAFFOLD", "FedProx", "FedLiLU", "FedLiLS", "FedFW", "FedDualAvg", "FedMiD", "FedDR", "DiLoCo",
    "SCAFFOLD+FedExP", "SCAFFOLD+FedDuAdagrad",
    "FedFWPlus", "FedFWSto",
)  # fmt: skip


def styles(labels: Sequence[str]) -> dict[str, tuple[str, tuple[float, ...]]]:
    """Colour and dashes of each label: a method's own wherever it is drawn."""
    # Others take what is free in this figure, colours that none of those has before the rest.
    every = [(colour, dash) for dash in DASHES for colour in LIGHT]
    known = {label: every[_ORDER.index(label)] for label in labels if label in _ORDER}
    taken = {colour for colour, _ in known.values()}
    rest = [style for style in every if style not in known.values()] or every
    free = cycle(sorted(rest, key=lambda style: style[0] in taken))
    return {label: known[label] if label in known else next(free) for label in dict.fromkeys(labels)}


_REFERENCE = "0.25", (1.0, 1.5)


@dataclass(frozen=True)
class Line:
    """A line of a panel: x of shape (points,), y of shape (seeds, points); the seeds' range is shaded.

    A `reference` is dotted and grey, no method's line.
    """

    label: str
    x: np.ndarray
    y: np.ndarray
    reference: bool = False


@dataclass(frozen=True)
class Panel:
    """Lines under a title, with the labels of the axes; `marks` shows the points that the lines join."""

    title: str
    lines: Sequence[Line]
    ylabel: str
    xlabel: str = "communication round"
    ylog: bool = True
    xlog: bool = False
    marks: bool = False


@dataclass(frozen=True)
class Panelled:
    """A picture of panels."""

    caption: str  # what it shows; how to read it and the seeds are added
    # from the study and its cells to the panels, row by row
    rows: Callable[[Study, Cells], Sequence[Sequence[Panel]]]
    # width, height: of a panel, in inches
    width: float = 4.6
    height: float = 3.2

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        figure = panels(self.rows(study, cells), study.title, self.width, self.height)
        return f"{self.caption} Lines are means, bands ranges. {study.seeds_in_words}", figure


def panels(
    rows_of_panels: Sequence[Sequence[Panel]], title: str, width: float = 3.7, height: float = 2.7
) -> Figure:
    """Rows of panels with one legend; equal labels have equal colours and dashes everywhere."""
    rows, columns = len(rows_of_panels), max(len(row) for row in rows_of_panels)
    figure = new_figure(width * columns, height * rows + 0.9)
    grid = figure.subplots(rows, columns, squeeze=False)
    labels = list(
        dict.fromkeys(line.label for row in rows_of_panels for panel in row for line in panel.lines)
    )
    for row, axes in zip(rows_of_panels, grid, strict=True):
        for i, axis in enumerate(axes):
            if i < len(row):
                draw(axis, row[i], labels, width)
            else:
                axis.set_axis_off()
    handles = {h.get_label(): h for axis in grid.flat for h in axis.get_lines() if h.get_label() in labels}
    figure.suptitle(title, x=0.01, ha="left", fontsize=10.5)
    below(figure, {label: handles[label] for label in labels}, width * columns, 2 * columns)
    return figure


def below(figure: Figure, handles: Mapping[str, Any], width: float, most: int = 6) -> None:
    """A legend under a figure so many inches wide, in at most so many columns."""
    from matplotlib.textpath import TextPath

    text = [TextPath((0, 0), label, size=9).get_extents().width / 72 for label in handles]
    # of columns, each with its line and margins: matplotlib cuts what does not fit
    widths = {n: sum(0.9 + max(of) for of in np.array_split(text, n)) for n in range(1, len(text) + 1)}
    fitting = max((n for n, needed in widths.items() if needed <= width), default=1)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", frameon=False, fontsize=9,
        ncols=min(most, fitting), handlelength=3.5,
    )  # fmt: skip


def draw(axis: Axes, panel: Panel, labels: Sequence[str], width: float) -> None:
    """One panel, so many inches wide with its labels."""
    from matplotlib.ticker import MaxNLocator, NullFormatter

    drawn = styles(labels)
    for line in panel.lines:
        colour, dash = _REFERENCE if line.reference else drawn[line.label]
        y = np.where(np.isfinite(line.y) & ((line.y > 0) | (not panel.ylog)), line.y, np.nan)
        axis.plot(
            line.x,
            y.mean(axis=0),  # NaN where any seed has none
            color=colour,
            linestyle=(0, dash) if dash else "-",
            linewidth=1.6,
            marker="o" if panel.marks else None,
            markersize=4,
            label=line.label,
        )
        if len(y) > 1:
            shade = 0.15 if len(panel.lines) <= 5 else 0.06  # many bands in one place would hide the lines
            axis.fill_between(line.x, y.min(0), y.max(0), color=colour, alpha=shade, linewidth=0)
    axis.set_title(wrapped((panel.title,), width), loc="left", fontsize=9.5)
    axis.set_xlabel(panel.xlabel, fontsize=9)
    axis.set_ylabel(panel.ylabel, fontsize=9)
    axis.tick_params(labelsize=8)
    if panel.ylog:
        log_scale(axis)
    if panel.xlog:
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter(NullFormatter())  # within a decade they would stand on one another
    elif "round" in panel.xlabel:
        axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 2.5, 5, 10]))
    tidy(axis)


# Grids of two rates as maps: what every setting of every method came to.


@dataclass(frozen=True)
class Maps:
    """A metric at the end over the grids of one problem, all with the same two axes: a map a method.

    The chosen setting is framed. Left out, and told in the caption, are values that some method has not run, and those
    of the first axis at which every method diverged.
    """

    caption: str  # what it shows; the seeds, over which it is the mean, and what is left out are added
    metric: str  # a column of the evaluations
    # best, worst: its values of the brightest and of the darkest colour, in the unit that is shown; None for the best
    # and the worst on the maps
    best: float | None = None
    worst: float | None = None
    columns: int = 3  # maps side by side, at most
    methods: tuple[str, ...] = ()  # whose grids are drawn, () for all
    problem: str | None = None  # of the study, None for the first
    at: Mapping[str, Any] = field(default_factory=dict)  # values of further axes at which the grids are shown

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        name = next((n for n in study.problems if n == self.problem), next(iter(study.problems)))
        problem = study.problems[name]
        methods = self.methods or cells.methods(name)
        drawn = [m for m in methods if m in cells.methods(name)]  # a quick run has but a few
        all_grids = {m: grid for m in drawn if (grid := cells.cell(name, m).grid) is not None}
        grids = {m: fixed(grid, **self.at) for m, grid in all_grids.items()}
        columns = max(1, min(self.columns, len(grids)))
        rows = max(1, -(-len(grids) // columns))
        figure = new_figure(max(3.6 * columns, 5.0), 3.2 * rows)
        places = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axis in places.flat[len(grids) :]:
            axis.set_axis_off()
        if not grids:  # a quick run tunes nothing
            places.flat[0].text(0, 0.5, "nothing was tuned", fontsize=9)
            return self.caption, figure
        (y_axis, y), (x_axis, x) = shared = _shared([grid.grid for grid in grids.values()])
        parts, scale = [within(grid, dict(shared)) for grid in grids.values()], describe(self.metric).scale
        means = [ends(part, self.metric, problem.last).mean(axis=1) for part in parts]  # over the seeds
        shown = [scale * mean.reshape(part.shape) for mean, part in zip(means, parts, strict=True)]
        alive = np.any([np.isfinite(end).any(axis=1) for end in shown], axis=0)
        ticks = [f"{v:.3g}" for v in x], [f"{v:.3g}" for v in np.array(y)[alive]]
        values = np.stack(shown)[np.isfinite(shown)]
        low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
        best, worst = (high, low) if describe(self.metric).higher_is_better else (low, high)
        best, worst = best if self.best is None else self.best, worst if self.worst is None else self.worst
        images, outside = [], []
        for axis, (method, grid), end in zip(places.flat, grids.items(), shown, strict=False):
            look: dict[str, Any] = {"write": lambda v: f"{v:.2f}", "lost": "–"}
            images.append(draw_map(axis, end[alive], *ticks, Colours(best, worst), **look))
            axis.set_title(method, fontsize=9.5, loc="left")
            axis.tick_params(labelsize=8)
            chosen = grid.best_settings if np.isfinite(grid.score).any() else {}
            if chosen and chosen[y_axis] in y and chosen[x_axis] in x:
                frame(axis, int(alive[: y.index(chosen[y_axis])].sum()), x.index(chosen[x_axis]))
            elif chosen:
                outside.append(f"{method}'s {y_axis} {chosen[y_axis]:g}, {x_axis} {chosen[x_axis]:g}")
        figure.suptitle(study.title, x=0.01, ha="left", fontsize=10.5)
        figure.supxlabel(x_axis, fontsize=9)
        figure.supylabel(y_axis, fontsize=9)
        figure.colorbar(images[0], ax=places, label=describe(self.metric).label)
        lost = ", ".join(f"{v:g}" for v in np.array(y)[~alive])
        left_out = f" Every method diverged at {y_axis} {lost}." if lost else ""
        if any(dict(grid.grid) != dict(shared) for grid in grids.values()):
            left_out += " Values that only some methods have run are left out"
            left_out += f", among them what was chosen: {'; '.join(outside)}." if outside else "."
        seeds = next(iter(grids.values())).seeds
        mean = f"Seed {seeds[0]}" if len(seeds) == 1 else f"Mean over seeds {', '.join(map(str, seeds))}"
        return f"{self.caption} {mean}; the chosen setting is framed.{left_out}", figure


def _shared(grids: Sequence[Mapping[str, tuple[Any, ...]]]) -> list[tuple[str, tuple[Any, ...]]]:
    # both axes with the values that every grid has
    return [
        (axis, tuple(v for v in values if all(v in grid[axis] for grid in grids)))
        for axis, values in grids[0].items()
    ]


# Curves by round, by what was sent or by time, and ends along problems: a line a method, the range of seeds shaded.


@dataclass(frozen=True)
class Curves:
    """A metric by round, or by what has been sent; a panel a problem, a line a method, the seeds' range shaded."""

    caption: str  # what it shows; the seeds are added
    metric: str | None = None  # a column of the evaluations, None for each problem's own
    which: SettingKind = "tuned"  # the methods at their tuned or at the paper's settings
    columns: int = 2  # panels side by side
    problems: tuple[str, ...] = ()  # of the study, all where it has none of them
    # `round`, `bytes_up` (bytes that a client has sent which takes part in every round) or `time` (the simulated
    # seconds of a fleet's clock, the mean over seeds); the last two on a log scale
    x: Literal["round", "bytes_up", "time"] = "round"

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        names = [name for name in study.problems if name in self.problems] or study.problems
        drawn_panels = [self._panel(study, cells, name) for name in names]
        rows = [drawn_panels[i : i + self.columns] for i in range(0, len(drawn_panels), self.columns)]
        figure = panels(rows, study.title, width=4.6, height=3.2)
        return f"{self.caption} {study.seeds_in_words}", figure

    def _panel(self, study: Study, cells: Cells, name: str) -> Panel:
        problem = cells.problem(name)
        metric = describe(self.metric or problem.metric)
        lines, labels = [], {"round": "communication round", "bytes_up": "bytes sent up by each client"}
        for method in cells.methods(name):
            rounds, values = cells.curve(name, method, self.which, self.metric)
            at = rounds
            if self.x == "bytes_up":
                at = cells.sent(name, method, self.which)
            elif self.x == "time":
                at = cells.curve(name, method, self.which, "time")[1].mean(axis=0)
            first = 1 if self.x != "round" and len(rounds) > 1 else 0  # a log scale has no 0
            lines.append(Line(method, at[first:], metric.scale * values[:, first:]))
        log = wants_log(metric.key, [line.y for line in lines])
        xlabel = labels.get(self.x, describe("time").label)
        return Panel(problem.title, lines, metric.label, xlabel, ylog=log, xlog=self.x != "round")


@dataclass(frozen=True)
class Several:
    """Several metrics of one problem by round, a panel each, a line a method, the range of the seeds shaded.

    Runs that diverged are left out, and counted in the caption: one of them would set the scale for all.

    Attributes:
        caption: what it shows; the seeds are added.
        metrics: columns of the evaluations.
        problem: of the study, None for the first.
        beside: label of a further line, which is drawn where the evaluations have a column `beside_metric`.
        columns: panels side by side.
        begin: the first round that is drawn, where a start far off would set the scale.
    """

    caption: str
    metrics: tuple[str, ...]
    problem: str | None = None
    beside: str = ""
    columns: int = 3
    begin: int = 0

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        name = next((n for n in study.problems if n == self.problem), next(iter(study.problems)))
        drawn_panels = [self._panel(cells, name, metric) for metric in self.metrics]
        rows = [drawn_panels[i : i + self.columns] for i in range(0, len(drawn_panels), self.columns)]
        title = f"{study.title}; {cells.problem(name).title}" if self.problem else study.title
        lost = {m: int(np.isnan(cells.curve(name, m)[1][:, -1]).sum()) for m in cells.methods(name)}
        words = ", ".join(f"{m} on {n} of {len(study.seeds)}" for m, n in lost.items() if n)
        left_out = f" Diverged and left out: {words}." if words else ""
        figure = panels(rows, title, width=4.6, height=3.2)
        return f"{self.caption} {study.seeds_in_words}{left_out}", figure

    def _panel(self, cells: Cells, problem: str, name: str) -> Panel:
        metric = describe(name)
        methods = cells.methods(problem)
        curves = {method: cells.curve(problem, method, metric=name) for method in methods}
        known = cells.cell(problem, methods[0]).of("tuned")
        if known is not None and f"{self.beside}_{name}" in known.metrics:
            curves[self.beside] = cells.curve(problem, methods[0], metric=f"{self.beside}_{name}")
        lines = []
        for label, (rounds, values) in curves.items():
            there = values[np.isfinite(values[:, -1])]
            shown = metric.scale * (there if len(there) else np.full_like(values, np.nan))
            drawn = rounds >= min(self.begin, rounds[-1])
            lines.append(Line(label, rounds[drawn], shown[:, drawn], reference=label == self.beside))
        return Panel("", lines, metric.label, ylog=wants_log(name, [line.y for line in lines]))


@dataclass(frozen=True)
class Along:
    """The metric at the end along problems that differ in one number, such as H: a line a method."""

    caption: str  # what it shows
    xlabel: str  # the number, with its unit
    x: Mapping[str, float]  # problem -> the number
    which: SettingKind = "tuned"

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        names = [name for name in study.problems if name in self.x] or list(study.problems)
        at = np.array([self.x.get(name, float(i + 1)) for i, name in enumerate(names)])
        metric = describe(cells.problem(names[0]).metric)
        methods = dict.fromkeys(m for name in names for m in cells.methods(name))
        lines = []
        for method in methods:
            have = [i for i, name in enumerate(names) if method in cells.methods(name)]
            ends = [metric.scale * cells.final(names[i], method, self.which) for i in have]
            lines.append(Line(method, at[have], np.stack(ends, axis=1)))
        panel = Panel(
            "at the end", lines, metric.label, self.xlabel, xlog=len(at) > 2, marks=True,
            ylog=wants_log(metric.key, [line.y for line in lines]),
        )  # fmt: skip
        return f"{self.caption} {study.seeds_in_words}", panels([[panel]], study.title, width=6.4, height=3.8)


# Several metrics of each method at the end of a study, a panel each.


@dataclass(frozen=True)
class Ends:
    """Means with 95 % intervals over the seeds, in numbers too: a panel a metric, a row a problem, methods in order."""

    caption: str  # what is shown
    metrics: Mapping[str, str]  # column of the evaluations -> the panel's title

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        most = max(len(cells.methods(problem)) for problem in cells.problems)
        size = 2.6 * len(self.metrics) + 1.0, (0.8 + 0.3 * most) * len(cells.problems)
        figure = new_figure(*size)
        axes = figure.subplots(len(cells.problems), len(self.metrics), squeeze=False)
        for row, problem in zip(axes, cells.problems, strict=True):
            names = cells.methods(problem)[::-1]
            for axis, (metric, title) in zip(row, self.metrics.items(), strict=True):
                scale, unit = describe(metric).scale, describe(metric).unit
                for place, name in enumerate(names):
                    found = cells.interval(problem, scale * cells.final(problem, name, metric=metric))
                    axis.plot([found.low, found.high], [place, place], color="0.55", linewidth=2)
                    axis.plot(found.mean, place, "o", color="C0", markersize=4)
                    axis.annotate(
                        f"{found.mean:.3g}", (found.mean, place), xytext=(0, 4), textcoords="offset points",
                        fontsize=7, ha="center",
                    )  # fmt: skip
                axis.set_yticks(range(len(names)), names if axis is row[0] else [], fontsize=8)
                axis.set_title(f"{problem}: {title}" if len(axes) > 1 else title, loc="left", fontsize=8.5)
                axis.set_xlabel(unit, fontsize=8)
                axis.margins(0.15, 0.15)
                tidy(axis)
        return f"{self.caption} {study.seeds_in_words}", figure


# How methods compare: a paper's numbers beside ours, ranks, and what tuning costs.


@dataclass(frozen=True)
class Against:
    """The paper's numbers against ours, a point a method: what agrees in order rises from left to right."""

    caption: str
    which: SettingKind = "tuned"

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        names = [name for name, p in study.problems.items() if p.published] or list(study.problems)
        figure = new_figure(4.4 * len(names), 4.0)
        drawn = styles(
            [m for name in names for m in cells.methods(name) if m in cells.problem(name).published]
        )
        points = {}
        for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            problem = cells.problem(name)
            metric = describe(problem.metric)
            labels = [m for m in cells.methods(name) if m in problem.published]
            if not labels:
                axis.text(0.5, 0.5, "nothing is published for this size", ha="center", fontsize=9)
            for label in labels:
                colour, dash = drawn[label]
                ours = metric.scale * cells.final(name, label, self.which)
                theirs = metric.scale * problem.published[label]
                if not np.isfinite(ours).all():
                    continue
                low, high = ours.mean() - ours.min(), ours.max() - ours.mean()
                shape = "osD^"[DASHES.index(dash)]  # where lines of one colour have other dashes
                points[label] = axis.errorbar(
                    theirs, ours.mean(), [[low], [high]], fmt=shape, color=colour, capsize=3, markersize=5
                )
            axis.set_title(problem.title, loc="left", fontsize=9.5)
            axis.set_xlabel(f"published: {metric.label.lower()}", fontsize=9)
            axis.set_ylabel(f"here: {metric.label.lower()}", fontsize=9)
            axis.tick_params(labelsize=8)
            axis.margins(0.2, 0.15)
            tidy(axis)
        if points:
            below(figure, points, 4.4 * len(names))
        return f"{self.caption} Bars: range of seeds. {study.seeds_in_words}", figure


@dataclass(frozen=True)
class Budgets:
    """`expected`, the mean over the problems, by settings tried: a panel a method, all others in grey behind it."""

    caption: str  # what it shows; the seed is added
    tried: Sequence[int]  # numbers of settings
    columns: int = 4  # panels side by side

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        means = shares(cells, self.tried)
        rows = max(1, -(-len(means) // self.columns))
        figure = new_figure(2.6 * self.columns, 2.3 * rows + 0.5)
        axes = figure.subplots(rows, self.columns, sharex=True, sharey=True, squeeze=False)
        if not means:  # a quick run tunes nothing
            axes.flat[0].text(0, 0.5, "nothing was tuned", fontsize=9)
        for axis in axes.flat[len(means) :]:
            axis.set_axis_off()
        for axis, method in zip(axes.flat, means, strict=False):
            self._panel(axis, means, method)
            least = min(float(values.min()) for values in means.values())
            axis.set_ylim(max(least - 0.1, 0), 1.05)
        figure.supxlabel("settings tried (1: the default)", fontsize=9)
        figure.supylabel("share of the best that was reached", fontsize=9)
        figure.suptitle(study.title, x=0.01, ha="left", fontsize=10.5)
        return f"{self.caption} Seed {study.tuning_seed}.", figure

    def _panel(self, axis: Axes, means: dict[str, np.ndarray], method: str) -> None:
        for other, values in means.items():
            if other != method:
                axis.plot(self.tried, values, color="0.82", linewidth=1)
        colour, dash = styles(sorted(means))[method]
        line = (0, dash) if dash else "-"
        axis.plot(
            self.tried, means[method], color=colour, linestyle=line, linewidth=2, marker="o", markersize=4
        )
        for at, side in ((0, "left"), (-1, "right")):
            value = float(means[method][at])
            at_point = {"xy": (self.tried[at], value), "xytext": (0, 7), "textcoords": "offset points"}
            axis.annotate(f"{value:.2f}", **at_point, fontsize=8, ha=side)
        axis.set_title(method, loc="left", fontsize=9.5)
        axis.set_xscale("log")
        axis.set_xticks(list(self.tried), [str(k) for k in self.tried])
        axis.minorticks_off()
        axis.tick_params(labelsize=8)
        tidy(axis)


def shares(cells: Cells, tried: Sequence[int]) -> dict[str, np.ndarray]:
    """Method -> the mean over the problems of `expected`, shape (tried,); empty where nothing was tuned."""
    by_budget = {k: [expected(cells, problem, k) for problem in cells.problems] for k in tried}
    methods = by_budget[tried[0]][0]
    return {m: np.array([np.mean([one[m] for one in by_budget[k]]) for k in tried]) for m in methods}


@dataclass(frozen=True)
class CriticalDifference:
    """The critical-difference diagram (Demšar 2006): mean ranks on an axis, bars over methods that do not differ.

    It is over all problems of a study, a panel a way of ranking.

    Attributes:
        caption: what it shows; Friedman's test and the critical difference are added.
        ranked: what stands above a panel -> how its ranks follow from the cells.
    """

    caption: str
    ranked: dict[str, Ranked]

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        if len(cells.problems) < 2:  # a quick run has one
            figure = new_figure(4, 1)
            figure.text(0.05, 0.5, "one problem: nothing is ranked", fontsize=9)
            return self.caption, figure
        ranks_by_title = {title: ranked(cells) for title, ranked in self.ranked.items()}
        heights = [_rows(ranks) + 4.0 for ranks in ranks_by_title.values()]
        figure = new_figure(9, 0.24 * sum(heights) + 0.3)
        ratios = {"height_ratios": heights}
        axes = figure.subplots(len(ranks_by_title), 1, squeeze=False, gridspec_kw=ratios)[:, 0]
        for axis, (title, ranks) in zip(axes, ranks_by_title.items(), strict=True):
            _draw(axis, ranks, f"{title}: {_words(ranks)}")
        figure.suptitle(study.title, x=0.01, ha="left", fontsize=10.5)
        said = "; ".join(f"{title}: {_words(ranks)}" for title, ranks in ranks_by_title.items())
        caption = f"{self.caption} Between methods under one bar there is no significant difference. {said}."
        return caption, figure


def _words(ranks: Ranks) -> str:
    return f"Friedman's p = {ranks.p:.2g}, critical difference {ranks.critical_difference:.2f}"


def _rows(ranks: Ranks) -> int:
    # lines below the axis: half of the names, and a bar for each group
    return -(-len(ranks.methods) // 2) + len(ranks.groups)


def _draw(axis: Axes, ranks: Ranks, title: str) -> None:
    # names fan out to both sides below the axis, best on the left; bars stand between the axis and the names
    k, order = len(ranks.methods), np.argsort(ranks.mean, kind="stable")
    colours = styles(sorted(ranks.methods))
    axis.plot([1, k], [0, 0], color="0.2", linewidth=1)
    for tick in range(1, k + 1):
        axis.plot([tick, tick], [0, 0.25], color="0.2", linewidth=1)
        axis.text(tick, 0.4, str(tick), ha="center", va="bottom", fontsize=8)
    room = ranks.critical_difference
    axis.plot([1, min(1 + room, k)], [1.7, 1.7], color="0.2", linewidth=2, marker="|")
    axis.text(1, 1.95, f"critical difference {room:.2f}", va="bottom", fontsize=8)
    for number, group in enumerate(ranks.groups):
        at = [ranks.of(group[0]) - 0.06, ranks.of(group[-1]) + 0.06]
        axis.plot(at, [-0.6 - number] * 2, color="0.45", linewidth=3.5, solid_capstyle="butt")
    left = -(-k // 2)
    for place, i in enumerate(order):
        on_left = place < left
        depth = -(len(ranks.groups) + 1.0 + (place if on_left else k - 1 - place))
        edge = 0.8 if on_left else k + 0.2
        colour, dash = colours[ranks.methods[i]]
        mean = ranks.mean[i]
        line = (0, dash) if dash else "-"
        axis.plot(
            np.array([mean, mean, edge]), [0, depth, depth], color=colour, linestyle=line, linewidth=1.4
        )
        text = f"{ranks.methods[i]}  {mean:.1f}" if on_left else f"{mean:.1f}  {ranks.methods[i]}"
        axis.text(
            edge - 0.08 if on_left else edge + 0.08, depth, text, color="0.1", fontsize=8.5,
            ha="right" if on_left else "left", va="center",
        )  # fmt: skip
    axis.set_xlim(1 - 0.28 * k, k + 0.28 * k)
    axis.set_ylim(-(_rows(ranks) + 1.0), 3.0)
    axis.set_title(title, loc="left", fontsize=9.5)
    axis.set_axis_off()
