"""What a study was run with, in words, and its tables: methods as given and as tuned, beside the paper's numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedsolve.report.markup import PageTable
from fedsolve.results import metrics
from fedsolve.studies.cells import Cells
from fedsolve.studies.problem import Problem
from fedsolve.studies.rules.comparisons import in_words, shown_final
from fedsolve.studies.study import Study


def tables(cells: Cells) -> dict[str, PageTable]:
    """One table a problem, by the problem's name as a file's; one a metric where nothing was tuned or published."""
    tuned = any(cell.grid is not None for cell in cells.by_name.values())
    if len(cells.problems) > 1 and not tuned and not any(p.published for p in cells.problems.values()):
        metrics = dict.fromkeys(p.metric for p in cells.problems.values())
        of = {metric: [n for n, p in cells.problems.items() if p.metric == metric] for metric in metrics}
        return {f"results-{m}" if len(of) > 1 else "results": _side_by_side(cells, of[m]) for m in of}
    return {re.sub(r"[^\w+.]+", "-", name): _table(cells, name) for name in cells.problems}


def _side_by_side(cells: Cells, names: Sequence[str]) -> PageTable:
    """Problems of one metric below each other, their methods side by side."""
    methods = list(dict.fromkeys(m for name in names for m in cells.methods(name)))

    def shown(name: str, method: str) -> str | None:
        return shown_final(cells, name, method, "published") if (name, method) in cells.by_name else None

    rows = [[cells.problem(name).title, *(shown(name, m) for m in methods)] for name in names]
    problem = cells.problem(names[0])
    seeds = f"mean ± standard deviation over {len(cells.seeds)} {problem.replicates}"
    return PageTable(metrics.describe(problem.metric).label, ["Problem", *methods], rows, seeds)


def _table(cells: Cells, name: str) -> PageTable:
    problem = cells.problem(name)
    metric = metrics.describe(problem.metric)
    head = ["Method", "Given setting", f"{metric.label} there", "Tuned setting", f"{metric.label} tuned"]
    head += ["At an edge"] + (["Paper's number"] if problem.published else [])
    rows: list[list[Any]] = []
    for method in cells.methods(name):
        cell = cells.cell(name, method)
        published = cell.published is not None
        tuned = cell.grid is not None
        row: list[Any] = [
            method,
            words(cell.published.points[0]) if cell.published else None,
            shown_final(cells, name, method, "published") if published else None,
            (words(cell.chosen) if cell.tuned else "all diverged") if tuned else None,
            shown_final(cells, name, method, "tuned") if tuned else None,
            ", ".join(cell.edges) or None,
        ]
        if problem.published:
            theirs = problem.published.get(method)
            row.append(None if theirs is None else f"{metric.scale * theirs:.4g}")
        rows.append(row)
    seeds = f"mean ± standard deviation over {len(cells.seeds)} {problem.replicates}"
    filled = [
        i for i in range(len(head)) if any(row[i] is not None for row in rows)
    ]  # an empty column says nothing
    shown = [[row[i] for i in filled] for row in rows]
    return PageTable(problem.title, [head[i] for i in filled], shown, f"{problem.size}; {seeds}")


def settings(study: Study) -> dict[str, Any]:
    """What was run, as words: what all problems have alike once, then each problem, then methods run otherwise."""
    options = {name: _options(problem) for name, problem in study.problems.items()}
    first, *others = options.values()
    alike = {k: v for k, v in first.items() if others and all(other.get(k) == v for other in others)}
    problems = {}
    for name, problem in study.problems.items():
        own = words({k: v for k, v in options[name].items() if k not in alike})
        problems[problem.title] = "; ".join(filter(None, (problem.size, own)))
    methods = [study.methods_of(name) for name in study.problems]
    grids = any(method.grid for by_name in methods for method in by_name.values())
    everywhere = all("seeds" in problem.tuning for problem in study.problems.values())
    tuned = {"tuned on seed": study.tuning_seed} if grids and not everywhere else {}
    otherwise = {label: words(method.options) for label, method in methods[0].items() if method.options}
    shared = {"all problems": words(alike)} if alike else {}
    return {"seeds": list(study.seeds), **tuned, **shared, **problems, **otherwise}


def _options(problem: Problem) -> dict[str, Any]:
    data = {"data": "drawn anew for each seed"} if problem.data_by_seed else {}
    over = f"(mean of the last {problem.last} rounds)" if problem.last > 1 else "(last round)"
    compared = {
        "compared": f"{problem.metric} {over}",
        "chosen by": problem.select,
    }
    tuning = {f"{name} while tuning": value for name, value in problem.tuning.items()}
    return {**problem.options, **compared, **data, **tuning}


def words(setting: Mapping[str, Any]) -> str:
    """Such as 'client_lr 0.1, server_lr 1'."""
    return ", ".join(f"{name} {in_words(value)}" for name, value in setting.items())
