"""What the control variates are tried on: regression with and without a shared optimum, digits, FEMNIST."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import fedsolve as fs
from experiments.client_drift import label_skew
from experiments.networks.tasks import few
from fedsolve.studies import Problem

CLIENTS, FEATURES, SEEDS = 20, 100, (0, 1, 2, 3, 4)
REGRESSION_STEPS, DIGITS_STEPS, FEMNIST_STEPS = 20, 10, 5
BATCHES, COHORTS = ("whole batches", "minibatches"), ("all clients", "half of the clients")
SHARED, RESIDUAL = "shared optimum", "residual"
RATES = {
    "regression": (0.0125, 0.05, 0.2, 0.5, 1.0, 1.5),
    "digits": (0.3, 1.0, 3.0, 10.0),
    "FEMNIST": (0.01, 0.03, 0.1),
}
"""Client rates; on the regression times the largest client's smoothness, so that beyond 2 local steps diverge."""


@lru_cache(maxsize=20)
def regression(residual: bool, seed: int) -> fs.Task:
    """20 clients with 6 examples and one optimum for all, or with 20, noise and none; 100 features.

    The inputs' variances fall as k^-1.2, a tenth of them the client's own. The largest client's smoothness is 1, the
    loss is the excess over its least value, and is 1 at the start, w = 0.
    """
    each, noise = (20, 0.1) if residual else (6, 0.0)
    rng = np.random.default_rng(100 + seed)
    spectrum = np.arange(1, FEATURES + 1) ** -0.6
    common = 0.3 * rng.standard_normal((CLIENTS, 1, FEATURES))
    x = (rng.standard_normal((CLIENTS, each, FEATURES)) + common) * spectrum
    y = x @ rng.standard_normal(FEATURES) + noise * rng.standard_normal((CLIENTS, each))
    x = x / np.sqrt(max(np.linalg.eigvalsh(own.T @ own / each)[-1] for own in x))
    every, targets = x.reshape(-1, FEATURES), y.ravel()
    best = np.linalg.lstsq(every, targets, rcond=None)[0]
    least = np.mean((every @ best - targets) ** 2) / 2
    scale = 1 / (np.mean(targets**2) / 2 - least)
    y, least = y * np.sqrt(scale), least * scale

    def loss(w, batch):
        return jnp.mean((batch["x"] @ w - batch["y"]) ** 2) / 2 - least

    clients = [{"x": own, "y": values} for own, values in zip(x, y, strict=True)]
    return fs.Task.from_arrays(loss, np.zeros(FEATURES), clients)


def femnist(data_dir: Path | None, seed: int) -> fs.Task:
    """20 writers, drawn anew for each seed, and a narrow form of FEMNIST's network; 1,000 examples are evaluated."""
    network = fs.tasks.CNN(channels=(4, 8), hidden=32)
    made = replace(fs.tasks.femnist(data_dir, network, CLIENTS, seed), unseen=None)
    return replace(few(made, 100, 1_000), test=None)


def name_of(on: str, batches: str, cohort: str) -> str:
    """What a problem is called.

    >>> name_of("digits", BATCHES[1], COHORTS[0])
    'digits, minibatches, all clients'
    """
    return f"{on}, {batches}, {cohort}"


def _problems(
    on: str,
    task: Callable[[Path | None, int], fs.Task],
    size: str,
    batch: int,
    steps: int,
    rounds: int,
    last: int,
    dtype: str = "float32",
) -> dict[str, Problem]:
    """By batch and cohort: each client rate on all data sets, judged by its loss over the last rounds."""
    return {
        name_of(on, batches, cohort): Problem(
            name_of(on, batches, cohort),
            f"{size}, {steps} local steps",
            task,
            {
                "rounds": rounds, "clients_per_round": CLIENTS if cohort == COHORTS[0] else CLIENTS // 2,
                "batch_size": "full" if batches == BATCHES[0] else batch, "local_steps": steps, "eval_every": 5,
                "dtype": dtype,
            },
            metric="train_loss",
            last=last,
            select=f"train_loss:{last}",
            tuning={"seeds": SEEDS},
            data_by_seed=True,
        )
        for batches in BATCHES
        for cohort in COHORTS
    }  # fmt: skip


REGRESSION = {
    which: _problems(
        f"regression, {which}", lambda data_dir, seed, residual=which == RESIDUAL: regression(residual, seed),
        f"{CLIENTS} clients of {20 if which == RESIDUAL else 6} examples, batches of {4 if which == RESIDUAL else 2}",
        4 if which == RESIDUAL else 2, REGRESSION_STEPS, 200, 50, "float64",
    )
    for which in (SHARED, RESIDUAL)
}  # fmt: skip
DIGITS = _problems(
    "digits", lambda data_dir, seed: label_skew.digits(0.1, CLIENTS, seed),
    f"{CLIENTS} clients of 71 examples, class shares from Dirichlet(0.1), softmax regression, batches of 10",
    10, DIGITS_STEPS, 100, 50,
)  # fmt: skip
FEMNIST = {
    name: problem
    for name, problem in _problems(
        "FEMNIST", femnist, f"{CLIENTS} writers, a network of 4 and 8 channels, batches of 20",
        20, FEMNIST_STEPS, 30, 10,
    ).items()
    if BATCHES[1] in name and COHORTS[1] in name
}  # fmt: skip
BY_RATE = REGRESSION[SHARED] | REGRESSION[RESIDUAL] | DIGITS | FEMNIST
