"""What the tests of the mathematics share: a small uneven federation, and the engine driven round by
round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.sampling import Sampling
from fedsolve.core.types import module
from fedsolve.data.federated import FederatedData
from fedsolve.engine import prepare as engine_prepare
from fedsolve.engine.compute.clients import client_oracle
from fedsolve.engine.compute.round import compiled_advance
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import PreparedRun
from fedsolve.tasks.task import Examples, Task

SIZES = (7, 3, 12, 5, 9)
FEATURES, CLASSES, BATCH, EPOCHS = 4, 3, 4, 2


class Softmax(NamedTuple):
    """Multi-class logistic regression: weight (features, classes) and bias (classes,)."""

    weight: Any
    bias: Any

    @classmethod
    def of(cls, flat: np.ndarray) -> Softmax:
        cut = FEATURES * CLASSES
        return cls(flat[:cut].reshape(FEATURES, CLASSES), flat[cut:])


def cross_entropy(params: Softmax, batch: Examples) -> Any:
    """Mean over the batch of -log softmax(x W + b)[y]."""
    logits = batch.x @ params.weight + params.bias
    own = jnp.take_along_axis(logits, batch.y[:, None], axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=1) - own)


def squares(w: Any, batch: Any) -> Any:
    """Mean of (<w, x> - y)^2 over a batch (x, y)."""
    return jnp.mean((batch[0] @ w - batch[1]) ** 2)


def squares_of_leaf(params: Any, batch: Examples) -> Any:
    """The same of a model {"w": w}."""
    return jnp.mean((batch.x @ params["w"] - batch.y) ** 2)


def quartic(params: Softmax, batch: Examples) -> Any:
    """Mean of (<w, x> - y)^4: large rates overflow, and stay so."""
    return ((batch.x @ params.weight[:, 0] - batch.y) ** 4).mean()


@module
class Listed(Sampling):
    """Cohorts written down: ids and who is present, each of shape (rounds, capacity)."""

    ids: Any
    present: Any

    def draw(self, key: Any, round: Any, population: int) -> tuple[Any, Any]:
        row = round % self.ids.shape[0]
        return self.ids[row], self.present[row]

    @classmethod
    def of(cls, cohorts: Sequence[Sequence[int]]) -> Listed:
        capacity = max(len(c) for c in cohorts)
        ids = np.zeros((len(cohorts), capacity), np.int32)
        present = np.zeros((len(cohorts), capacity), bool)
        for t, cohort in enumerate(cohorts):
            ids[t, : len(cohort)], present[t, : len(cohort)] = cohort, True
        return cls(jnp.asarray(ids), jnp.asarray(present))


def make_clients(sizes: Sequence[int] = SIZES, seed: int = 0, dead: bool = False) -> list[Examples]:
    """Clients of different sizes and different label noise; with `dead`, the last feature is 0 everywhere."""
    rng = np.random.default_rng(seed)
    clients = []
    for n in sizes:
        x = rng.standard_normal((n, FEATURES)) + 0.3 * rng.standard_normal(FEATURES)
        if dead:
            x[:, -1] = 0.0
        clients.append(Examples(x, rng.integers(0, CLASSES, n)))
    return clients


def joined(clients: Sequence[Examples]) -> Examples:
    return Examples(*(np.concatenate([getattr(c, part) for c in clients]) for part in ("x", "y")))


def make_task(
    clients: list[Examples], start: np.ndarray | None = None, *, batch: int | None = BATCH, **local: Any
) -> Task:
    """Softmax regression on the clients, from a start given as one flat vector (weights, then biases)."""
    start = default_start() if start is None else start
    data = FederatedData.from_clients(clients)
    local = local or {"epochs": EPOCHS}
    return Task(
        "small",
        lambda key: Softmax.of(start),
        cross_entropy,
        data,
        batch_size=batch,
        **({"epochs": None} | local),
    )


def default_start(seed: int = 1) -> np.ndarray:
    """A start away from 0, so that weight decay and curved geometries act from the first round."""
    return 0.5 * np.random.default_rng(seed).standard_normal((FEATURES + 1) * CLASSES)


@dataclass(frozen=True)
class Trajectory:
    """What the engine did: exported models (rounds + 1, d), logs by round, cohorts, and shuffled rows.

    orders[t][i] has one row per pass: a random order of client i's rows, then padding; None if unused.
    """

    iterates: np.ndarray
    logs: dict[str, np.ndarray]
    cohorts: list[list[int]]
    orders: list[Any]
    state: Any


def prepare(
    algorithm: Algorithm,
    task: Task,
    sampling: Sampling,
    *,
    dtype: Literal["float32", "float64"] = "float64",
    chunk: int | None = None,
    capacity: int = 1,
    seed: int = 0,
) -> PreparedRun:
    """A run made ready; call it with 64-bit types enabled where dtype needs them."""
    options = RunOptions(
        rounds=capacity, sampling=sampling, seed=seed, eval_every=capacity, dtype=dtype, chunk=chunk
    )
    return engine_prepare.prepare(algorithm, task, options)


def engine(
    algorithm: Algorithm, task: Task, sampling: Sampling, rounds: int = 10, **options: Any
) -> Trajectory:
    """The compiled engine, one round a call; the model after every round is kept."""
    with jax.enable_x64(options.get("dtype", "float64") == "float64"):
        setup = prepare(algorithm, task, sampling, **options)
        state = setup.state
        export = [np.array(ravel_pytree(setup.algorithm.export(state.server))[0])]
        logs: list[dict[str, np.ndarray]] = []
        for _ in range(rounds):
            state, log = setup.advance(state, 1)
            export.append(np.array(ravel_pytree(setup.algorithm.export(state.server))[0]))
            logs.append({name: value[0] for name, value in log.items()})
        ids, present, orders = jax.device_get(
            draws(setup.program.work, rounds, setup.sampling, setup.packed, setup.key)
        )
        cohorts = [[int(i) for i in ids[t][present[t]]] for t in range(rounds)]
        columns = {name: np.array([log[name] for log in logs]) for name in logs[0]}
        return Trajectory(np.stack(export), columns, cohorts, orders, jax.device_get(state))


@partial(jax.jit, static_argnums=(0, 1))
def draws(work: Any, rounds: int, sampling: Sampling, packed: Any, key: Any) -> Any:
    """The cohorts and shuffles of a run, from its key, as the engine derives them."""
    population = packed.counts.shape[0]

    def one(t: Any) -> Any:
        own = jax.random.fold_in(key, t)
        ids, present = sampling.draw(own, t, population)
        clients = jnp.arange(population)
        orders = jax.vmap(lambda i: client_oracle(work, packed, own, i, 0).order)(clients)
        return ids, present, orders

    found = jax.vmap(one)(jnp.arange(rounds, dtype=jnp.int32))
    return found if found[2] is not None else (*found[:2], [None] * rounds)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """|a - b| / |b|, at its largest over the rows."""
    a, b = np.atleast_2d(a), np.atleast_2d(b)
    return float((np.linalg.norm(a - b, axis=1) / np.maximum(np.linalg.norm(b, axis=1), 1e-300)).max())


def crossed(rows: Iterable[Any], gate: Collection[Any]) -> list[Any]:
    """Rows of a cross for `pytest.mark.parametrize`: those not in `gate` are `full`, for `make test-all` alone."""
    rows = list(rows)
    assert set(gate) <= set(rows), "the gate takes rows of the cross"
    as_tuple = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [
        pytest.param(*values, marks=() if row in gate else pytest.mark.full)
        for row, values in zip(rows, as_tuple, strict=True)
    ]


def compiled_rounds() -> int:
    """How many programs of rounds the process holds."""
    return sum(compiled_advance(on_one_core)._cache_size() for on_one_core in (False, True))
