"""The tasks of `fedopt-tuning`, their grids, and the sweeps of five methods over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.results.selection import Selection
from fedsolve.results.sweep import Sweep
from fedsolve.studies.experiment import Context
from fedsolve.sweeps import sweep
from fedsolve.tasks.digits import digits
from fedsolve.tasks.handwriting import handwriting
from fedsolve.tasks.models import CNN, CNNParams
from fedsolve.tasks.news import news
from fedsolve.tasks.task import Task

PLAIN, ADAPTIVE = ("FedAvg", "FedAvgM"), ("FedAdagrad", "FedAdam", "FedYogi")
METHODS = (*PLAIN, *ADAPTIVE)
TAU = 1e-3
"""The paper's tau where it is not tuned, as in its heat maps."""
TAUS = (1e-5, 1e-4, TAU, 1e-2, 1e-1)
SEEDS = (0, 1, 2)
"""Of the tuned settings; the grids have the first."""


def half_decades(low: float, high: float) -> tuple[float, ...]:
    """Powers of ten from 10^low to 10^high in steps of half.

    >>> half_decades(-1, 0)
    (0.1, 0.316228, 1.0)
    """
    return tuple(float(f"{10 ** (i / 2):.6g}") for i in range(round(2 * low), round(2 * high) + 1))


_SMALL = CNN(classes=10, height=14, width=14, channels=(4, 8), hidden=32)


@dataclass(frozen=True)
class SmallCNN:
    """`CNN` of 4 and 8 channels and 32 hidden units on the means of 2x2 pixels: 14 x 14 instead of 28 x 28."""

    inner: CNN = _SMALL

    def init(self, key: Array) -> CNNParams:
        """He weights."""
        return self.inner.init(key)

    def __call__(self, params: CNNParams, x: Array) -> Array:
        """Logits of shape (n, classes) of x of shape (n, 28, 28, 1)."""
        shape = (x.shape[0], self.inner.height, 2, self.inner.width, 2, 1)
        return self.inner(params, jnp.mean(jnp.reshape(x, shape), axis=(2, 4)))


@dataclass(frozen=True)
class Case:
    """A task with its grid.

    Attributes:
        title: for pictures and tables.
        sparse: whether its gradients are sparse, as those of the paper's tags.
        build: data folder -> task.
        metric: what the paper calls validation performance, a share.
        measure: its name, times 100.
        client, server, taus: the grid; one grid of the two rates for all methods.
        rounds, every: of all runs, and between looks.
        clients: of a round.
        work: further arguments of `fedsolve.sweep`.
        outside: more rates for FedAvg and FedAvgM, beyond the edge of the grid that the best of one lies on.
    """

    title: str
    sparse: bool
    build: Callable[[Path | None], Task]
    metric: str
    measure: str
    client: tuple[float, ...]
    server: tuple[float, ...]
    taus: tuple[float, ...]
    rounds: int
    every: int
    clients: int
    work: tuple[tuple[str, Any], ...] = ()
    outside: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @property
    def window(self) -> int:
        """The last rounds that count: the three last looks."""
        return 3 * self.every

    @property
    def rule(self) -> Selection:
        """The paper's rule of choice, its window scaled with the rounds."""
        return Selection("train_loss", self.window)

    def grid(self, method: str) -> dict[str, tuple[float, ...]]:
        """The grid of a method."""
        rates = {"client_lr": self.client, "server_lr": self.server}
        return rates | ({"tau": self.taus} if method in ADAPTIVE else {})


def _cut(task: Task, tests: int, judged: int | None = None) -> Task:
    """Looks at fewer examples: so many of the test set, drawn at random, and of the training set."""
    assert task.test is not None
    total = len(jax.tree.leaves(task.test)[0])
    rows = np.sort(np.random.default_rng(0).permutation(total)[:tests])
    return replace(task, test=jax.tree.map(lambda x: x[rows], task.test), eval_examples=judged)


CASES = {
    "digits": Case(
        "Digits (MLP)", False, lambda folder: digits(), "test_accuracy", "Test accuracy (%)",
        half_decades(-1.5, 0.5), half_decades(-2.5, 0.5), TAUS, 150, 10, 20,
        outside=(half_decades(-1.5, 0), half_decades(0.5, 1)),
    ),
    "handwriting": Case(
        "Handwritten digits by writer (CNN)", False,
        lambda folder: _cut(handwriting(folder, classes=10, model=SmallCNN()), 1_000, 1_000),
        "test_accuracy", "Test accuracy (%)",
        half_decades(-1.5, -0.5), half_decades(-2, 0), (1e-5, TAU, 1e-1), 40, 4, 10,
        (("local_steps", 3), ("chunk", 10), ("parallel_trials", 1)), (half_decades(-0.5, 0.5), half_decades(-0.5, 0.5)),
    ),
    "news": Case(
        "Tags of posts by author (sparse)", True, lambda folder: _cut(news(folder), 2_000),
        "test_recall_at_5", "Test Recall@5 (%)",
        half_decades(0, 2), half_decades(-1, 1), TAUS, 100, 20, 10,
        outside=(half_decades(-1, 0), half_decades(-2, 0.5)),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Results:
    """All of one case: the sweep over the grid by method, and the tuned setting of each with all seeds.

    `outside` are sweeps over further rates of methods without tau.
    """

    case: Case
    sweeps: Mapping[str, Sweep]
    tuned: Mapping[str, Sweep]
    outside: Mapping[str, Sweep] = field(default_factory=dict)

    def tuned_values(self, method: str) -> np.ndarray:
        """The metric of the tuned setting over the last rounds, by seed, in percent."""
        return 100 * judged_by(self.tuned[method], self.case).scores[0]

    def tuned_value(self, method: str) -> float:
        """Its mean over the seeds."""
        return float(self.tuned_values(method).mean())

    def outside_value(self, method: str) -> float:
        """The metric (percent) of the setting of least training loss outside the grid."""
        one = self.outside[method]
        return float(100 * judged_by(one, self.case).score[one.best])

    def taken(self, method: str) -> Sweep:
        """The sweep over the two rates at the paper's tau, judged by the metric."""
        return judged_by(at_tau(self.sweeps[method], TAU), self.case)

    def by_tau(self, method: str) -> np.ndarray:
        """The metric (percent) at each tau, the rates tuned for it by the training loss, shape (taus,)."""
        found = []
        for tau in self.case.taus:
            one = at_tau(self.sweeps[method], tau)
            found.append(100 * judged_by(one, self.case).score[one.best])
        return np.array(found)


def judged_by(found: Sweep, case: Case) -> Sweep:
    """The same sweep, judged by the case's metric over the same last rounds."""
    return replace(found, selection=Selection(case.metric, case.window))


def at_tau(found: Sweep, tau: float) -> Sweep:
    """The part of a sweep with one tau; the whole of one that has none."""
    if "tau" not in found.grid:
        return found
    chosen = [i for i, point in enumerate(found.points) if point["tau"] == tau]
    return replace(
        found,
        grid={name: values for name, values in found.grid.items() if name != "tau"},
        metrics={name: values[chosen] for name, values in found.metrics.items()},
        diverged=found.diverged[chosen],
    )


def solve(context: Context, key: str, case: Case) -> Results:
    """Every method over the grid with one seed, then its tuned setting with all; a finished sweep is kept."""
    task = case.build(context.data_dir)
    seeds = SEEDS[:2] if context.quick else SEEDS
    sweeps, tuned, outside = {}, {}, {}
    for method in METHODS:
        run = partial(_sweep, context, case, task, method)
        sweeps[method] = run(f"{key} {method}", case.grid(method), SEEDS[:1])
        best = {name: (value,) for name, value in sweeps[method].best_settings.items()}
        tuned[method] = run(f"{key} {method} tuned", best, seeds)
        if case.outside and method in PLAIN:
            rates = {"client_lr": case.outside[0], "server_lr": case.outside[1]}
            outside[method] = run(f"{key} {method} outside", rates, SEEDS[:1])
    return Results(case, sweeps, tuned, outside)


def _sweep(
    context: Context,
    case: Case,
    task: Task,
    method: str,
    part: str,
    grid: Mapping[str, tuple[float, ...]],
    seeds: tuple[int, ...],
) -> Sweep:
    def compute() -> dict[str, np.ndarray]:
        found = sweep(
            method, task, grid, seeds=seeds, rounds=case.rounds, clients_per_round=case.clients,
            eval_every=case.every, select=case.rule, progress=context.sweeping(part), **dict(case.work),
        )  # fmt: skip
        return {"rounds": found.rounds, "diverged": found.diverged, **found.metrics}

    plan = {"grid": grid, "seeds": seeds, "rounds": case.rounds, "every": case.every, "clients": case.clients}
    plan |= {"work": case.work, "examples": task.data.num_examples, "judged": task.eval_examples}
    kept = context.part(part.replace(" ", "-"), plan, compute)
    rounds, diverged = kept.pop("rounds"), kept.pop("diverged")
    return Sweep(method, case.title, dict(grid), seeds, rounds, kept, diverged, case.rule)
