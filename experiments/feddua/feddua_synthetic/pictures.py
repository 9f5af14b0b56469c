"""The two panels of Figure 1: methods without and with server momentum."""

from __future__ import annotations

import numpy as np

from experiments.feddua.methods import MOMENTUM, PLAIN
from fedsolve.studies import Cells, Study
from fedsolve.studies.pictures import Line, Panel, Panelled
from fedsolve.studies.public import describe


def running(values: np.ndarray, window: int) -> np.ndarray:
    """The geometric mean over each window of evaluations, shape (seeds, evaluations - window + 1).

    >>> running(np.array([[1.0, 100.0, 1.0, 100.0]]), 2).round(6)
    array([[10., 10., 10.]])
    """
    with np.errstate(divide="ignore"):
        windows = np.lib.stride_tricks.sliding_window_view(np.log(values), window, axis=1)
    return np.exp(windows.mean(axis=-1))


def families(caption: str, metric: str, window: int = 1, on: str = "") -> Panelled:
    """A metric by round on a problem, a panel for each half of Figure 1; methods without it are left out.

    Args:
        caption: what it shows; the seeds are added.
        metric: a column of the evaluations, above 0 after the first.
        window: evaluations of a running geometric mean.
        on: the problem, the first where the study has none of that name.
    """

    def has(cells: Cells, problem: str, method: str) -> bool:
        sweep = cells.cell(problem, method).of("tuned") if method in cells.methods(problem) else None
        return sweep is not None and metric in sweep.metrics

    def line(cells: Cells, problem: str, method: str) -> Line:
        rounds, values = cells.curve(problem, method, metric=metric)
        there = np.isfinite(values).all(axis=0)  # a server rate has no value before the first round
        rounds, values = rounds[there], values[:, there]
        width = min(window, len(rounds))
        return Line(method, rounds[width - 1 :], running(values, width))

    def rows(study: Study, cells: Cells) -> list[list[Panel]]:
        name, row = on if on in study.problems else next(iter(study.problems)), []
        for title, members in (("Without server momentum", PLAIN), ("With server momentum", MOMENTUM)):
            lines = [line(cells, name, m) for m in members if has(cells, name, m)]
            row += [Panel(title, lines, describe(metric).label)] if lines else []
        return [row]

    return Panelled(caption, rows, 5.2, 3.8)
