"""Curves by round, by what was sent or by time, and ends along problems: a line a method, the range of seeds shaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedsolve.results.metrics import describe, wants_log
from fedsolve.studies.cells import Cells, Which
from fedsolve.studies.pictures.panels import Line, Panel, panels
from fedsolve.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Curves:
    """A metric by round, or by what has been sent; a panel a problem, a line a method, the seeds' range shaded.

    Attributes:
        caption: what it shows; the seeds are added.
        metric: a column of the evaluations, None for each problem's own.
        which: the methods at their tuned or at the paper's settings.
        columns: panels side by side.
        problems: of the study, all where it has none of them.
        x: `round`, `bytes_up` (bytes that a client has sent which takes part in every round) or `time` (the simulated
            seconds of a fleet's clock, the mean over seeds); the last two on a log scale.
    """

    caption: str
    metric: str | None = None
    which: Which = "tuned"
    columns: int = 2
    problems: tuple[str, ...] = ()
    x: Literal["round", "bytes_up", "time"] = "round"

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
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
        """Its caption and the figure."""
        name = next((n for n in study.problems if n == self.problem), next(iter(study.problems)))
        drawn_panels = [self._panel(cells, name, metric) for metric in self.metrics]
        rows = [drawn_panels[i : i + self.columns] for i in range(0, len(drawn_panels), self.columns)]
        title = f"{study.title}; {cells.problem(name).title}" if self.problem else study.title
        lost = {m: int(np.isnan(cells.curve(name, m)[1][:, -1]).sum()) for m in cells.methods(name)}
        words = ", ".join(f"{m} on {n} of {len(study.seeds)}" for m, n in lost.items() if n)
        caption = (
            f"{self.caption} {study.seeds_in_words}{f' Diverged and left out: {words}.' if words else ''}"
        )
        return caption, panels(rows, title, width=4.6, height=3.2)

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
    """The metric at the end along problems that differ in one number, such as H: a line a method.

    Attributes:
        caption: what it shows.
        xlabel: the number, with its unit.
        x: problem -> the number.
    """

    caption: str
    xlabel: str
    x: Mapping[str, float]
    which: Which = "tuned"

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
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
