"""Small problems with a known optimum on the boundary of a ball, and what Theorems 1 to 3 need to know of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import fedsolve as fs
from experiments.fco.methods import Known
from experiments.fedfw.theorems import Constants
from fedsolve.geometry import L1Ball, L2Ball
from fedsolve.studies import Cells
from fedsolve.studies.public import OfOutputs
from fedsolve.tasks import Linear, SquaredError

CLIENTS, EXAMPLES, FEATURES, BATCH = 8, 40, 20, 4
CONVEX = {"sphere": L2Ball(0.5), "face": L1Ball(0.5), "vertex": L1Ball(0.05)}
"""Where the solution lies; targets are scaled so that the free solution has norm 1 in the ball's norm."""
OTHER = {"not convex, l2 ball": L2Ball(1.0), "not convex, l1 ball": L1Ball(2.0)}


@dataclass(frozen=True)
class Welsch(OfOutputs):
    """Mean of 1 - exp(-(model(x) - y)^2 / 2): smooth, bounded and not convex."""

    model: Any

    def of(self, outputs: Array, y: Array) -> Array:
        """The value of each example."""
        return 1 - jnp.exp(-0.5 * jnp.square(outputs - y))


KNOWN = ("smooth", "dual", "gradient", "variance", "height")
"""What the theorems need of a data set: numbers that are kept with the curves, the same at every model."""


def constants(cells: Cells, problem: str, method: str) -> Constants:
    """Those that were kept, of shape (data sets, 1)."""
    found = {name: cells.curve(problem, method, metric=name)[1][:, :1] for name in KNOWN}
    ball = (CONVEX | OTHER)[problem.split(", T")[0]]
    return Constants(clients=CLIENTS, diameter=2 * ball.radius, **found)


def clients_of(seed: int) -> list[fs.Examples]:
    """Clients with their own truths: w_i = w + N(0, I), y = <w_i, x> + 0.5 N(0, 1), x ~ N(0, I)."""
    rng = np.random.default_rng(seed)
    shared, clients = rng.standard_normal(FEATURES), []
    for _ in range(CLIENTS):
        own = shared + rng.standard_normal(FEATURES)
        x = rng.standard_normal((EXAMPLES, FEATURES))
        clients.append(fs.Examples(x, x @ own + 0.5 * rng.standard_normal(EXAMPLES)))
    return clients


@cache
def convex(data_dir: Path | None, seed: int, name: str) -> fs.Task:
    """Least squares of clients that disagree, with F* and the constants at the solution."""
    ball, clients = CONVEX[name], clients_of(seed)
    free = np.linalg.lstsq(np.concatenate([e.x for e in clients]), np.concatenate([e.y for e in clients]))[0]
    size = np.linalg.norm(free, 2 if isinstance(ball, L2Ball) else 1)
    clients = [fs.Examples(e.x, e.y / size) for e in clients]
    plain = _task(SquaredError(Linear(FEATURES)), "least-squares", clients)
    best = fs.baselines.fista(plain, ball, iterations=20_000, tolerance=1e-14, dtype="float64")
    w = np.asarray(best.params.weight)
    gradients = np.stack([2 * e.x.T @ (e.x @ w - e.y) / EXAMPLES for e in clients])
    known = _known(
        smooth=max(2 * np.linalg.norm(e.x, 2) ** 2 / EXAMPLES for e in clients),
        dual=np.linalg.norm(gradients - gradients.mean(0)) / CLIENTS,
        gradient=np.linalg.norm(gradients) / CLIENTS,
        variance=max(_variance(e, float(ball.radius)) for e in clients),
        height=0.0,
    )
    return replace(
        plain,
        diagnostics=(
            fs.diagnostics.FrankWolfeGap(ball),
            fs.diagnostics.Suboptimality(None, best.value),
            known,
        ),
    )


def _variance(examples: fs.Examples, radius: float) -> float:
    """Above that of a minibatch's gradient anywhere in the ball: the mean square of an example's over its size."""
    size = np.linalg.norm(examples.x, axis=1)
    return float(np.mean((2 * (size * radius + np.abs(examples.y)) * size) ** 2)) / BATCH


def bounded(data_dir: Path | None, seed: int, name: str) -> fs.Task:
    """The same data, not scaled, under a bounded loss; |f''| <= 1 and |f'| <= exp(-1/2) in an output, f >= 0."""
    clients = clients_of(seed)
    plain = _task(Welsch(Linear(FEATURES)), "welsch", clients)
    at_most = [np.exp(-0.5) * np.linalg.norm(e.x, axis=1).mean() for e in clients]
    known = _known(
        smooth=max(np.linalg.norm(e.x, 2) ** 2 / EXAMPLES for e in clients),
        dual=0.0,
        gradient=np.linalg.norm(at_most) / CLIENTS,
        variance=0.0,
        height=np.mean([1 - np.exp(-0.5 * e.y**2) for e in clients]),
    )
    return replace(plain, diagnostics=(fs.diagnostics.FrankWolfeGap(OTHER[name]), known))


def _known(**numbers: Any) -> Known:
    return Known({name: np.asarray(numbers[name]) for name in KNOWN})


def _task(loss: Any, name: str, clients: list[fs.Examples]) -> fs.Task:
    data = fs.FederatedData.from_clients(clients)
    return fs.Task(name, Linear(FEATURES).init, loss, data, batch_size=None, epochs=None, local_steps=1)
