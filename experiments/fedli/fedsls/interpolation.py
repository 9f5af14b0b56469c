"""Strongly convex least squares of clients that share a minimiser, or with noise in what they predict do not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

import fedsolve as fs
from fedsolve.studies import Problem
from fedsolve.tasks import Linear, SquaredError

CLIENTS, EXAMPLES, FEATURES = 20, 40, 10
SHARED, NOISY = "one minimiser", "own minimisers"
NOISE = {SHARED: 0.0, NOISY: 0.1}
"""Standard deviation of the noise in y; the smallest eigenvalues of all clients' Hessians are above 0."""


def least_squares(data_dir: Path | None, seed: int, noise: float) -> fs.Task:
    """y = <x, w*> + noise, inputs of client i with deviations s_ij / j, s_ij from [1/2, 1]; F less its least value."""
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.5, 1.0, (CLIENTS, 1, FEATURES)) / np.arange(1, FEATURES + 1)
    x = (scale * rng.standard_normal((CLIENTS, EXAMPLES, FEATURES))).reshape(-1, FEATURES)
    y = x @ rng.standard_normal(FEATURES)
    y = y + noise * rng.standard_normal(len(y))
    best = np.linalg.lstsq(x, y, rcond=None)[0] if noise else None
    least = float(np.mean((x @ best - y) ** 2)) if best is not None else 0.0
    model = Linear(FEATURES)
    data = fs.FederatedData(fs.Examples(x, y), np.full(CLIENTS, EXAMPLES))
    task = fs.Task("least squares", model.init, SquaredError(model), data)
    return replace(task, diagnostics=(fs.diagnostics.Suboptimality(None, least),))


PROBLEMS = {
    name: Problem(
        f"Least squares, clients with {name}",
        f"{CLIENTS} clients of {EXAMPLES} examples, {FEATURES} weights, a fifth a round, 5 local steps on batches of 5",
        partial(least_squares, noise=noise),
        {
            "rounds": 200, "clients_per_round": CLIENTS // 5, "local_steps": 5, "batch_size": 5, "eval_every": 2,
            "dtype": "float64",
        },
        metric="suboptimality",
        last=20,
        select="suboptimality:20",
        data_by_seed=True,
        methods=("FedSLS",),
    )
    for name, noise in NOISE.items()
}  # fmt: skip
