"""Runs of `fedli-convex`: the objective of every round, rounds begun at the minimiser, and FedAvg's grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

import fedsolve as fs
from fedsolve.diagnostics import Suboptimality
from fedsolve.experiments.fedli_problems import L2, from_model, smoothness
from fedsolve.studies.experiment import Context
from fedsolve.tasks.models import Linear
from fedsolve.tasks.task import Task

STEPS, BATCH, DRAWN = 4, 32, 0.1
GRID = {"client_lr": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0), "server_lr": (1.0, 3.0)}
RULE = "train_loss:20"
"""FedAvg's setting: least training loss, mean of the last 20 rounds."""


@dataclass(frozen=True)
class Regime:
    """How a round works: full batches or minibatches of 32, all clients or a tenth of them."""

    label: str
    batch: Any
    share: float

    @property
    def exact(self) -> bool:
        """Whether nothing is drawn."""
        return self.batch == "full" and self.share == 1


EXACT = Regime("full batches, all clients", "full", 1.0)
DRAWN_CLIENTS = Regime("full batches, a tenth of clients", "full", DRAWN)
DRAWN_ROWS = Regime("minibatches, all clients", BATCH, 1.0)
PAPER = Regime("minibatches, a tenth of clients", BATCH, DRAWN)
REGIMES = (EXACT, DRAWN_CLIENTS, DRAWN_ROWS, PAPER)


def theorem(smooth: float) -> dict[str, Any]:
    """eta_max and c that meet the condition of Theorems 1 and 2 with all clients and server step 1.

    The condition is max(L eta (1 + 2 K p) / (2 p (2 + L eta K)), 1 / (2 p) + eta L K / 2) < c <= 1, p = S / N.
    """
    return {"eta_max": 0.7 / (smooth * STEPS), "c": 0.9}


def condition(c: float, eta: float, smooth: float, share: float, steps: int = STEPS) -> bool:
    """Whether c and eta_max meet it.

    >>> condition(0.9, 0.1, 1.0, 1.0), condition(1.0, 1e-9, 1.0, 0.1)
    (True, False)
    """
    product = smooth * eta
    first = product * (1 + 2 * steps * share) / (2 * share * (2 + product * steps))
    return max(first, 1 / (2 * share) + product * steps / 2) < c <= 1


METHODS = {
    "eta_max 1": lambda smooth: fs.FedLiLS(),
    "eta_max 1, server max": lambda smooth: fs.FedLiLS(server="max"),
    "eta_max 10": lambda smooth: fs.FedLiLS(eta_max=10.0),
    "eta_max 10, server max": lambda smooth: fs.FedLiLS(eta_max=10.0, server="max"),
    "theorem's constants": lambda smooth: fs.FedLiLS(**theorem(smooth)),
    "FedLiLU": lambda smooth: fs.FedLiLU(),
}
"""Built from L: FedLi-LS at its defaults and with longer first trials, which these losses refuse; FedLi-LU."""


def solve(context: Context, name: str, task: Task) -> dict[str, np.ndarray]:
    """F* and w* of a strongly convex problem, in float64."""

    def compute() -> dict[str, np.ndarray]:
        found = fs.baselines.fista(task, iterations=5000, tolerance=1e-12, dtype="float64")
        return {"value": np.asarray(found.value), "weight": np.asarray(found.params.weight)}

    return context.part(f"{name}-optimum", {"problem": name, "l2": L2}, compute)


def curve(
    context: Context, name: str, task: Task, method: str, regime: Regime, rounds: int, optimum: float, l2: float
) -> dict[str, np.ndarray]:  # fmt: skip
    """`value` = F - optimum after 0, 1, ... rounds; by round the `trials` a local step and the server's `scale`."""

    def compute() -> dict[str, np.ndarray]:
        algorithm = METHODS[method](smoothness(task, l2))
        history = _run(algorithm, task, regime, rounds, optimum, 0)
        log = history.rounds
        scale = log.get("gamma", log.get("server_lr", np.full(rounds, np.nan)))
        trials = log.get("loss_evaluations", np.full(rounds, np.nan)) / STEPS
        return {"value": history.evaluations["suboptimality"], "trials": trials, "scale": scale}

    known = {"problem": name, "method": method, "regime": regime.label, "rounds": rounds, "optimum": optimum}
    key = f"{name}-{method}-{regime.label}".replace(" ", "-").replace(",", "").replace("'", "")
    return context.part(key, known | {"steps": STEPS}, compute)


def from_minimiser(
    context: Context, name: str, task: Task, weight: np.ndarray, optimum: float, seeds: Sequence[int]
) -> dict[str, np.ndarray]:
    """F after one round begun at w*, less F*: exact, with the theorem's constants, and in the paper's regime."""

    def compute() -> dict[str, np.ndarray]:
        model = Linear(len(weight))
        start = model.init(jnp.zeros(2, jnp.uint32))
        begun = from_model(task, type(start)(np.asarray(weight), None))
        smooth = smoothness(task, L2)

        def rise(method: str, regime: Regime, seed: int) -> float:
            found = _run(METHODS[method](smooth), begun, regime, 1, optimum, seed).evaluations[
                "suboptimality"
            ]
            return float(found[-1] - found[0])

        return {
            "exact": np.array([rise("eta_max 1", EXACT, 0)]),
            "theorem": np.array([rise("theorem's constants", EXACT, 0)]),
            "paper": np.array([rise("eta_max 1", PAPER, seed) for seed in seeds]),
        }

    return context.part(f"{name}-from-minimiser", {"problem": name, "seeds": list(seeds), "l2": L2}, compute)


def tuned(context: Context, name: str, task: Task, method: str, rounds: int) -> dict[str, np.ndarray]:
    """FedAvg, or FedLi-LU, over the grid in the paper's regime: scores and curves, and the number of the best."""
    grid = dict(GRID) if method == "FedAvg" else {"client_lr": GRID["client_lr"]}

    def compute() -> dict[str, np.ndarray]:
        options = {"rounds": rounds, "batch_size": BATCH, "local_steps": STEPS, "dtype": "float64"}
        found = fs.sweep(
            lambda **rates: fs.FedAvg(**rates, weighting="uniform") if method == "FedAvg" else fs.FedLiLU(**rates),
            task, grid, clients_per_round=_cohort(task, DRAWN), eval_every=max(1, rounds // 20), select=RULE,
            progress=context.sweeping(f"{name}: {method}'s grid"), label=method, **options,
        )  # fmt: skip
        curves = found.metrics["train_loss"][:, 0]
        return {"rounds": found.rounds, "loss": curves, "score": found.score, "best": np.asarray(found.best)}

    known = {"problem": name, "method": method, "rounds": rounds, "grid": repr(grid), "rule": RULE}
    return context.part(f"{name}-{method}-grid", known, compute)


def _cohort(task: Task, share: float) -> int:
    return max(1, round(share * task.data.num_clients))


def _run(algorithm: Any, task: Task, regime: Regime, rounds: int, optimum: float, seed: int) -> Any:
    judged = replace(task, diagnostics=(Suboptimality(None, optimum),))
    return fs.run(
        algorithm, judged, rounds=rounds, seed=seed, batch_size=regime.batch, local_steps=STEPS, eval_every=1,
        clients_per_round=_cohort(task, regime.share), dtype="float64",
    ).history  # fmt: skip
