"""Problems of `fedli-convex`: logistic regressions of one shape, dealt to identical, IID and unequal clients."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import fedsolve as fs
from fedsolve.data import Shards
from fedsolve.studies.public import Params, module, trees
from fedsolve.tasks import Linear, Logistic, Ridge

ONES = {"a9a": 14, "mushrooms": 22}
"""The data sets, and the most ones that a row has, all else 0: |x|^2 is at most that."""
KINDS = {"identical": "identical clients", "iid": "IID clients", "unequal": "one label a client"}
CLIENTS, EXAMPLES, WIDTH = 20, 64, 123
"""Of every problem: a9a's features, those of mushrooms filled up with zeros, so that all share compiled programs."""
L2 = 0.05
"""F has (L2 / 2) |w|^2: mu of the theorems."""
STEPS = 4
"""K: local steps."""


def smoothness(dataset: str) -> float:
    """An L of every client's loss: a quarter of the largest |x|^2, and l2."""
    return ONES[dataset] / 4 + L2


@module
class SquaredDistance(fs.diagnostics.Diagnostic):
    """`squared_distance` = |w - w*|^2, of the weight."""

    minimiser: Params

    def __call__(self, point: fs.diagnostics.Point) -> dict[str, Array]:
        """At w."""
        return {"squared_distance": trees.squared_norm(trees.sub(point.params.weight, self.minimiser))}


@cache
def problem(dataset: str, kind: str, seed: int, data_dir: Path | None) -> fs.Task:
    """1,280 examples drawn by the seed and dealt, F - F* and the distance to w* measured; from w = 0."""
    data = drawn(dataset, seed, data_dir)
    if kind == "identical":
        rows = [np.arange(EXAMPLES)] * CLIENTS
    elif kind == "iid":
        rows = list(np.arange(CLIENTS * EXAMPLES).reshape(CLIENTS, EXAMPLES))
    else:
        rows = Shards(1)(data.y, CLIENTS, seed)
    dealt = fs.FederatedData.from_clients([fs.Examples(data.x[r], data.y[r]) for r in rows])
    model = Linear(WIDTH)
    task = fs.Task(f"{dataset}, {kind}", model.init, Ridge(Logistic(model), L2), dealt)
    best = fs.baselines.fista(task, iterations=5000, tolerance=1e-12, dtype="float64")
    weight = np.asarray(best.params.weight)
    return replace(
        task, diagnostics=(fs.diagnostics.Suboptimality(None, best.value), SquaredDistance(weight))
    )


def from_minimiser(task: fs.Task) -> fs.Task:
    """The same problem begun at w*."""
    (weight,) = (d.minimiser for d in task.diagnostics if isinstance(d, SquaredDistance))
    start = task.init(jnp.zeros(2, jnp.uint32))
    return replace(task, init=lambda key: type(start)(weight, None))


@cache
def drawn(dataset: str, seed: int, data_dir: Path | None) -> fs.Examples:
    """As many random training examples as all clients have; `made` needs no file."""
    if dataset == "made":
        rng = np.random.default_rng(seed)
        x = (rng.random((CLIENTS * EXAMPLES, WIDTH)) < 0.1).astype(np.float32)
        return fs.Examples(x, (x @ rng.standard_normal(WIDTH) > 0).astype(np.int32))
    options: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    pooled = fs.tasks.build("libsvm", dataset=dataset, num_clients=1, **options).data.client(0)
    rows = np.random.default_rng(seed).choice(len(pooled.y), CLIENTS * EXAMPLES, replace=False)
    x = pooled.x[rows]
    return fs.Examples(np.pad(x, ((0, 0), (0, WIDTH - x.shape[1]))), pooled.y[rows])
