"""One value of federated Frank-Wolfe varied: loss, gap and accuracy by round, in rows of panels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.experiments.fw_common import KEPT, Curves, one_run
from fedsolve.experiments.fw_problems import BALLS, Problem, judged, projected
from fedsolve.report.markup import PageTable
from fedsolve.studies.experiment import Context
from fedsolve.studies.panels import Line, Panel, panels

ROUNDS, EVERY, CLIENTS, SEEDS, FIRST = 100, 2, 10, (0, 1, 2), 10
Panels = dict[str, dict[float, Curves]]
"""By the title of a row of panels, then by the value that is varied."""


@dataclass(frozen=True)
class Row:
    """A row of panels: one problem and method, a value varied.

    Attributes:
        title: what the paper's panel shows.
        problem, ball: of the runs.
        convex: whether F is; networks start at the projection of their usual start.
        make: (ball, value) -> algorithm.
        share: participation p at a value.
    """

    title: str
    problem: Problem
    ball: str
    convex: bool
    make: Callable[[Any, float], Any]
    share: Callable[[float], float]


def measured(context: Context, rows: Sequence[Row], values: Sequence[float]) -> Panels:
    """Every row at every value."""
    if context.quick:
        rows, values = [row for row in rows if not row.problem.needs_data][:2], values[-2:]
    return {row.title: _row(context, row, values) for row in rows}


def _row(context: Context, row: Row, values: Sequence[float]) -> dict[float, Curves]:
    ball, prepared = BALLS[row.ball], judged if row.convex else projected
    task = prepared(row.problem.build(context.data_dir, 0, CLIENTS, False), ball)
    rounds, seeds = (4, SEEDS[:1]) if context.quick else (ROUNDS, SEEDS)
    say = context.progress(row.title)
    found: dict[float, Curves] = {}
    for done, value in enumerate(values, 1):
        p = row.share(value)
        sampling = fs.sampling.Bernoulli(p)
        options = {"rounds": rounds, "eval_every": EVERY, "batch_size": "full", "local_steps": 1}

        def compute(value: float = value, sampling: Any = sampling, options: Any = options) -> Curves:
            algorithm = row.make(ball, value)
            runs = [one_run(algorithm, task, seed, sampling=sampling, **options) for seed in seeds]
            return {"round": runs[0]["round"]} | {k: np.stack([r[k] for r in runs]) for k in KEPT}

        name = "".join(c if c.isalnum() else "-" for c in f"{row.title}-{value:g}")
        found[value] = context.part(
            name, {"row": row.title, "value": value, "seeds": seeds, **options}, compute
        )
        say(done, len(values))
    return found


def picture(found: Panels, symbol: str, title: str) -> Any:
    """Loss, gap and accuracy of each row."""
    columns = (
        ("loss", "F(xbar)", 1, True),
        ("gap", "gap(xbar)", 1, True),
        ("accuracy", "test accuracy (%)", 100, False),
    )
    grid = [
        [
            Panel(
                row,
                [Line(f"{symbol} = {v:g}", c["round"], c[key] * factor) for v, c in curves.items()],
                label,
                ylog=log,
            )
            for key, label, factor, log in columns
        ]
        for row, curves in found.items()
    ]
    return panels(grid, title, width=4.1)


def table(found: Panels, symbol: str) -> PageTable:
    """Means over seeds: of the whole run, of its first rounds, and at the end."""
    rows = []
    for title, curves in found.items():
        for value, c in curves.items():
            numbers = (average(c, "loss"), average(c, "gap", FIRST), *(c[k][:, -1].mean() for k in KEPT))
            rows.append(
                [title, f"{value:g}", *(f"{x:.4g}" for x in numbers[:-1]), f"{100 * numbers[-1]:.1f}"]
            )
    head = [
        "Panel",
        symbol,
        "Mean F over rounds",
        f"Mean gap, rounds 1 to {FIRST}",
        "F(xbar)",
        "Gap",
        "Accuracy (%)",
    ]
    return PageTable("Means over seeds; the last three at the end", head, rows)


def average(curves: Curves, key: str, last: int | None = None) -> float:
    """The mean over seeds and over the evaluations after round 0, up to a round."""
    keep = (curves["round"] > 0) & (curves["round"] <= (np.inf if last is None else last))
    return float(curves[key][:, keep].mean())
