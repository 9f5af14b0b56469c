"""What the composite experiments share: the paper's grid of rates, run one method at a time, and its tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.algorithm import Algorithm
from fedsolve.diagnostics import Diagnostic
from fedsolve.diagnostics.base import Point
from fedsolve.studies.experiment import Context
from fedsolve.tasks.task import Task

ETA_C = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
"""The paper's seven client rates, and below them 3e-4, which its data as described need."""
ETA_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

Builder = Callable[[Any, float, float], Algorithm]
METHODS: dict[str, Builder] = {
    "FedDualAvg": lambda psi, c, s: fs.FedDualAvg(psi, c, server_lr=s),
    "FedDualAvgOSP": lambda psi, c, s: fs.FedDualAvgOSP(psi, c, server_lr=s),
    "FedMiD": lambda psi, c, s: fs.FedMiD(psi, c, server_lr=s),
    "FedMiDOSP": lambda psi, c, s: fs.FedMiDOSP(psi, c, server_lr=s),
    "Subgradient": lambda psi, c, s: fs.Subgradient(fs.FedAvg(c, server_lr=s), psi),
}


@dataclass(frozen=True)
class Swept:
    """One method over the grid: metrics of shape (settings, evaluations), NaN where it diverged."""

    rounds: np.ndarray
    metrics: Mapping[str, np.ndarray]

    def at(self, name: str, round: int) -> np.ndarray:
        """A metric of all settings at the last evaluation up to a round."""
        return self.metrics[name][:, int(np.searchsorted(self.rounds, round, side="right")) - 1]

    def tail(self, name: str, rounds: int = 100) -> np.ndarray:
        """A metric's mean over the last so many rounds, of all settings; infinite where it diverged."""
        last = self.rounds > self.rounds[-1] - rounds
        value = self.metrics[name][:, last].mean(axis=1)
        return np.where(np.isfinite(value), value, np.inf)

    @property
    def alive(self) -> int:
        """Settings that did not diverge."""
        return int(np.isfinite(self.metrics["train_loss"][:, -1]).sum())


def settings_of(index: int) -> tuple[float, float]:
    """eta_c and eta_s of a setting."""
    return ETA_C[index // len(ETA_S)], ETA_S[index % len(ETA_S)]


def sweep(
    context: Context,
    task: Task,
    psi: Any,
    diagnostics: Sequence[Diagnostic],
    rounds: int,
    clients_per_round: int,
    settings: Mapping[str, Any],
    eval_every: int = 10,
) -> dict[str, Swept]:
    """Every method over the whole grid, each as one program; a finished method is kept."""
    if context.quick:
        rounds, eval_every = 20, 10
    task = replace(task, test=None) if "test" not in settings else task
    grid = [(c, s) for c in ETA_C for s in ETA_S]

    def one(name: str) -> Callable[[], Mapping[str, np.ndarray]]:
        def compute() -> Mapping[str, np.ndarray]:
            found = fs.sweep(
                lambda client_lr, server_lr: METHODS[name](psi, client_lr, server_lr),
                task,
                {"client_lr": ETA_C, "server_lr": ETA_S},
                rounds=rounds,
                clients_per_round=clients_per_round,
                eval_every=eval_every,
                diagnostics=diagnostics,
                progress=context.sweeping(name),
            )
            return {"rounds": found.rounds, **{k: v[:, 0] for k, v in found.metrics.items()}}

        return compute

    kept = {"rounds": rounds, "clients_per_round": clients_per_round, "eval_every": eval_every, **settings}
    parts = {name: context.part(name, kept | {"grid": grid}, one(name)) for name in METHODS}
    return {
        name: Swept(part["rounds"], {k: v for k, v in part.items() if k != "rounds"})
        for name, part in parts.items()
    }


def best(swept: Swept, score: np.ndarray) -> int:
    """The setting with the smallest score; ties go to the smaller rates."""
    return int(np.argmin(score))


def centralised(
    context: Context, task: Task, psi: Any, diagnostics: Sequence[Diagnostic], settings: Mapping[str, Any]
) -> dict[str, float]:
    """The diagnostics of FISTA's solution on the gathered data."""

    def solve() -> Mapping[str, np.ndarray]:
        found = fs.baselines.fista(task, psi, iterations=500, tolerance=1e-7)
        value = found.value - float(psi.value(found.params))
        point = Point(found.params, np.float32(value), None)
        metrics = {name: x for m in diagnostics for name, x in m(point).items()}
        return {"train_loss": np.asarray(value), **{k: np.asarray(v) for k, v in metrics.items()}}

    return {k: float(v) for k, v in context.part("centralised", settings, solve).items()}
