"""The tasks of `fedopt-tuning`, and the grids of five methods on each: one grid of the two rates for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

import fedsolve as fs
from experiments.feddua.methods import decades
from experiments.networks.tasks import few
from fedsolve.studies import Method, Problem
from fedsolve.studies.public import CNNParams
from fedsolve.tasks import CNN, handwriting, news

SEEDS = (0, 1, 2, 3, 4)
TAU, TAUS = 1e-3, (1e-5, 1e-3, 1e-1)
"""The paper's tau where it is not tuned, as in its maps; and of its five those tried."""
PLAIN, ADAPTIVE = ("FedAvg", "FedAvgM"), ("FedAdagrad", "FedAdam", "FedYogi")
DIGITS, HANDWRITING, NEWS = "digits", "handwriting", "news"
TRIED = {NEWS: (1e-7, *TAUS), HANDWRITING: (TAU,)}
"""One more on the sparse task, where the smallest is best; on the slow one five seeds in place of them."""
RATES = {
    DIGITS: (decades(-1.5, 0.5), decades(-2, 1)),
    HANDWRITING: (decades(-2, 0), decades(-2, 0.5)),
    NEWS: (decades(-0.5, 2.5), decades(-2, 1.5)),
}
"""Task -> client rates, server rates."""
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


def _handwriting(data_dir: Path | None) -> fs.Task:
    return few(handwriting(data_dir, classes=10, model=SmallCNN()), 1_000, 1_000)


def _news(data_dir: Path | None) -> fs.Task:
    return few(news(data_dir), 2_000, 1_000)


def _problem(
    title: str,
    size: str,
    task: Callable[[Path | None], fs.Task],
    options: dict[str, Any],
    tested: int,
    metric: str = "test_accuracy",
) -> Problem:
    """Decision and tuned by the last three looks, as the paper by its last 100 rounds; every seed runs the grid."""
    last = 3 * options["eval_every"]
    return Problem(
        title, size, task, options, metric, last, f"train_loss:{last}", {"seeds": SEEDS}, tested=tested
    )


PROBLEMS = {
    DIGITS: _problem(
        "Digits (MLP)", "100 clients by Dirichlet(0.3), 20 a round", lambda data_dir: fs.tasks.digits(),
        {"rounds": 60, "clients_per_round": 20, "eval_every": 6}, 359,
    ),
    NEWS: _problem(
        "Tags of posts by author (sparse)", "390 authors (theirs: 342,477), 2,000 words, 33 tags, 10 a round", _news,
        {"rounds": 60, "clients_per_round": 10, "eval_every": 15}, 2_000, "test_recall_at_5",
    ),
    HANDWRITING: _problem(
        "Handwritten digits by writer (CNN)", "267 writers (theirs: 3,400), 10 a round, three local steps",
        _handwriting,
        {
            "rounds": 40, "clients_per_round": 10, "eval_every": 4, "local_steps": 3, "chunk": 10,
            "parallel_trials": 1,
        },
        1_000,
    ),
}  # fmt: skip


def _make(name: str, client_lr: float, **settings: float) -> fs.FedOpt:
    return getattr(fs, name)(client_lr, **settings)


def methods(problem: str) -> dict[str, Method]:
    """Five methods over both rates, the adaptive ones over tau too."""
    client, server = RATES.get(problem, RATES[DIGITS])
    rates = {"client_lr": client, "server_lr": server}
    tau = {"tau": TRIED.get(problem, TAUS)}
    return {
        name: Method(partial(_make, name), grid=rates | (tau if name in ADAPTIVE else {}))
        for name in (*PLAIN, *ADAPTIVE)
    }
