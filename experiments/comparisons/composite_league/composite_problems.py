"""The composite league's problems: ten data sets with a penalty each, small enough for two cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import fedsolve as fs
from experiments.fco.fmri.study import task as voxels
from fedsolve.data import Shards
from fedsolve.geometry import L1, Blocks, ElasticNet, GroupL1, NuclearNorm
from fedsolve.studies import Problem

Draw = Callable[[Path | None, int], fs.Task]
QUICK = "LASSO III"


@dataclass(frozen=True)
class Composite:
    """A problem of the league.

    Attributes:
        size: in words, the penalty and its weight among them.
        draw: from the data folder and a seed to the task.
        penalty: psi, from a factor of its weights.
        rounds, clients: of a run, and of a round.
        options: the local work, where it is not the task's own.
        rank: of the true matrix, None for none.
    """

    size: str
    draw: Draw
    penalty: Callable[[float], Blocks]
    rounds: int = 100
    clients: int = 10
    options: Mapping[str, Any] | None = None
    rank: int | None = None


def _l1(weight: float) -> Callable[[float], Blocks]:
    return lambda factor: L1(factor * weight).on("weight")


def _libsvm(dataset: str) -> Draw:
    return lambda data_dir, seed: fs.tasks.libsvm(data_dir, dataset, partition=Shards(2), seed=seed)


def _lasso(dataset: int) -> Draw:
    return lambda data_dir, seed: fs.tasks.lasso(dataset, seed)


def _lowrank(dataset: int) -> Draw:
    return lambda data_dir, seed: fs.tasks.lowrank(dataset, seed)


STEPS = {"local_steps": 5, "batch_size": 10}
_TWO_SHARDS = "100 clients of two shards by label, 0.001 |w|_1"
COMPOSITES = {
    "LASSO I": Composite("512 of 1,024 true, 64 clients, 0.1 |w|_1", _lasso(1), _l1(0.1), 200),
    "LASSO III": Composite("8 of 1,024 true, 64 clients, 0.1 |w|_1", _lasso(3), _l1(0.1), 200),
    "LASSO IV": Composite("512 of 1,024 true, 256 clients, 0.1 |w|_1", _lasso(4), _l1(0.1), 200),
    "elastic net": Composite(
        "LASSO II's data, 64 of 1,024 true, 64 clients, 0.1 |w|_1 + 0.005 |w|^2", _lasso(2),
        lambda f: ElasticNet(0.1 * f, 0.01 * f).on("weight"), 200,
    ),
    "low rank III": Composite(
        "32 x 32 of rank 1, 64 clients, 0.3 |W|_*", _lowrank(3), lambda f: NuclearNorm(0.3 * f).on("weight"), 200,
        rank=1,
    ),
    "digits by pixel": Composite(
        "softmax regression, 100 clients, 0.003 times the sum over pixels of |W_j|_2",
        lambda data_dir, seed: fs.tasks.digits(model="softmax", seed=seed),
        lambda f: GroupL1(0.003 * f, axis=0).on("weight"), options=STEPS,
    ),
    "a9a": Composite(f"logistic regression, {_TWO_SHARDS}", _libsvm("a9a"), _l1(1e-3), options=STEPS),
    "w8a": Composite(f"logistic regression, {_TWO_SHARDS}", _libsvm("w8a"), _l1(1e-3), options=STEPS),
    "mushrooms": Composite(f"logistic regression, {_TWO_SHARDS}", _libsvm("mushrooms"), _l1(1e-3), options=STEPS),
    "voxels": Composite(
        "logistic regression on fMRI, 7 runs of a scanner, 4 a round, 0.003 |w|_1", voxels, _l1(3e-3), clients=4,
    ),
}  # fmt: skip
SPARSE = ("LASSO I", "LASSO III", "LASSO IV", "elastic net")
"""The problems whose true support is known."""
LOW_RANK = {name: one.rank for name, one in COMPOSITES.items() if one.rank is not None}


def task(data_dir: Path | None, seed: int, one: Composite) -> fs.Task:
    """The data of a seed, judged by F + psi and by what is known of the truth."""
    drawn = one.draw(data_dir, seed)
    known = [d for d in drawn.diagnostics if isinstance(d, fs.diagnostics.Support)]
    known += [fs.diagnostics.Rank(1e-2, "weight")] if one.rank is not None else []
    return replace(drawn, diagnostics=(*known, fs.diagnostics.Objective(one.penalty(1.0))), test=None)


def problem(name: str, one: Composite) -> Problem:
    """As the frame takes it: F + psi at the end is compared, and chooses the settings."""
    options = {
        "rounds": one.rounds, "clients_per_round": one.clients, "eval_every": one.rounds, "parallel_trials": 1,
        **(one.options or {}),
    }  # fmt: skip
    made = partial(task, one=one)
    return Problem(name, one.size, made, options, "objective", select="objective", data_by_seed=True)
