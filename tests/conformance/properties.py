"""A small problem with a nested model, and the six verbs called by hand, one client at a time, uncompiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve import wire
from fedsolve.core.algorithm import Cohort
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import reductions
from fedsolve.data.federated import FederatedData
from fedsolve.tasks.task import Task
from harness import Listed, draws, make_clients, prepare

SIZES = (7, 3, 12, 5, 9, 2)
COHORTS = [[0, 2], [1, 3, 4], [4, 0, 1, 2]]  # client 5 never takes part
ROUNDS = len(COHORTS)
SAMPLING = Listed.of(COHORTS)
CAPACITY = (
    4  # rounds of the longest call: with tests/conformance/test_resume.py's, so that programs are the same
)
START = np.random.default_rng(1).standard_normal(17)


def model(flat: np.ndarray) -> dict[str, Any]:
    """A nested pytree: a matrix (3, 4), a vector (3,) in a list, a scalar and an array of shape (1, 1)."""
    return {
        "layers": [{"w": flat[:12].reshape(3, 4), "b": flat[12:15]}],
        "scale": flat[15].reshape(()),
        "shift": (flat[16].reshape(1, 1),),
    }


def nested_loss(params: Any, batch: Any) -> Any:
    """Mean cross-entropy of  scale (W x + b) + shift x_0."""
    layer = params["layers"][0]
    logits = params["scale"] * (batch.x @ layer["w"].T + layer["b"])
    logits = logits + params["shift"][0] * batch.x[:, :1] * jnp.arange(3.0)
    own = jnp.take_along_axis(logits, batch.y[:, None], axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=1) - own)


def task(sizes: tuple[int, ...] = SIZES) -> Task:
    """The first five clients are the same whatever the sixth's size."""
    clients = make_clients(sizes[:5]) + make_clients(sizes[5:], seed=9)
    data = FederatedData.from_clients(clients)
    return Task("nested", lambda key: model(START), nested_loss, data, batch_size=4, epochs=1)


def compiled(algorithm: Any, data: Task | None = None, sampling: Any = SAMPLING, **options: Any) -> Any:
    """Final state and all exported models of the compiled engine, as flat vectors."""
    options = {"capacity": CAPACITY} | options
    with jax.enable_x64(options.get("dtype", "float64") == "float64"):
        setup = prepare(algorithm, data or task(), sampling, **options)
        state, logs = setup.advance(setup.state, ROUNDS)
        return setup, jax.device_get(state), logs


def flat(state: Any) -> np.ndarray:
    """Everything that a run carries but counters: server, clients' states, last model."""
    leaves = jax.tree.leaves((state.server, state.clients))
    return np.concatenate([np.ravel(x) for x in leaves])


_value = jax.jit(nested_loss)
_value_and_grad = jax.jit(jax.value_and_grad(nested_loss))


class HandOracle(Oracle):
    """One client with its minibatches written out. Its loss alone is compiled, whatever asks for it: its operations one
    by one would be several hundred small programs.
    """

    def __init__(self, rows: Any, batches: list[np.ndarray], client: int) -> None:
        self.rows, self.batches, self.client = rows, batches, client
        self.steps = self.bound = len(batches)
        self.num_examples = len(rows.y)

    def _pick(self, step: Any) -> Any:
        take = self.batches[int(step)]
        return jax.tree.map(lambda a: np.asarray(a[take]), self.rows)

    def __call__(self, params: Any, step: Any) -> Any:
        with jax.disable_jit(False):
            return _value_and_grad(params, self._pick(step))

    def loss(self, params: Any, step: Any) -> Any:
        with jax.disable_jit(False):
            return _value(params, self._pick(step))

    def full(self, params: Any) -> Any:
        with jax.disable_jit(False):
            return _value_and_grad(params, jax.tree.map(np.asarray, self.rows))


def by_hand(algorithm: Any) -> tuple[Any, dict[int, Any]]:
    """The rounds of COHORTS without the engine: the server at the end, and the states of the clients seen."""
    data = task()
    with jax.enable_x64(True):
        setup = prepare(algorithm, data, SAMPLING, capacity=CAPACITY)
        orders = jax.device_get(draws(setup.program.work, ROUNDS, setup.sampling, setup.packed, setup.key)[2])
        algorithm, states, mirrors = setup.algorithm, {}, {}
        with jax.disable_jit():
            server = algorithm.init(start := jax.tree.map(jnp.asarray, model(START)))
            first = algorithm.broadcast(server, Cohort(0, len(SIZES), len(SIZES)))
            for t, cohort in enumerate(COHORTS):
                start = Cohort(t, len(cohort), len(SIZES))
                broadcast, sent, weights = algorithm.broadcast(server, start), [], []
                for i in cohort:
                    oracle = HandOracle(data.data.client(i), batches(orders[t][i], SIZES[i]), i)
                    before = states.get(i, algorithm.enrol(first, start))
                    message, states[i] = algorithm.train(broadcast, before, oracle)
                    message = wire.decode(wire.encode(message), message)  # what the server gets is bytes
                    message, mirrors[i] = algorithm.receive(broadcast, message, mirrors.get(i, before))
                    sent.append(message)
                    weights.append(SIZES[i] if algorithm.weighting == "examples" else 1)
                reduced = reduce(sent, weights, algorithm.reduction)
                server = algorithm.update(server, reduced, Cohort(t, len(cohort), len(SIZES)))
        return jax.device_get(server), jax.device_get(states)


def batches(order: np.ndarray, size: int, batch: int = 4) -> list[np.ndarray]:
    """One pass over a shuffled client in batches of four; a client of at most four sees all of it."""
    rows = np.arange(size) if size <= batch else order[0][:size]
    return [rows[k : k + batch] for k in range(0, size, batch)]


def reduce(messages: list[Any], weights: list[int], reduction: Any = None) -> Any:
    """Each field as it says: weighted mean, plain average or maximum; or the method's own reduction."""
    if reduction is not None:
        stacked = jax.tree.map(lambda *values: jnp.stack(values), *messages)
        return reduction(stacked, jnp.asarray(weights, float), jnp.ones(len(weights), bool))
    share = np.array(weights) / sum(weights)

    def leaf(by: str, *values: Any) -> Any:
        if by == "max":
            return jnp.max(jnp.stack(values), axis=0)
        w = share if by == "mean" else np.full(len(values), 1 / len(values))
        return sum(float(a) * v for a, v in zip(w, values, strict=True))

    return jax.tree.map(leaf, reductions(messages[0]), *messages)


def close(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-12) -> None:
    """|a - b| at most `tolerance` |b|, entry by entry in the largest entry's units."""
    assert np.abs(a - b).max() <= tolerance * np.abs(b).max()
