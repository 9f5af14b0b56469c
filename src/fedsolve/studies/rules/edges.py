"""Whether what lies beyond the edge of a grid could change a verdict: its last gains, continued."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedsolve.results.sweep import SweepRecord
from fedsolve.studies.cells import Cell, Cells, exploded
from fedsolve.studies.study import Decision, Statement

AT_LEAST, WITHOUT_TREND = 2.0, 4.0
"""Times the last step's gain that a method may gain beyond an edge: at least, and where gains show no trend."""
SHARES = (0.5, 1.0)
"""Of that, at which the verdict is looked at."""
Moved = Mapping[tuple[str, str], Cell]
"""(problem, method) -> the cell as it is beyond the edge."""


def judged(statement: Statement, cells: Cells) -> Decision:
    """The statement's decision, provisional only where a wider grid could change its verdict.

    For example FedAvg is best at the largest client rate, 0.1, where it ends 1 % below 0.03, as that 4 % below 0.01:
    further rates would bring less than 2 %, and FedAdam ends at half of its loss. Each method at an edge is moved on as
    `beyond_edge` says, by half of that and by all of it, alone and with the others: where the verdict stays as it is,
    its edge is no reason to doubt.
    """
    found = statement.decide(cells)
    at_edge = {key: cell for key, cell in cells.by_name.items() if found.provisional and cell.edges}
    counted = [
        key
        for key, cell in at_edge.items()
        if statement.decide(_with(cells, {key: _settled(cell)})).provisional != found.provisional
    ]
    moved = {key: [beyond_edge(at_edge[key], share) for share in SHARES] for key in counted}
    bounded = {key: [one for one in by_share if one is not None] for key, by_share in moved.items()}

    def stays(others: Moved) -> bool:
        return statement.decide(_with(cells, others)).verdict == found.verdict

    safe = {key: far for key, far in bounded.items() if far and all(stays({key: one}) for one in far)}
    if not safe or not all(stays({key: far[i] for key, far in safe.items()}) for i in range(len(SHARES))):
        return found
    again = statement.decide(_with(cells, {key: _settled(at_edge[key]) for key in safe}))
    names = ", ".join(dict.fromkeys(method for _, method in safe))
    why = f"what lies beyond the edge of the grid, where {names} did best, could not change it"
    return replace(again, reason="; ".join(filter(None, (again.reason, why))))


class _Settled(Cell):
    """A cell whose edges are no reason to doubt."""

    @property
    def edges(self) -> list[str]:
        """None."""
        return []


def _settled(cell: Cell) -> Cell:
    return _Settled(cell.published, cell.grid, cell.tuned)


def _with(cells: Cells, others: Moved) -> Cells:
    return replace(cells, by_name={**cells.by_name, **others})


def beyond_edge(cell: Cell, share: float = 1.0) -> Cell | None:
    """The cell as a wider grid might have it: all columns move on as they did in the last step before the edge.

    Along an axis, the others tuned at each value, let the score's last gain be g and the one before it g / q with
    q < 1. If gains keep falling so, further steps bring g q / (1 - q) in all. The cell moves by that or by 2 g,
    whichever is more; by 4 g where the step before the last brought no gain, so that there is no trend. Scores of which
    the least is best, and columns of positive numbers, move by factors.

    Args:
        cell: with a grid and a tuned setting.
        share: of the move.

    Returns:
        None where the gains grow from step to step, so that nothing bounds them, there is none at the edge, the
        neighbour diverged, or the grid lacks a column.
    """
    grid, tuned = cell.grid, cell.tuned
    if grid is None or tuned is None or not set(tuned.metrics) <= set(grid.metrics):
        return None
    for axis in cell.edges:
        steps = _last_steps(grid, axis, cell.chosen[axis])
        if steps is None:
            return None
        inner, outer, times = steps
        tuned = _moved(tuned, grid, inner, outer, share * times)
    return replace(cell, tuned=tuned)


def _last_steps(grid: SweepRecord, axis: str, chosen: Any) -> tuple[int, int, float] | None:
    """The best settings one step before the edge and at it, and how many such steps may lie beyond."""
    values = grid.grid[axis]
    if isinstance(values[0], tuple):  # drawn at random: they have no neighbours
        return None
    inwards = values if chosen == values[0] else values[::-1]
    lost = exploded(grid).any(axis=1) | ~np.isfinite(grid.score)
    cost = np.where(lost, np.inf, -grid.score if grid.selection.most else grid.score)
    best = [
        min((i for i, point in enumerate(grid.points) if point[axis] == value), key=cost.__getitem__)
        for value in inwards[:3]
    ]
    outer, inner, before = cost[best]
    if not np.isfinite(inner):
        return None
    if outer > 0 and not grid.selection.most:
        outer, inner, before = np.log((outer, inner, before))
    last, earlier = inner - outer, before - inner
    if last < 0:  # it was chosen for another reason, such as its whole run
        return None
    if earlier <= 0:
        return best[1], best[0], WITHOUT_TREND
    if last >= earlier:
        return None
    ratio = last / earlier
    return best[1], best[0], max(AT_LEAST, ratio / (1 - ratio))


def _moved(tuned: SweepRecord, grid: SweepRecord, inner: int, outer: int, times: float) -> SweepRecord:
    """The tuned runs with every column moved by so many times what it changed between two settings of the grid."""
    metrics = {}
    for name, values in tuned.metrics.items():
        steps = grid.metrics[name][inner], grid.metrics[name][outer]
        factors = all((x > 0).all() for x in (values, *steps))
        first, second = np.log(steps) if factors else steps
        step = np.interp(tuned.rounds, grid.rounds, (second - first).mean(axis=0))
        metrics[name] = values * np.exp(times * step) if factors else values + times * step
    return replace(tuned, metrics=metrics)
