"""A table of the Frank-Wolfe paper as data, and its cells: every contender on every problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedsolve.errors import InvalidInput
from fedsolve.experiments.fw_common import Contender, Curves, Plan, certified, optimum, tuned
from fedsolve.experiments.fw_problems import BALLS, Problem, judged, projected
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
        convex: whether there is a centralised optimum to compare with.
        deviations: from the paper.
    """

    problems: Mapping[str, Problem]
    balls: tuple[str, ...]
    contenders: tuple[Contender, ...]
    theirs: Mapping[tuple[str, str, str], tuple[float, ...]]
    plan: Plan
    clients: int
    convex: bool
    deviations: tuple[str, ...]


Cell = tuple[str, str, str]
"""Ball, partition and problem."""
Found = dict[Cell, tuple[dict[str, Curves], np.ndarray]]
"""Curves by contender, and F* of each seed (0 where nothing is known), of every cell."""


def cells(context: Context, study: Study) -> Found:
    """Every cell of the table."""
    return {
        (ball, part, problem): cell(context, study, (ball, part, problem))
        for problem in study.problems
        for part in ("iid", "labels")
        for ball in study.balls
    }


def cell(context: Context, study: Study, key: Cell) -> tuple[dict[str, Curves], np.ndarray]:
    """All contenders on one problem, partition and ball."""
    ball, part, problem = key
    name, known = "-".join(key), {"cell": list(key), "clients": study.clients}
    seeds = study.plan.seeds
    prepared = judged if study.convex else projected
    build = study.problems[problem].build
    tasks = {
        seed: prepared(build(context.data_dir, seed, study.clients, part == "iid"), BALLS[ball])
        for seed in seeds
    }
    best = np.zeros(len(seeds))
    if study.convex:
        best = optimum(context, f"{name}-optimum", tasks, BALLS[ball], known)
    curves = {
        c.label: tuned(
            context, f"{name}-{c.label.replace(' ', '-')}", c, BALLS[ball], tasks, study.plan, known
        )
        for c in study.contenders
    }
    if study.convex and not all(certified(c, best) for c in curves.values()):
        raise InvalidInput(f"{name}: F* = {best} is below a bound that a run proves: it is no optimum")
    return curves, best


def quick(study: Study) -> Study:
    """One problem that needs no data in one ball, few rounds, one setting."""
    problem, ball = "synthetic", study.balls[-1]
    few = tuple(replace(c, settings=c.settings[:1]) for c in study.contenders)
    plan = replace(study.plan, rounds=4, trial_rounds=4, every=2, seeds=(0,))
    theirs = {k: v for k, v in study.theirs.items() if k[0] == ball and k[2] == problem}
    only = {problem: study.problems[problem]}
    return replace(study, problems=only, balls=(ball,), contenders=few, plan=plan, theirs=theirs)
