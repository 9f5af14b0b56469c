"""A grid seen along one of its axes, the others tuned at each value: what is reached, by seed, and how it is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedsolve.studies import Cells, Study
from fedsolve.studies.cells import Cell, ends
from fedsolve.studies.experiment import fixed, within
from fedsolve.studies.pictures import Line, Panel, Panelled
from fedsolve.studies.public import SweepRecord, describe, wants_log
from fedsolve.studies.rules import beyond_edge


@dataclass(frozen=True, eq=False)
class Reached:
    """What a method reaches along an axis.

    Attributes:
        values: of the axis, those at which not all diverged.
        ends: the problem's metric at the end, shape (values, seeds), NaN where a trial diverged.
        settings: of the other axes at each value: the best by the mean over the seeds.
    """

    values: tuple[Any, ...]
    ends: np.ndarray
    settings: tuple[Mapping[str, Any], ...]


def grid_of(cells: Cells, problem: str, method: str) -> SweepRecord:
    """The grid of a method that has one."""
    grid = cells.cell(problem, method).grid
    assert grid is not None
    return grid


def along(
    cells: Cells, problem: str, method: str, axis: str, between: tuple[float, float] | None = None
) -> Reached:
    """A method along an axis of its grid, or the part of that axis between two values, both included."""
    grid, p = grid_of(cells, problem, method), cells.problem(problem)
    inside = [v for v in grid.grid[axis] if between is None or between[0] <= v <= between[1]]
    found = {v: fixed(grid, **{axis: v}) for v in inside}
    alive = {v: one for v, one in found.items() if np.isfinite(one.score).any()}
    reached = np.array([ends(one, p.metric, p.last)[one.best] for one in alive.values()])
    return Reached(tuple(alive), reached, tuple(one.best_settings for one in alive.values()))


@dataclass(frozen=True)
class Slice:
    """The part of a method's grid with one value of an axis, of which the best of another lies at that one's edge."""

    problem: str
    method: str
    axis: str
    value: Any
    others: tuple[str, ...]

    def beyond(self, cells: Cells, share: float) -> Cells | None:
        """The cells as a wider grid might have them here, by `beyond_edge`; None if that cannot tell."""
        key = self.problem, self.method
        grid = grid_of(cells, *key)
        part = fixed(grid, **{self.axis: self.value})
        best = within(part, {axis: (value,) for axis, value in part.best_settings.items()})
        moved = beyond_edge(Cell(None, part, best), share)
        if moved is None or moved.tuned is None:
            return None
        row = grid.points.index({**part.best_settings, self.axis: self.value})
        metrics = {name: values.copy() for name, values in grid.metrics.items()}
        for name, values in moved.tuned.metrics.items():
            metrics[name][row] = values[0]
        there = replace(cells.by_name[key], grid=replace(grid, metrics=metrics))
        return replace(cells, by_name={**cells.by_name, key: there})


def slices_at_edges(
    cells: Cells, problem: str, method: str, axis: str, between: tuple[float, float] | None = None
) -> list[Slice]:
    """Where along an axis the best of another, with three values or more, lies at its edge."""
    grid, found = grid_of(cells, problem, method), along(cells, problem, method, axis, between)
    slices = []
    for value, setting in zip(found.values, found.settings, strict=True):
        at = tuple(
            other
            for other, chosen in setting.items()
            if len(values := grid.grid[other]) > 2 and chosen in (values[0], values[-1])
        )
        if at:
            slices.append(Slice(problem, method, axis, value, at))
    return slices


def edges(
    cells: Cells, problem: str, method: str, axis: str, between: tuple[float, float] | None = None
) -> str:
    """These in words."""
    return in_words(slices_at_edges(cells, problem, method, axis, between))


def in_words(slices: Sequence[Slice]) -> str:
    """Such as 'FedAdam's best client_lr at tau 1e-07, 0.1'."""
    at: dict[str, list[str]] = {}
    for one in slices:
        for other in one.others:
            at.setdefault(f"{one.method}'s best {other} at {one.axis}", []).append(f"{one.value:g}")
    return ", ".join(f"{what} {', '.join(values)}" for what, values in at.items())


def along_axes(caption: str, shown: Sequence[tuple[str, str, str, Sequence[str]]]) -> Panelled:
    """A metric at the end along axes of grids, a panel each: a line a method, the other axes tuned, seeds as bands.

    Args:
        caption: what it shows; the seeds are added.
        shown: for each panel the problem, the axis, its label, and the methods.
    """

    def panel(cells: Cells, problem: str, axis: str, label: str, methods: Sequence[str]) -> Panel:
        p = cells.problem(problem)
        metric, lines = describe(p.metric), []
        for method in methods:
            reached = along(cells, problem, method, axis)
            at = np.array(reached.values)
            lines.append(Line(method, at[at > 0], metric.scale * reached.ends[at > 0].T))  # of a log axis
        log = wants_log(metric.key, [line.y for line in lines])
        return Panel(p.title, lines, metric.label, label, ylog=log, xlog=True, marks=True)

    def rows(study: Study, cells: Cells) -> list[list[Panel]]:
        found = [panel(cells, *one) for one in shown if one[0] in cells.problems]  # a quick run has another
        return [found or [Panel("nothing was tuned", (), "", ylog=False)]]

    return Panelled(caption, rows, 4.2)
