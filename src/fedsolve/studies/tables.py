"""A study's tables: each problem's methods at the paper's settings and at their tuned ones, beside its numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fedsolve.report.markup import PageTable
from fedsolve.results.metrics import describe
from fedsolve.studies.cells import Cells
from fedsolve.studies.verdicts import in_words, shown_final


def tables(cells: Cells) -> dict[str, PageTable]:
    """One table a problem, by the problem's name as a file's."""
    return {re.sub(r"[^\w+.]+", "-", name): _table(cells, name) for name in cells.problems}


def _table(cells: Cells, name: str) -> PageTable:
    problem = cells.problem(name)
    metric = describe(problem.metric)
    head = ["Method", "Paper's setting", f"{metric.label} there", "Tuned setting", f"{metric.label} tuned"]
    head += ["At an edge"] + (["Paper's number"] if problem.published else [])
    rows: list[list[Any]] = []
    for method in cells.methods(name):
        cell = cells.cell(name, method)
        published = cell.published is not None
        tuned = cell.grid is not None
        row: list[Any] = [
            method,
            _words(cell.published.points[0]) if cell.published else None,
            shown_final(cells, name, method, "published") if published else None,
            (_words(cell.chosen) if cell.tuned else "all diverged") if tuned else None,
            shown_final(cells, name, method, "tuned") if tuned else None,
            ", ".join(cell.edges) or None,
        ]
        if problem.published:
            theirs = problem.published.get(method)
            row.append(None if theirs is None else f"{metric.scale * theirs:.4g}")
        rows.append(row)
    seeds = f"mean ± standard deviation over {len(cells.seeds)} {problem.replicates}"
    return PageTable(f"{problem.title} ({problem.size}): {seeds}", head, rows)


def _words(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{axis} {in_words(value)}" for axis, value in setting.items())
