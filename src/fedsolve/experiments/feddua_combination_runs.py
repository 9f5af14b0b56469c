"""What `feddua-combinations` runs: two problems, three local trainings, five server steps, a few rates each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.algorithm import Algorithm
from fedsolve.experiments.feddua_combination_claims import FEDPROX, SCAFFOLD
from fedsolve.experiments.feddua_methods import MeanOfTwo, decades
from fedsolve.experiments.feddua_sweeps import over_data
from fedsolve.results.selection import Selection
from fedsolve.results.sweep import Sweep
from fedsolve.studies.experiment import Context
from fedsolve.studies.kept_sweeps import packed, unpacked
from fedsolve.tasks.task import Task
from fedsolve.wrappers.control_variates import ControlVariates
from fedsolve.wrappers.proximal import Proximal

RULES: Mapping[str, Callable[..., Algorithm]] = {
    "FedAvg": lambda eps, c, s: fs.FedAvg(c, server_lr=s),
    "FedAdagrad": lambda eps, c, s: fs.FedAdagrad(c, server_lr=s, tau=eps),
    "FedAdam": lambda eps, c, s: fs.FedAdam(c, server_lr=s, tau=eps),
    "FedDuAdagrad": lambda eps, c, s: fs.FedDuAdagrad(c, eps=eps, weighting="examples"),
    "FedDuAdam": lambda eps, c, s: fs.FedDuAdam(c, eps=eps, weighting="examples"),
}
"""Server steps by name: (epsilon, client rate, server rate) -> the method with plain local steps."""


@dataclass(frozen=True)
class Plan:
    """How much is run; `few` values of each axis at most, the larger ones."""

    rounds: int = 200
    seeds: tuple[int, ...] = (0, 1, 2)
    few: int = 9
    rules: tuple[str, ...] = tuple(RULES)
    problems: tuple[str, ...] = ("regression", "digits")
    options: Mapping[str, Any] | None = None


FULL = Plan()
QUICK = Plan(
    rounds=8, seeds=(0,), few=1, rules=("FedAvg", "FedDuAdagrad"), problems=("regression",),
    options={"num_clients": 4, "examples_per_client": 8, "features": 40},
)  # fmt: skip


def combined(rule: str, local: str, eps: float) -> Callable[..., Algorithm]:
    """A server step with a local training, judged as the paper does; a function of the grid's axes."""

    def make(client_lr: float, server_lr: float = 1.0, mu: float = 0.0) -> Algorithm:
        method = RULES[rule](eps, client_lr, server_lr)
        if local == SCAFFOLD:
            method = ControlVariates(method)
        elif local == FEDPROX:
            method = Proximal(method, mu)
        return MeanOfTwo(method) if rule.startswith("FedDu") else method

    return make


@dataclass(frozen=True)
class Problem:
    """A problem with its grids, its rule of selection and its target.

    Attributes:
        name: of the task.
        plan: how much is run.
        rates: axis -> values, for the client rate and the proximal weight; a server step's name -> its rates.
        eps: epsilon of FedOpt and FedDuA.
        select: how rates are chosen.
        loss, accuracy: the target: a training loss or, where not None, a test accuracy.
    """

    name: str
    plan: Plan
    rates: Mapping[str, tuple[float, ...]]
    eps: float
    select: Selection
    loss: float = 0.0
    accuracy: float | None = None

    def grid(self, local: str, rule: str) -> dict[str, tuple[float, ...]]:
        """The axes of one combination."""
        axes = {"client_lr": self.rates["client_lr"]}
        axes |= {"server_lr": self.rates[rule]} if rule in self.rates else {}
        axes |= {"mu": self.rates["mu"]} if local == FEDPROX else {}
        return {name: values[-self.plan.few :] for name, values in axes.items()}

    def sweep(self, context: Context, local: str, rule: str) -> Sweep:
        """One combination over its grid."""
        plan, make, grid = self.plan, combined(rule, local, self.eps), self.grid(local, rule)
        label = f"{local}, {rule}"
        kept = {"options": plan.options, "eps": self.eps}
        if self.name == "regression":
            return over_data(
                context, "regression", label, make, grid, self.task, plan.seeds, kept, rounds=plan.rounds,
                eval_every=2, select=self.select,
            )  # fmt: skip
        settings = {"grid": grid, "rounds": plan.rounds, "seeds": plan.seeds, **kept}

        def compute() -> Mapping[str, np.ndarray]:
            found = fs.sweep(
                make, self.task(0), grid, seeds=plan.seeds, rounds=plan.rounds, clients_per_round=20, batch_size=10,
                local_steps=10, eval_every=4, select=self.select, label=label,
                progress=context.sweeping(f"digits {label}"),
            )  # fmt: skip
            return packed(found)

        part = context.part(f"digits {label}", settings, compute)
        return unpacked(part, label, grid, plan.seeds, self.select, "digits")

    def task(self, seed: int) -> Task:
        """The data set of a seed."""
        if self.name == "regression":
            return fs.tasks.build("regression", **{**(self.plan.options or {}), "seed": seed})
        return fs.tasks.digits()


def regression(plan: Plan) -> Problem:
    """The paper's synthetic problem."""
    rates = {
        "client_lr": decades(-2, -1), "mu": (0.01, 0.1), "FedAvg": decades(0, 1),
        "FedAdagrad": decades(-1, 0), "FedAdam": decades(-1.5, -0.5),
    }  # fmt: skip
    return Problem("regression", plan, rates, 0.0, Selection("train_loss", 5), loss=1e-2)


def digits(plan: Plan) -> Problem:
    """8x8 digits dealt to 100 clients, Dirichlet 0.3, as in experiments/digits."""
    rates = {
        "client_lr": (0.1, 0.3), "mu": (0.01, 0.1), "FedAvg": (1.0, 3.0), "FedAdagrad": (0.1, 0.3),
        "FedAdam": (0.03, 0.1),
    }  # fmt: skip
    return Problem("digits", plan, rates, 1e-9, Selection("train_loss", 50), accuracy=0.9)


PROBLEMS: Mapping[str, Callable[[Plan], Problem]] = {"regression": regression, "digits": digits}
