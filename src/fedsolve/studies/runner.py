"""Runs a study: each method on each problem a sweep or two, kept when done and resumed where it was interrupted."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.core.errors import unknown
from fedsolve.engine.identity import describe, digest
from fedsolve.engine.sweep_grid import build_methods
from fedsolve.folders.run_folder import SWEEP
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies.cells import Cell, Cells
from fedsolve.studies.experiment import OURS, Claim, Context, Experiment, Outcome
from fedsolve.studies.parts import joined, packed, unpacked, within
from fedsolve.studies.problem import Method, Problem, check_tested
from fedsolve.studies.rules import judged
from fedsolve.studies.study import Study
from fedsolve.studies.tables import settings, tables
from fedsolve.tasks.task import Task


def experiment(study: Study) -> Experiment:
    """The study as `fedsolve reproduce` runs it."""
    return Experiment(
        study.title, study.paper, study.summary, partial(outcome, study), minutes=study.minutes,
        needs_data=study.needs_data, cost=study.cost, full=bool(study.full), theory=study.theory,
    )  # fmt: skip


def outcome(study: Study, context: Context) -> Outcome:
    """Run the study in the size that the context asks for, evaluate its claims and draw it."""
    if context.quick:
        study = study.at_quick_size()
    elif context.full:
        study = study.at_full_size()
    cells = solve(study, context)
    claims = []
    for statement in study.evaluated:
        decision = judged(statement, cells)
        theirs = statement.theirs or OURS
        claims.append(
            Claim(
                statement.says, theirs, decision.ours, decision.verdict, decision.reason, decision.provisional
            )
        )
    return Outcome(
        claims,
        {name: partial(picture.draw, study, cells) for name, picture in study.pictures.items()},
        tables(cells),
        (*study.deviations, *([f"The paper's size: {study.cost}"] if study.full else [])),
        settings(study),
    )


def solve(study: Study, context: Context) -> Cells:
    """Every cell of the study; those that are kept are not run again."""
    cells = {}
    for name, problem in study.problems.items():
        task = cache(partial(problem.task, context.data_dir))
        for label, method in study.methods_of(name).items():
            run = _Run(context, study, name, problem, label, method, task)
            cells[name, label] = run.cell(_grid_elsewhere(cells, problem, label))
    return Cells(study.problems, study.seeds, cells)


def _grid_elsewhere(
    cells: Mapping[tuple[str, str], Cell], problem: Problem, label: str
) -> SweepRecord | None:
    """The grid that an earlier problem ran for this one too, None if that runs its own."""
    if not problem.grid_of:
        return None
    if (problem.grid_of, label) not in cells:
        raise unknown(f"earlier problem with {label}", problem.grid_of, [p for p, m in cells if m == label])
    return cells[problem.grid_of, label].grid


@dataclass(frozen=True)
class _Run:
    """One method on one problem of a study, by their names too."""

    context: Context
    study: Study
    name: str
    problem: Problem
    label: str
    method: Method
    task: Callable[..., Task]

    @property
    def options(self) -> dict[str, Any]:
        return {**self.problem.options, **self.method.options}

    def cell(self, wider: SweepRecord | None = None) -> Cell:
        """The published setting with all seeds, the grid with the tuning seed, and its best with all.

        The grid is read from a wider one where that has run. Where it ran fewer rounds, its best is shown only if that
        is better than the published setting by the selection over the whole runs.
        """
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
        """The part of a wider grid that is this method's, with the problem's own selection."""
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
            return self._part(what, axes, seeds, options, self.task)
        return joined(
            [self._part(f"{what}, seed {s}", axes, (s,), options, partial(self.task, s)) for s in seeds]
        )

    def _part(
        self,
        what: str,
        axes: Mapping[str, tuple[Any, ...]],
        seeds: Sequence[int],
        options: Mapping[str, Any],
        task: Callable[[], Task],
    ) -> SweepRecord:
        part = _file_name(f"{self.name} {self.label} {what}")
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
        version = digest(describe(build_methods(self.method.make, axes)))  # of every value in the methods
        under_way = self.context.folder / "under-way" / f"{part}-{digest(repr((known, version)))}"

        def compute() -> Mapping[str, np.ndarray]:
            made = task()
            check_tested(self.problem, made)
            sweep = fs.sweep(
                self.method.make, made, axes, seeds=seeds, select=select, label=self.label,
                out=under_way, resume=(under_way / SWEEP.file).exists(),
                progress=self.context.sweeping(f"{self.name}: {self.label}, {what}"), **options,
            )  # fmt: skip
            return packed(sweep)

        arrays = self.context.part(part, known, compute, version)
        shutil.rmtree(under_way, ignore_errors=True)
        with contextlib.suppress(OSError):  # of other parts, or it never was
            under_way.parent.rmdir()
        return unpacked(arrays, self.label, dict(axes), tuple(seeds), select, self.problem.title)


def _is_better(one: SweepRecord, other: SweepRecord) -> bool:
    """Whether a run of one setting is better than another by their selection, on average over the seeds."""
    first, second = (float(run.score[0]) for run in (one, other))
    return first > second if one.selection.most else first < second


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "+.-" else "-" for c in text)
