"""What the control variates are tried on: regression with and without a shared optimum, and digits, dealt by label."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedsolve as fs
from experiments.client_drift import label_skew
from fedsolve.studies import Problem

CLIENTS, FEATURES, HIDDEN, SEEDS = 20, 100, 32, (0, 1, 2, 3, 4)
REGRESSION_STEPS, DIGITS_STEPS = 20, 10
BATCHES = ("whole batches", "minibatches")
ALL, HALF, FIFTH = "all clients", "half of the clients", "a fifth of the clients"
COHORTS = {ALL: CLIENTS, HALF: CLIENTS // 2, FIFTH: CLIENTS // 5}
SHARED, RESIDUAL = "shared optimum", "residual"
RATES = {"regression": (0.0125, 0.1, 0.3, 1.0, 1.5), "digits": (0.03, 0.1, 0.3, 1.0)}
"""Client rates; on the regression times the largest client's smoothness, so that beyond 2 local steps diverge."""


def index_of(key: Any) -> Any:
    """The place in SEEDS of the seed whose run makes its initial model with this key."""
    firsts = [jax.random.split(jax.random.key(seed, impl="threefry2x32"))[0] for seed in SEEDS]
    table = jnp.stack([jax.random.key_data(first) for first in firsts])
    return jnp.argmax(jnp.all(table == jax.random.key_data(key), axis=1)).astype(jnp.float32)


def of_its_own(loss: Any, init: Any, clients: list[dict[str, np.ndarray]]) -> fs.Task:
    """A task whose runs have data of their own by seed: one program for all of them.

    Args:
        loss: (weights, arrays of a batch, index of the data set) -> its mean loss.
        init: from a key to weights.
        clients: arrays of each, (examples, data sets, ...).
    """

    def start(key: Any) -> dict[str, Any]:
        return {"weights": init(key), "data set": index_of(key)}

    def on_its_own(params: Any, batch: Any) -> Any:
        k = params["data set"].astype(int)
        return loss(params["weights"], {name: values[:, k] for name, values in batch.items()}, k)

    data = fs.data.FederatedData.from_clients(clients)
    return fs.Task(name="own data", init=start, loss=on_its_own, data=data, batch_size=None, epochs=None)


def drawn(residual: bool, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Inputs (clients, examples, features) and targets of 20 clients, and the least loss.

    Each has 6 examples, and one optimum fits all, or 20 with noise. The inputs' variances fall as k^-1.2, a part of
    them the client's own. The largest client's smoothness is 1; the loss at w = 0 is 1 above the least.
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
    return x, y * np.sqrt(scale), least * scale


@lru_cache(maxsize=2)
def regression(residual: bool) -> fs.Task:
    """Least squares on five data sets; the loss is the excess over the least value."""
    sets = [drawn(residual, seed) for seed in SEEDS]
    least = np.array([of_set for _, _, of_set in sets])
    clients = [
        {"x": np.stack([x[i] for x, _, _ in sets], axis=1), "y": np.stack([y[i] for _, y, _ in sets], axis=1)}
        for i in range(CLIENTS)
    ]

    def loss(w: Any, batch: Any, k: Any) -> Any:
        return jnp.mean((batch["x"] @ w - batch["y"]) ** 2) / 2 - jnp.asarray(least)[k]

    return of_its_own(loss, lambda key: jnp.zeros(FEATURES), clients)


@lru_cache(maxsize=1)
def digits() -> fs.Task:
    """A network with one hidden layer on five deals of the digits, class shares from Dirichlet(0.1)."""
    deals = [label_skew.digits(0.1, CLIENTS, seed).data for seed in SEEDS]
    clients = []
    for i in range(CLIENTS):
        own = [deal.client(i) for deal in deals]
        clients.append({"x": np.stack([e.x for e in own], 1), "y": np.stack([e.y for e in own], 1)})
    network = fs.tasks.MLP((64, HIDDEN, 10))

    def loss(weights: Any, batch: Any, k: Any) -> Any:
        scores = jax.nn.log_softmax(network(weights, batch["x"]))
        return -jnp.mean(jnp.take_along_axis(scores, batch["y"][:, None], axis=1))

    return of_its_own(loss, network.init, clients)


def name_of(on: str, batches: str, cohort: str) -> str:
    """What a problem is called.

    >>> name_of("digits", BATCHES[1], ALL)
    'digits, minibatches, all clients'
    """
    return f"{on}, {batches}, {cohort}"


def _problems(
    on: str, task: Any, size: str, batch: int, steps: int, rounds: int, last: int, dtype: str
) -> dict[str, Problem]:
    """By batch and cohort: each client rate on all data sets, judged by the loss over the last rounds."""
    return {
        name_of(on, batches, cohort): Problem(
            name_of(on, batches, cohort),
            f"{size}, batches of {batch} or whole, {steps} local steps; each seed has data of its own",
            task,
            {
                "rounds": rounds, "clients_per_round": count,
                "batch_size": "full" if batches == BATCHES[0] else batch, "local_steps": steps, "eval_every": 5,
                "dtype": dtype,
            },
            metric="train_loss",
            last=last,
            select=f"train_loss:{last}",
            tuning={"seeds": SEEDS},
        )
        for batches in BATCHES
        for cohort, count in COHORTS.items()
    }  # fmt: skip


REGRESSION = {
    SHARED: _problems(
        f"regression, {SHARED}", lambda data_dir: regression(False), f"{CLIENTS} clients of 6 examples", 2,
        REGRESSION_STEPS, 150, 50, "float64",
    ),
    RESIDUAL: _problems(
        f"regression, {RESIDUAL}", lambda data_dir: regression(True), f"{CLIENTS} clients of 20 examples", 4,
        REGRESSION_STEPS, 150, 50, "float64",
    ),
}  # fmt: skip
DIGITS_NAMES = tuple(
    name_of("digits", *kind) for kind in ((BATCHES[0], ALL), (BATCHES[1], HALF), (BATCHES[1], FIFTH))
)
DIGITS = {
    name: problem
    for name, problem in _problems(
        "digits",
        lambda data_dir: digits(),
        f"{CLIENTS} clients of 71 examples, an MLP of {HIDDEN} hidden units",
        10,
        DIGITS_STEPS,
        60,
        20,
        "float32",
    ).items()
    if name in DIGITS_NAMES
}
"""Without noise, and with all of it."""
BY_RATE = REGRESSION[SHARED] | REGRESSION[RESIDUAL] | DIGITS
