"""Problems of `fedli-convex`: logistic regressions of one shape, dealt to identical, IID and unequal clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.data.federated import FederatedData
from fedsolve.data.partitions import Shards
from fedsolve.tasks.losses import Logistic, Ridge
from fedsolve.tasks.models import Linear
from fedsolve.tasks.task import Examples, Task

DATASETS = ("a9a", "w8a", "mushrooms")
KINDS = {"identical": "identical clients", "iid": "IID clients", "unequal": "one label a client"}
CLIENTS, EXAMPLES, WIDTH = 100, 64, 300
"""Of every problem: w8a's features, the others' filled up with zeros, so that all share compiled programs."""
L2 = 0.05
"""The strongly convex problems have (L2 / 2) |w|^2."""


def pooled(name: str, data_dir: Path | None) -> Examples:
    """6,400 random training examples, those of a client of an IID split together; `made` needs no file."""
    if name == "made":
        return _made()
    options: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    task = fs.tasks.build("libsvm", dataset=name, num_clients=CLIENTS, **options)
    parts = [task.data.client(i) for i in range(CLIENTS)]
    x = np.concatenate([p.x[:EXAMPLES] for p in parts])
    y = np.concatenate([p.y[:EXAMPLES] for p in parts])
    return Examples(np.pad(x, ((0, 0), (0, WIDTH - x.shape[1]))), y)


def problem(data: Examples, kind: str, l2: float, clients: int = CLIENTS) -> Task:
    """The examples dealt evenly: the same to all, as they come (IID), or sorted by label."""
    size = len(data.y) // clients
    if kind == "identical":
        rows = [np.arange(size)] * clients
    elif kind == "iid":
        rows = [np.arange(i * size, (i + 1) * size) for i in range(clients)]
    else:
        rows = Shards(1)(data.y[: size * clients], clients, 0)
    dealt = FederatedData.from_clients([Examples(data.x[r], data.y[r]) for r in rows])
    model = Linear(data.x.shape[1])
    loss = Ridge(Logistic(model), l2) if l2 else Logistic(model)
    return Task(f"{kind}, l2 {l2:g}", model.init, loss, dealt)


def from_model(task: Task, params: Any) -> Task:
    """The task, begun at a model."""
    return replace(task, init=lambda key: params)


def smoothness(task: Task, l2: float) -> float:
    """The largest L of the clients' losses: a quarter of the largest eigenvalue of their mean x x^T, and l2."""
    parts = [np.asarray(task.data.client(i).x, float) for i in range(task.data.num_clients)]
    return max(0.25 * float(np.linalg.norm(x, 2)) ** 2 / len(x) for x in parts) + l2


def _made(rows: int = 200, width: int = 20) -> Examples:
    rng = np.random.default_rng(0)
    x = (rng.random((rows, width)) < 0.3).astype(np.float32)
    y = (x @ rng.standard_normal(width) + rng.standard_normal(rows) > 0).astype(np.int32)
    return Examples(x, y)


CUBICS = ((3.0, -1.0), (-1.0, 1.0))
"""(a, b) of the two clients of the paper's Remark 2."""
STATED = (0.8, 1.5)
"""Where it takes them in one local step from 1."""


def cubic(client: int, x: float) -> float:
    """f_i of Remark 2.

    >>> cubic(0, 1.0), cubic(1, 1.0)
    (2.0, 0.0)
    """
    a, b = CUBICS[client]
    return a * x**3 + b * x**2


def remark_2(c: float = 0.1) -> dict[str, Any]:
    """Its numbers: steps that give the stated points, whether Armijo's condition holds there, and the average."""
    slopes = [3 * a + 2 * b for a, b in CUBICS]
    steps = [(1 - x) / g for x, g in zip(STATED, slopes, strict=True)]
    local = [(cubic(i, 1.0), cubic(i, x)) for i, x in enumerate(STATED)]
    armijo = [
        after <= before - c * eta * g * g
        for (before, after), eta, g in zip(local, steps, slopes, strict=True)
    ]
    mean = sum(STATED) / 2
    before, after = 1.0, (cubic(0, mean) + cubic(1, mean)) / 2
    return {"steps": steps, "local": local, "armijo": armijo, "mean": mean, "global": (before, after)}
