"""The constrained problems of `constrained-handwriting`, and how the four methods are run and tuned on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.algorithm import Algorithm
from fedsolve.algorithms.feddualavg import FedDualAvg
from fedsolve.algorithms.fedmid import FedMiD
from fedsolve.diagnostics import Density, Diagnostic, Feasibility, Point
from fedsolve.geometry.balls import L1Ball, L2Ball
from fedsolve.geometry.blocks import Blocks, chosen_leaves
from fedsolve.studies.experiment import Context
from fedsolve.sweeps import sweep
from fedsolve.tasks.handwriting import handwriting
from fedsolve.tasks.mnist import mnist_by_writer
from fedsolve.tasks.task import Task
from fedsolve.types import module, static

Method = Callable[[Any, float, float], Algorithm]
METHODS: dict[str, Method] = {
    "FedDualAvg": lambda psi, c, s: FedDualAvg(psi, c, server_lr=s),
    "FedDualAvgOSP": lambda psi, c, s: FedDualAvg(psi, c, server_lr=s, server_only=True),
    "FedMiD": lambda psi, c, s: FedMiD(psi, c, server_lr=s),
    "FedMiDOSP": lambda psi, c, s: FedMiD(psi, c, server_lr=s, server_only=True),
}
"""The four methods, from a set, eta_c and eta_s."""
GRID = tuple((c, s) for c in (0.001, 0.003, 0.01, 0.03, 0.1) for s in (0.01, 0.03, 0.1, 0.3, 1.0))
"""The paper's 25 pairs of eta_c and eta_s."""
NETWORK_GRID = ((0.03, 1.0), (0.1, 1.0))
SEED, CLIENTS, BATCH = 0, 10, 10


@module
class LargestNorm(Diagnostic):
    """`norm`: the largest l1 or l2 norm of a leaf called weight."""

    order: int = static(default=1)

    def __call__(self, point: Point) -> dict[str, Array]:
        """In the units of the radius."""
        leaves = [jnp.ravel(leaf) for leaf in chosen_leaves(point.params, "weight")]
        return {"norm": jnp.max(jnp.stack([jnp.linalg.norm(leaf, self.order) for leaf in leaves]))}


@dataclass(frozen=True)
class Case:
    """A constrained problem.

    Attributes:
        title: for pictures and tables.
        figure: the paper's figure, 'ours' where the radius is ours.
        build: data folder -> task.
        norm: of the ball that every weight (no bias) lies in.
        radius: of the ball.
        grid: pairs of eta_c and eta_s.
        rounds: of the settings that are kept.
    """

    title: str
    figure: str
    build: Callable[[Path | None], Task]
    norm: Literal["l1", "l2"]
    radius: float
    grid: Sequence[tuple[float, float]] = GRID
    rounds: int = 300

    @property
    def psi(self) -> Blocks:
        """The ball on every weight."""
        return (L1Ball if self.norm == "l1" else L2Ball)(self.radius).on("weight")

    def task(self, data_dir: Path | None) -> Task:
        """The problem, started inside the set and measured."""
        task, psi = self.build(data_dir), self.psi
        diagnostics = (LargestNorm(1 if self.norm == "l1" else 2), Feasibility(psi), Density(0.0, "weight"))
        return replace(task, init=lambda key: psi.project(task.init(key)), diagnostics=diagnostics)


def _digits(data_dir: Path | None) -> Task:
    return handwriting(data_dir, classes=10)


def _mnist(data_dir: Path | None) -> Task:
    return mnist_by_writer(data_dir, model="softmax")


def _network(data_dir: Path | None) -> Task:
    return handwriting(data_dir, classes=62, model="mlp")


CASES = {
    "digits-l1": Case("Ten digits (UNIPEN), logistic, l1 <= 1000", "Figure 13", _digits, "l1", 1000.0, GRID, 1500),
    "digits-l1-300": Case("Ten digits (UNIPEN), logistic, l1 <= 300", "ours", _digits, "l1", 300.0),
    "digits-l2": Case("Ten digits (UNIPEN), logistic, l2 <= 10", "Figure 14", _digits, "l2", 10.0),
    "mnist-l2": Case("MNIST by writer, logistic, l2 <= 10", "Figure 14", _mnist, "l2", 10.0),
    "network": Case(
        "62 classes (UNIPEN), 784-200-200-62, each kernel l1 <= 1000", "Figure 15", _network, "l1", 1000.0,
        NETWORK_GRID, 60,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Effort:
    """How long things run: rounds of the screening, settings kept, local steps, rounds between looks."""

    screen: int = 25
    keep: int = 3
    steps: int = 30
    looks: int = 12


@dataclass(frozen=True)
class Found:
    """One method on one case: kept settings, the tuned one of them, and metrics (settings, evaluations)."""

    settings: np.ndarray
    chosen: int
    rounds: np.ndarray
    metrics: Mapping[str, np.ndarray]

    def curve(self, name: str) -> np.ndarray:
        """A metric of the tuned setting."""
        return self.metrics[name][self.chosen]

    def last(self, name: str) -> float:
        """A metric of the tuned setting, averaged over the last three evaluations."""
        return float(np.mean(self.curve(name)[-3:]))


def solve(context: Context, key: str, case: Case, effort: Effort, task: Task) -> dict[str, Found]:
    """All methods on a case: the grid for a few rounds, then the best settings from the start."""
    return {name: _method(context, key, name, case, effort, task) for name in METHODS}


def _method(context: Context, key: str, name: str, case: Case, effort: Effort, task: Task) -> Found:
    grid = np.array(case.grid)

    def run(settings: np.ndarray, rounds: int, every: int, part: str) -> dict[str, np.ndarray]:
        def compute() -> dict[str, np.ndarray]:
            found = sweep(
                lambda rates: METHODS[name](case.psi, *rates),
                task,
                {"rates": [(float(c), float(s)) for c, s in settings]},
                rounds=rounds,
                clients_per_round=CLIENTS,
                seeds=[SEED],
                batch_size=BATCH,
                local_steps=effort.steps,
                eval_every=every,
                diagnostics=task.diagnostics,
                progress=context.sweeping(part),
            )
            return {"rounds": found.rounds, **{k: v[:, 0] for k, v in found.metrics.items()}}

        plan = {"grid": settings.tolist(), "rounds": rounds, "every": every, "steps": effort.steps}
        plan |= {"norm": case.norm, "radius": case.radius, "seed": SEED, "clients": task.data.num_clients}
        return context.part(part, plan, compute)

    if len(grid) > effort.keep:
        early = run(grid, effort.screen, effort.screen, f"{key} {name} screen".replace(" ", "-"))
        order = np.argsort(_finite(early["train_loss"][:, -1]), kind="stable")
        grid = grid[np.sort(order[: effort.keep])]
    rounds = case.rounds
    part = run(grid, rounds, max(1, rounds // effort.looks), f"{key} {name}".replace(" ", "-"))
    metrics = {k: v for k, v in part.items() if k != "rounds"}
    chosen = int(np.argmin(_finite(metrics["train_loss"][:, -3:].mean(axis=1))))
    return Found(grid, chosen, part["rounds"], metrics)


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.inf)
