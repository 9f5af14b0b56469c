"""Runs a study: each method on each problem a sweep or two, kept when done and resumed where it was interrupted."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.core.errors import Interrupted, unknown
from fedsolve.engine.compute.workers import each_in_threads
from fedsolve.engine.identity import describe, digest
from fedsolve.engine.progress import Progress
from fedsolve.engine.sweep_grid import build_methods
from fedsolve.folders.run_folder import SWEEP
from fedsolve.report.table import ResultTable
from fedsolve.results import metrics
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies.cells import Cell, Cells
from fedsolve.studies.experiment import (
    OURS,
    Claim,
    Context,
    Experiment,
    Outcome,
    joined,
    noted,
    packed,
    unpacked,
    within,
)
from fedsolve.studies.problem import Method, Problem, check_tested
from fedsolve.studies.rules import judged
from fedsolve.studies.rules.comparisons import in_words, shown_final
from fedsolve.studies.study import Study
from fedsolve.tasks.task import Task

# What a study was run with, in words, and its tables: methods as given and as tuned, beside the paper's numbers.

UNDER_WAY = "under-way"  # below a study's folder: a folder for each sweep that has not ended


def tables(cells: Cells) -> dict[str, ResultTable]:
    # one table a problem, by the problem's name as a file's; one a metric where nothing was tuned or published
    tuned = any(cell.grid is not None for cell in cells.by_name.values())
    if len(cells.problems) > 1 and not tuned and not any(p.published for p in cells.problems.values()):
        metrics = dict.fromkeys(p.metric for p in cells.problems.values())
        of = {metric: [n for n, p in cells.problems.items() if p.metric == metric] for metric in metrics}
        return {f"results-{m}" if len(of) > 1 else "results": _side_by_side(cells, of[m]) for m in of}
    return {re.sub(r"[^\w+.]+", "-", name): _table(cells, name) for name in cells.problems}


def _side_by_side(cells: Cells, names: Sequence[str]) -> ResultTable:
    # problems of one metric below each other, their methods side by side
    methods = list(dict.fromkeys(m for name in names for m in cells.methods(name)))

    def shown(name: str, method: str) -> str | None:
        return shown_final(cells, name, method, "published") if (name, method) in cells.by_name else None

    rows = [[cells.problem(name).title, *(shown(name, m) for m in methods)] for name in names]
    problem = cells.problem(names[0])
    seeds = f"mean ± standard deviation over {len(cells.seeds)} {problem.replicates}"
    return ResultTable(metrics.describe(problem.metric).label, ["Problem", *methods], rows, seeds)


def _table(cells: Cells, name: str) -> ResultTable:
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
    # an empty column says nothing
    filled = [i for i in range(len(head)) if any(row[i] is not None for row in rows)]
    shown = [[row[i] for i in filled] for row in rows]
    return ResultTable(problem.title, [head[i] for i in filled], shown, f"{problem.size}; {seeds}")


def settings(study: Study) -> dict[str, Any]:
    # what was run, as words: what all problems have alike once, then each problem, then methods run otherwise
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
    compared = {"compared": f"{problem.metric} {over}", "chosen by": problem.select}
    tuning = {f"{name} while tuning": value for name, value in problem.tuning.items()}
    return {**problem.options, **compared, **data, **tuning}


def words(setting: Mapping[str, Any]) -> str:
    # such as 'client_lr 0.1, server_lr 1'
    return ", ".join(f"{name} {in_words(value)}" for name, value in setting.items())


def experiment(study: Study) -> Experiment:
    # the study as `fedsolve reproduce` runs it
    return Experiment(
        study.title, study.paper, study.summary, partial(outcome, study), minutes=study.minutes,
        needs_data=study.needs_data, cost=study.cost, full=bool(study.full), theory=study.theory,
    )  # fmt: skip


def outcome(study: Study, context: Context) -> Outcome:
    # run the study in the size that the context asks for, evaluate its claims and draw it
    if context.quick:
        study = study.at_quick_size()
    elif context.full:
        study = study.at_full_size()
    cells = solve(study, context)
    claims = []
    for statement in study.evaluated:
        found, theirs = judged(statement, cells), statement.theirs or OURS
        claims.append(
            Claim(statement.says, theirs, found.ours, found.verdict, found.reason, found.provisional)
        )
    return Outcome(
        claims,
        {name: partial(picture.draw, study, cells) for name, picture in study.pictures.items()},
        tables(cells),
        (*study.deviations, *([f"The paper's size: {study.cost}"] if study.full else [])),
        settings(study),
    )


def solve(study: Study, context: Context) -> Cells:
    cells: dict[tuple[str, str], Cell] = {}
    left: dict[tuple[str, str], _Run] = {}
    for name, problem in study.problems.items():
        tasks = _Tasks(partial(problem.task, context.data_dir and context.data_dir.absolute()))
        for label, method in study.methods_of(name).items():
            left[name, label] = _Run(context, study, name, problem, label, method, tasks)
    order, threads = list(left), context.units.threads if context.units else 1

    def cell(key: tuple[str, str]) -> Cell:
        of, label = left[key].problem.grid_of, key[1]
        if of and (of, label) not in cells:
            raise unknown(f"earlier problem with {label}", of, [p for p, m in cells if m == label])
        return left[key].cell(cells[of, label].grid if of else None)

    while left:  # on workers all at once that wait for no other's grid
        ready = [key for key in left if not (of := left[key].problem.grid_of) or (of, key[1]) in cells]
        ready = (ready or list(left))[: None if context.units else 1]
        cells |= zip(ready, each_in_threads(cell, ready, threads), strict=True)
        left = {key: run for key, run in left.items() if key not in cells}
    with contextlib.suppress(OSError):  # it never was; not before, as workers make folders in it
        (context.folder / UNDER_WAY).rmdir()
    return Cells(study.problems, study.seeds, {key: cells[key] for key in order})


class _Tasks(dict[tuple[int, ...], Task]):
    # the task of a problem by the seed, if each has its own data: made when it is first needed
    def __init__(self, make: Callable[..., Task]) -> None:
        self._make = make

    def __missing__(self, seed: tuple[int, ...]) -> Task:
        self[seed] = self._make(*seed)
        return self[seed]


@dataclass(frozen=True)
class _Run:
    """One method on one problem of a study, by their names too."""

    context: Context
    study: Study
    name: str
    problem: Problem
    label: str
    method: Method
    tasks: _Tasks

    @property
    def options(self) -> dict[str, Any]:
        return {**self.problem.options, **self.method.options}

    def cell(self, wider: SweepRecord | None = None) -> Cell:
        """The published setting with all seeds, the grid with the tuning seed, and its best with all."""
        # The grid is read from a wider one where that has run. Where it ran fewer rounds, its best is shown only if
        # that is better than the published setting by the selection over the whole runs.
        published = self._at(self.method.published, "published") if self.method.published else None
        if not self.method.grid:
            return Cell(published, None, None)
        grid = self._grid() if wider is None else self._within(wider)
        if not np.isfinite(grid.score).any():
            return Cell(published, grid, None)
        best = grid.best_settings
        if published is None or best != dict(self.method.published):
            tuned = self._at(best, "tuned")
            if published is None or "rounds" not in self.problem.tuning or _is_better(tuned, published):
                return Cell(published, grid, tuned)
        return Cell(published, grid, published)

    def _grid(self) -> SweepRecord:
        options = {**self.options, **self.problem.tuning}
        seeds = options.pop("seeds", (self.study.tuning_seed,))
        return self._sweep("grid", self.method.grid, seeds, options)

    def _within(self, wider: SweepRecord) -> SweepRecord:
        # the part of a wider grid that is this method's, with the problem's own selection
        select = Selection.parse(self.problem.select)
        select.check(wider.metrics)
        return replace(within(wider, self.method.grid), selection=select)

    def _at(self, setting: Mapping[str, Any], what: str) -> SweepRecord:
        axes = {axis: (value,) for axis, value in setting.items()}
        return self._sweep(what, axes, self.study.seeds, self.options)

    def _sweep(
        self, what: str, axes: Mapping[str, tuple[Any, ...]], seeds: Sequence[int], options: Mapping[str, Any]
    ) -> SweepRecord:
        if not self.problem.data_by_seed:
            return self._part(what, axes, seeds, options, ())
        return joined([self._part(f"{what}, seed {s}", axes, (s,), options, (s,)) for s in seeds])

    def _part(
        self,
        what: str,
        axes: Mapping[str, tuple[Any, ...]],
        seeds: Sequence[int],
        options: Mapping[str, Any],
        data: tuple[int, ...],
    ) -> SweepRecord:
        name = f"{self.name} {self.label} {what}"
        part = "".join(c if c.isalnum() or c in "+.-" else "-" for c in name)
        one = "validation" in self.problem.tuning and "validation" not in options  # one setting, all examples
        select = Selection.parse("train_loss" if one else self.problem.select)
        known = {
            "problem": self.name,
            "size": self.problem.size,
            "method": self.label,
            "axes": {name: list(values) for name, values in axes.items()},
            "seeds": list(seeds),
            "options": dict(options),
            "select": repr(select),
        }
        # of every value in the methods; what is only read is taken from any
        reads = self.context.stored_only
        version = "" if reads else digest(describe(build_methods(self.method.make, axes)))
        under_way = self.context.folder.absolute() / UNDER_WAY / f"{part}-{digest(repr((known, version)))}"

        problem, make, label = self.problem, self.method.make, self.label  # what a worker is sent

        def run(tasks: _Tasks, tell: Callable[[Progress], None]) -> Mapping[str, np.ndarray]:
            check_tested(problem, tasks[data])
            sweep = fs.sweep(
                make, tasks[data], axes, seeds=seeds, select=select, label=label, out=under_way,
                resume=(under_way / SWEEP.file).exists(), progress=tell, **options,
            )  # fmt: skip
            return packed(sweep)

        def tell(at: Progress) -> None:
            name = ", ".join(filter(None, (f"{self.name}: {self.label}", what, at.remark)))
            try:
                self.context.say(name, at.done, at.total)
            except Interrupted:
                if (units := self.context.units) is None:
                    raise
                units.interrupt.signalled = True

        def compute() -> Mapping[str, np.ndarray]:
            if (units := self.context.units) is None:
                return run(self.tasks, tell)
            shared = units.share(f"the problem {self.name}", self.tasks)
            return units.run(part, lambda *given: noted(partial(run, *given)), shared, tell, under_way)[0]

        arrays = self.context.part(part, known, compute, version)
        shutil.rmtree(under_way, ignore_errors=True)
        return unpacked(arrays, self.label, dict(axes), tuple(seeds), select, self.problem.title)


def _is_better(one: SweepRecord, other: SweepRecord) -> bool:
    # whether a run of one setting is better than another by their selection, on average over the seeds
    first, second = (float(run.score[0]) for run in (one, other))
    return first > second if one.selection.most else first < second
