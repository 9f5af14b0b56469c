"""The league's tasks, penalised tasks and methods, and their runs: every method at its defaults, none tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.building import build
from fedsolve.data.partitions import Dirichlet, Shards
from fedsolve.diagnostics import Objective
from fedsolve.geometry import L1, NuclearNorm
from fedsolve.studies.experiment import Context
from fedsolve.tasks.task import Task

SEEDS, LOOKS = (0, 1), 5
METHODS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "FedAvg": ("FedAvg", {}),
    "FedAvgM": ("FedAvgM", {}),
    "FedProx": ("FedProx", {}),
    "SCAFFOLD": ("SCAFFOLD", {}),
    "FedAdagrad": ("FedAdagrad", {}),
    "FedAdam": ("FedAdam", {}),
    "FedYogi": ("FedYogi", {}),
    "FedExP": ("FedExP", {}),
    "FedExPM": ("FedExPM", {}),
    "FedDuAdagrad": ("FedDuAdagrad", {}),
    "FedDuAdam": ("FedDuAdam", {}),
    "SCAFFOLD+FedDuAdam": ("SCAFFOLD+FedDuAdam", {}),
    "FedExProx": ("FedExProx", {}),
    "FedLiLS": ("FedLiLS", {}),
    "FedLiLS, max": ("FedLiLS", {"server": "max"}),
    "FedLiLU": ("FedLiLU", {}),
}
"""Name in the league -> name of the catalogue and what is not its default; all weigh clients by examples."""
POPULAR = ("FedAvg", "FedProx", "SCAFFOLD", "FedAdam", "FedExP")
"""What FedLi's paper compares with."""


@dataclass(frozen=True)
class Arena:
    """A task of the league.

    Attributes:
        task: name of the catalogue.
        rounds, clients: of a run; local work is the task's own.
        options: of the task.
        files: whether it reads the data folder.
        words: what it is.
        batch_size: of a local step; None for the task's own.
    """

    task: str
    rounds: int
    clients: int
    words: str
    options: Mapping[str, Any] = field(default_factory=dict)
    files: bool = True
    batch_size: int | None = None

    def build(self, data_dir: Path | None) -> Task:
        """The task."""
        where = {"data_dir": data_dir} if self.files and data_dir is not None else {}
        task = fs.tasks.build(self.task, **self.options, **where)
        return task if self.batch_size is None else replace(task, batch_size=self.batch_size)


ARENAS = {
    "digits": Arena("digits", 100, 10, "MLP, Dirichlet(0.3)", files=False),
    "synthetic": Arena("synthetic", 100, 10, "softmax regression, uneven", files=False),
    "regression": Arena("regression", 50, 20, "least squares, all clients", files=False),
    "lasso": Arena("lasso", 50, 10, "least squares alone", files=False),
    "lowrank": Arena("lowrank", 50, 10, "least squares alone", files=False),
    "libsvm": Arena("libsvm", 100, 10, "a9a, Dirichlet(0.1)", {"partition": Dirichlet(0.1)}),
    "voxels": Arena("voxels", 30, 10, "logistic regression"),
    "news": Arena("news", 50, 10, "33 logistic regressions"),
    "handwriting": Arena("handwriting", 50, 10, "softmax regression, writers"),
    "cifar": Arena(
        "cifar10", 50, 10, "softmax regression, shards",
        {"num_clients": 100, "partition": Shards(2), "model": "softmax", "augment": False},
        batch_size=32,
    ),
    "mnist": Arena("mnist", 20, 10, "MLP, writers", {"model": "mlp"}),
}  # fmt: skip
"""The league, cheapest first."""
SMALL = ("digits", "synthetic", "regression")
"""Tasks of a quick run: no files."""
PENALTIES: dict[str, tuple[Any, str]] = {
    "lasso": (L1(0.1).on("weight"), "0.1 |w|_1"),
    "lowrank": (NuclearNorm(0.3).on("weight"), "0.3 |W|_*"),
    "voxels": (L1(0.003).on("weight"), "0.003 |w|_1"),
}
"""The penalty of each composite task, as in its own experiment."""
COMPOSITE = ("FedMiD", "FedMiDOSP", "FedDualAvg", "FedDualAvgOSP", "Subgradient", "FedDR")


@dataclass(frozen=True)
class Entry:
    """One method on one task, all seeds: `loss` (or objective), `accuracy`, `start`, and the round of divergence.

    Shapes are (seeds,); a loss is infinite where the run diverged, `accuracy` NaN where there is none.
    """

    loss: np.ndarray
    accuracy: np.ndarray
    start: np.ndarray
    diverged: np.ndarray

    @property
    def final(self) -> float:
        """The mean loss at the end; infinite if a seed diverged."""
        return float(self.loss.mean())

    @property
    def state(self) -> str:
        """`diverged` if a seed is not finite, `worse` if the loss ends above the start's, else `fine`."""
        if not np.isfinite(self.loss).all() or (self.diverged > 0).any():
            return "diverged"
        return "worse" if self.final > float(self.start.mean()) else "fine"


def league(context: Context) -> dict[str, dict[str, Entry]]:
    """Task -> method -> what it reached."""
    return {
        name: _on(context, name, arena, _plain(), "train_loss", "")
        for name, arena in ARENAS.items()
        if not context.quick or name in SMALL
    }


def composite_league(context: Context) -> dict[str, dict[str, Entry]]:
    """The same for methods that need a penalty; what counts is F + psi."""
    found = {}
    for name, (psi, words) in PENALTIES.items():
        if context.quick and name != "lasso":
            continue
        builders = {m: _with(m, psi) for m in COMPOSITE}
        found[name] = _on(context, name, ARENAS[name], builders, "objective", words, (Objective(psi),))
    return found


def _plain() -> dict[str, Callable[[], Any]]:
    return {m: lambda c=c, o=o: build(c, {"weighting": "examples", **o}) for m, (c, o) in METHODS.items()}


def _with(name: str, psi: Any) -> Callable[[], Any]:
    return lambda: build(name, {"psi": psi})


def _on(
    context: Context, name: str, arena: Arena, builders: Mapping[str, Callable[[], Any]], metric: str,
    words: str, diagnostics: tuple[Any, ...] = (),
) -> dict[str, Entry]:  # fmt: skip
    """Every method on one task; the task is built when the first part needs it."""
    arena = replace(arena, rounds=4) if context.quick else arena
    looks = 2 if context.quick else LOOKS
    known = {"task": arena.task, "options": repr(dict(arena.options)), "rounds": arena.rounds, "psi": words}
    known |= {"clients": arena.clients, "seeds": list(SEEDS), "looks": looks}
    built: list[Task] = []
    found = {}
    for number, (method, make) in enumerate(builders.items()):

        def compute(method: str = method, make: Callable[[], Any] = make) -> dict[str, np.ndarray]:
            if not built:
                built.append(arena.build(context.data_dir))
            return _run(make, method, built[0], arena, looks, metric, diagnostics)

        part = f"{name}-{method.replace(', ', '-')}"
        found[method] = Entry(**context.part(part, known | {"method": method}, compute))
        context.say(f"{name}{', ' + words if words else ''}", number + 1, len(builders))
    return found


def _run(
    make: Callable[[], Any], label: str, task: Task, arena: Arena, looks: int, metric: str, diagnostics: tuple[Any, ...]
) -> dict[str, np.ndarray]:  # fmt: skip
    """One method, all seeds in one program."""
    found = fs.sweep(
        lambda once: make(),
        replace(task, diagnostics=()),
        {"once": (0,)},
        seeds=SEEDS,
        rounds=arena.rounds,
        clients_per_round=arena.clients,
        eval_every=max(1, arena.rounds // looks),
        diagnostics=diagnostics,
        label=label,
    )
    values = found.metrics[metric][0]
    accuracy = found.metrics.get("test_recall_at_5", found.metrics.get("test_accuracy"))
    last = np.full(len(SEEDS), np.nan) if accuracy is None else accuracy[0][:, -1]
    return {
        "loss": np.where(np.isfinite(values[:, -1]), values[:, -1], np.inf),
        "accuracy": last,
        "start": values[:, 0],
        "diverged": found.diverged[0],
    }
