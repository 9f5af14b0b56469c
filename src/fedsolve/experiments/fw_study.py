"""A table of the Frank-Wolfe paper as data, and its cells: every contender on every problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedsolve.experiments.fw_common import Contender, Curves, Plan, tuned
from fedsolve.experiments.fw_problems import BALLS, Problem, projected
from fedsolve.studies.experiment import Context


@dataclass(frozen=True)
class Study:
    """One of the paper's tables.

    Attributes:
        problems, balls: its columns and parts, by name.
        contenders: methods, which share task, seeds and rounds.
        theirs: published accuracies (%), [ball, partition, problem] -> by the contenders in order.
        plan: rounds, batch and seeds.
        clients: of the federation.
        deviations: from the paper.
    """

    problems: Mapping[str, Problem]
    balls: tuple[str, ...]
    contenders: tuple[Contender, ...]
    theirs: Mapping[tuple[str, str, str], tuple[float, ...]]
    plan: Plan
    clients: int
    deviations: tuple[str, ...]


Cell = tuple[str, str, str]
"""Ball, partition and problem."""
Found = dict[Cell, dict[str, Curves]]
"""Curves by contender of every cell."""


def cells(context: Context, study: Study) -> Found:
    """Every cell of the table."""
    return {
        (ball, part, problem): cell(context, study, (ball, part, problem))
        for problem in study.problems
        for part in ("iid", "labels")
        for ball in study.balls
    }


def cell(context: Context, study: Study, key: Cell) -> dict[str, Curves]:
    """All contenders on one problem, partition and ball."""
    ball, part, problem = key
    name, known = "-".join(key), {"cell": list(key), "clients": study.clients}
    seeds = study.plan.seeds
    build = study.problems[problem].build
    tasks = {
        seed: projected(build(context.data_dir, seed, study.clients, part == "iid"), BALLS[ball])
        for seed in seeds
    }
    return {
        c.label: tuned(
            context, f"{name}-{c.label.replace(' ', '-')}", c, BALLS[ball], tasks, study.plan, known
        )
        for c in study.contenders
    }


def quick(study: Study) -> Study:
    """One problem that needs no data in one ball, few rounds, one setting."""
    problem, ball = "synthetic", study.balls[-1]
    few = tuple(replace(c, settings=c.settings[:1]) for c in study.contenders)
    plan = replace(study.plan, rounds=4, trial_rounds=4, every=2, seeds=(0,))
    theirs = {k: v for k, v in study.theirs.items() if k[0] == ball and k[2] == problem}
    only = {problem: study.problems[problem]}
    return replace(study, problems=only, balls=(ball,), contenders=few, plan=plan, theirs=theirs)
