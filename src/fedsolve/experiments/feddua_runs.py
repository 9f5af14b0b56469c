"""What `feddua-synthetic` runs: sweeps on the tuning data sets, and every method at its tuned rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

import fedsolve as fs
from fedsolve.experiments.feddua_methods import METHODS, OURS, decades
from fedsolve.experiments.feddua_sweeps import over_data
from fedsolve.results.selection import Selection
from fedsolve.results.sweep import Sweep
from fedsolve.studies.experiment import Context
from fedsolve.studies.kept_sweeps import until
from fedsolve.tasks.task import Task

TUNED = Selection("train_loss", 5)
SHORT = 50
"""Rounds of the study of sensitivity, as in the paper."""
EVERY = 2


@dataclass(frozen=True)
class Plan:
    """How much is run.

    Attributes:
        methods: names.
        rounds: of tuning and of the curves.
        tuning, shown: seeds of the data sets that rates are tuned on; that are shown, also along epsilon_g and epsilon.
        eps_g, eps: values in the study of sensitivity; epsilon is 0 along epsilon_g, and the other way round.
        thin: every how manyth value of the paper's grids.
        options: of the task.
        precise: the type of the grids without a server rate, which come below what float32 can show.
    """

    methods: tuple[str, ...] = tuple(METHODS)
    rounds: int = 500
    tuning: tuple[int, ...] = (0, 1)
    shown: tuple[int, ...] = (0, 1, 2, 3, 4)
    eps_g: tuple[float, ...] = (0.0, *decades(-5, 1, 1))
    eps: tuple[float, ...] = (1e-9, *decades(-6, 0, 1))
    thin: int = 1
    options: Mapping[str, Any] | None = None
    precise: Literal["float32", "float64"] = "float64"

    def task(self, seed: int) -> Task:
        """The data set of a seed."""
        return fs.tasks.build("regression", **{**(self.options or {}), "seed": seed})

    def grid(self, name: str) -> dict[str, tuple[float, ...]]:
        """The paper's grid of a method, or a part of it."""
        return {axis: values[:: -self.thin][::-1] for axis, values in METHODS[name].grid.items()}


FULL = Plan()
QUICK = Plan(
    methods=("FedAvg", "FedExP", "FedAdagrad", "FedDuAdagrad"), rounds=12, tuning=(0,), shown=(0,),
    eps_g=(0.0, 1e-3, 1e-1), eps=(1e-9, 1e-1), thin=3, precise="float32",
    options={"num_clients": 4, "examples_per_client": 8, "features": 40},
)  # fmt: skip


@dataclass(frozen=True)
class Swept:
    """All sweeps: the paper's grids to the end; along epsilon_g and epsilon, and the grids, to round `short`."""

    grids: Mapping[str, Sweep]
    short: Mapping[str, Sweep]
    eps_g: Mapping[str, Sweep]
    eps: Mapping[str, Sweep]


def sweeps(context: Context, plan: Plan) -> Swept:
    """All sweeps on the tuning data sets."""
    kept = {"options": plan.options, "judged": "headline"}
    short = min(SHORT, plan.rounds)
    over = partial(over_data, context, task=plan.task, kept=kept, eval_every=EVERY, select=TUNED)
    grids = {
        name: over(
            "grid", name, METHODS[name].judged, plan.grid(name), rounds=plan.rounds,
            seeds=plan.tuning, dtype="float32" if METHODS[name].server_lr else plan.precise,
        )
        for name in plan.methods
    }  # fmt: skip
    rates = {name: {"client_lr": plan.grid(name)["client_lr"]} for name in plan.methods}
    exploring = [name for name in plan.methods if METHODS[name].averaged]
    along = partial(over, seeds=plan.shown, rounds=short)
    eps_g = {
        name: along("eps_g", name, METHODS[name].judged, rates[name] | {"eps_g": plan.eps_g})
        for name in exploring
    }
    eps = {
        name: along("eps", name, METHODS[name].judged, rates[name] | {"eps": plan.eps})
        for name in exploring
        if name in OURS
    }
    return Swept(grids, {name: until(s, short, TUNED) for name, s in grids.items()}, eps_g, eps)


def chosen_curves(
    context: Context, plan: Plan, name: str, settings: Mapping[str, float]
) -> dict[str, np.ndarray]:
    """A method at its tuned rates on every shown data set, in float64: both iterates, and its rate by round."""

    def compute() -> Mapping[str, np.ndarray]:
        runs = []
        for i, seed in enumerate(plan.shown):
            algorithm = METHODS[name].build(**settings)
            runs.append(
                fs.run(algorithm, plan.task(seed), rounds=plan.rounds, eval_every=EVERY, dtype="float64")
            )
            context.say(f"curves {name}", i + 1, len(plan.shown))
        return {
            "round": np.asarray(runs[0].metrics["round"]),
            "last": np.stack([r.metrics["train_loss"] for r in runs]),
            "averaged": np.stack([r.metrics["train_loss_averaged"] for r in runs]),
            "server_lr": np.stack([r.rounds["server_lr"] for r in runs]),
        }

    kept = {"settings": dict(settings), "rounds": plan.rounds, "seeds": plan.shown, "options": plan.options}
    return context.part(f"curves {name}", {**kept, "eval_every": EVERY}, compute)
