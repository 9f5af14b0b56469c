"""How methods compare: a paper's numbers beside ours, ranks, and what tuning costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.report.plots import new_figure, tidy
from fedsolve.results.metrics import describe
from fedsolve.studies.budgets import expected
from fedsolve.studies.cells import Cells, Which
from fedsolve.studies.pictures.panels import styles
from fedsolve.studies.rules.ranks import Ranked, Ranks
from fedsolve.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OTHERS = "0.82"


@dataclass(frozen=True)
class Against:
    """The paper's numbers against ours, a point a method: what agrees in order rises from left to right."""

    caption: str
    which: Which = "tuned"

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        names = [name for name, p in study.problems.items() if p.published] or list(study.problems)
        figure = new_figure(4.4 * len(names), 4.0)
        for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            problem = cells.problem(name)
            metric = describe(problem.metric)
            labels = [m for m in cells.methods(name) if m in problem.published]
            if not labels:
                axis.text(0.5, 0.5, "nothing is published for this size", ha="center", fontsize=9)
            points = {}
            for label, (colour, _) in styles(labels).items():
                ours = metric.scale * cells.final(name, label, self.which)
                theirs = metric.scale * problem.published[label]
                if not np.isfinite(ours).all():
                    continue
                low, high = ours.mean() - ours.min(), ours.max() - ours.mean()
                axis.errorbar(
                    theirs, ours.mean(), [[low], [high]], fmt="o", color=colour, capsize=3, markersize=5
                )
                points[label] = theirs, float(ours.mean())
            axis.set_title(problem.title, loc="left", fontsize=9.5)
            axis.set_xlabel(f"published: {metric.label.lower()}", fontsize=9)
            axis.set_ylabel(f"here: {metric.label.lower()}", fontsize=9)
            axis.tick_params(labelsize=8)
            axis.margins(0.2, 0.15)
            tidy(axis)
            _name(axis, points)
        return f"{self.caption} Bars: range of seeds. {study.seeds_in_words}", figure


def _name(axis: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Write each name beside its point, in data's units; below where another name stands already."""
    axis.autoscale_view()
    height, letter = 10.0, 5.0  # of the text, in points
    scale = axis.figure.dpi / 72
    placed: list[tuple[float, float, float]] = []
    for name, point in sorted(points.items(), key=lambda item: -item[1][1]):
        at = axis.transData.transform(point) / scale
        x, y, width = at[0] + 5, at[1] + 4, letter * len(name)
        while hit := [b for a, b, w in placed if x < a + w and a < x + width and abs(y - b) < height]:
            y = min(hit) - height
        placed.append((x, y, width))
        axis.annotate(name, point, (5, y - at[1]), textcoords="offset points", fontsize=8)


@dataclass(frozen=True)
class Budgets:
    """`expected`, the mean over the problems, by settings tried: a panel a method, all others in grey behind it.

    Attributes:
        caption: what it shows; the seed is added.
        tried: numbers of settings.
        columns: panels side by side.
    """

    caption: str
    tried: Sequence[int]
    columns: int = 4

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
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
                axis.plot(self.tried, values, color=_OTHERS, linewidth=1)
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
        """Its caption and the figure."""
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
    """Lines below the axis: half of the names, and a bar for each group."""
    return -(-len(ranks.methods) // 2) + len(ranks.groups)


def _draw(axis: Axes, ranks: Ranks, title: str) -> None:
    """Names fan out to both sides below the axis, best on the left; bars stand between the axis and the names."""
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
