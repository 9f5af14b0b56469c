"""What a study was run with, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsolve.studies.problem import Problem
from fedsolve.studies.study import Study
from fedsolve.studies.verdicts import in_words


def settings(study: Study) -> dict[str, Any]:
    """What was run, as words: what all problems have alike once, then each problem, then methods run otherwise."""
    told = {name: _told(problem) for name, problem in study.problems.items()}
    first, *others = told.values()
    alike = {k: v for k, v in first.items() if others and all(other.get(k) == v for other in others)}
    problems = {}
    for name, problem in study.problems.items():
        own = words({k: v for k, v in told[name].items() if k not in alike})
        problems[problem.title] = "; ".join(filter(None, (problem.size, own)))
    methods = [study.methods_of(name) for name in study.problems]
    grids = any(method.grid for by_name in methods for method in by_name.values())
    tuned = {"tuned on seed": study.tuning_seed} if grids else {}
    otherwise = {label: words(method.options) for label, method in methods[0].items() if method.options}
    shared = {"all problems": words(alike)} if alike else {}
    return {"seeds": list(study.seeds), **tuned, **shared, **problems, **otherwise}


def _told(problem: Problem) -> dict[str, Any]:
    data = {"data": "drawn anew for each seed"} if problem.data_by_seed else {}
    judged = {
        "compared": problem.metric,
        "mean of the last rounds": problem.last,
        "chosen by": problem.select,
    }
    tuning = {f"{name} while tuning": value for name, value in problem.tuning.items()}
    return {**problem.options, **judged, **data, **tuning}


def words(setting: Mapping[str, Any]) -> str:
    """Such as 'client_lr 0.1, server_lr 1'."""
    return ", ".join(f"{name} {in_words(value)}" for name, value in setting.items())
