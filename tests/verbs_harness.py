"""Rounds of a method driven verb by verb: two small programs in place of a whole round.

The equations of a method are in `train` (one client) and in `update`. `play` compiles these two, the client's data an
argument, and does the rest in NumPy: who takes part, who counts for how much, means, averages and maxima. That a
whole round of the engine does the same is what tests/conformance holds to, method by method; a few tests here call
`harness.engine`, which takes the same arguments, for another look at that. A test of equations is

    clients = make_clients()                                             # five, of 3 to 12 examples
    run = play(fs.FedAdam(0.3), make_task(clients), SOME)                # a `harness.Trajectory`, float64
    fed = federation(run, clients)                                       # the same cohorts and shuffles, for NumPy
    iterates, rates = fedopt(fed, run.iterates[0], LocalSGD(0.3), rule(), "examples")
    compare(run, iterates, rates)                                        # of equations/cases.py

which is `check_fedopt(algorithm, rule, local, weighting, sampling)` for a method whose clients keep nothing; one
with client state brings a transcript of its own and also holds `run.state.clients` and `run.state.server` to it.

What is compiled is kept by the structure of a method. Its numbers are leaves, so another rate or momentum is the same
program; None in place of a number, a flag, a fresh optax closure, a fresh loss or a data set of another shape is
another one. So tests of one method share `make_clients()` and differ in numbers where they can.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.oracle import Oracle
from fedsolve.core.sampling import Sampling
from fedsolve.core.types import reductions, reports
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.engine.compute.casting import cast, run_key, start_params
from fedsolve.engine.compute.clients import own_key
from fedsolve.engine.compute.round import TAG_SERVER
from fedsolve.tasks.task import Task
from harness import Trajectory

STEPS, ROWS = 8, 12
"""Steps and rows of a client are padded to multiples of these, so that clients share programs."""


class State(NamedTuple):
    """The server's state, and the clients' states stacked: leaves of shape (clients, ...)."""

    server: Any
    clients: Any


class When(NamedTuple):
    """What a round's `Cohort` holds besides the population, which is part of the program."""

    round: Any
    size: Any
    key: Any


@partial(jax.jit, static_argnums=0, compiler_options=compiler_options())
def _train(population: int, algorithm: Algorithm, server: Any, when: When, client: Any, oracle: Any) -> Any:
    """What a client sends, what the server makes of it, and the client's new state."""
    broadcast = algorithm.broadcast(server, Cohort(when.round, when.size, population, when.key))
    sent, after = algorithm.train(broadcast, client, oracle)
    return sent, algorithm.receive(broadcast, sent, client)[0], after


@partial(jax.jit, static_argnums=0, compiler_options=compiler_options())
def _update(population: int, algorithm: Algorithm, server: Any, when: When, message: Any) -> Any:
    """The server after the round, and its model."""
    server = algorithm.update(server, message, Cohort(when.round, when.size, population, when.key))
    return server, algorithm.export(server)


@partial(jax.jit, compiler_options=compiler_options())
def _reduce(reduction: Any, messages: Any, weight: Any, used: Any) -> Any:
    """A method's own reduction."""
    return reduction(messages, weight, used)


@cache
def _keys(seed: int, t: int) -> tuple[Any, Any]:
    """Of a round and of its server."""
    key = jax.random.fold_in(run_key(seed), t)
    return key, jax.random.fold_in(key, TAG_SERVER)


@partial(jax.jit, static_argnums=2)
def _draw(sampling: Sampling, key: Any, population: int, t: Any) -> Any:
    return sampling.draw(key, t, population)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["batches", "full_batch", "own_steps", "bound", "num_examples", "client", "round_key"],
    meta_fields=["of", "batch_size", "same_steps"],
)
@dataclass(frozen=True)
class Batched(Oracle):
    """One client with the minibatch of each step written out: (examples, which of them count).

    A number of steps that all clients take is part of the program, as in the engine.
    """

    of: Callable[[Any, Any], Any]
    batches: tuple[Any, Any]
    full_batch: tuple[Any, Any]
    own_steps: Any
    same_steps: int | None
    bound: Any
    num_examples: Any
    batch_size: int
    client: Any
    round_key: Any

    @property
    def steps(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.own_steps if self.same_steps is None else self.same_steps

    @property
    def key(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return own_key(self.round_key, self.client)

    def __call__(self, params: Any, step: Any) -> Any:
        return jax.value_and_grad(self.loss)(params, step)

    def loss(self, params: Any, step: Any) -> Any:
        return self._mean(params, jax.tree.map(lambda a: a[step], self.batches))

    def full(self, params: Any) -> Any:
        return jax.value_and_grad(self._mean)(params, self.full_batch)

    def _mean(self, params: Any, batch: tuple[Any, Any]) -> Any:
        examples, counts = batch
        each = jax.vmap(lambda one: self.of(params, jax.tree.map(lambda a: a[None], one)))(examples)
        return jnp.sum(jnp.where(counts, each, 0)) / jnp.sum(counts).astype(each.dtype)


class Clients:
    """A task's clients, and what a run with a seed draws: cohorts by its sampling, shuffles by NumPy."""

    def __init__(self, task: Task, sampling: Sampling, dtype: Any, seed: int) -> None:
        self.loss, self.sampling, self.seed = task.loss, cast(sampling, dtype), seed
        clients = [task.data.client(i) for i in range(task.data.num_clients)]
        self.data = [jax.tree.map(partial(_typed, dtype), client) for client in clients]
        self.sizes = [int(n) for n in task.data.counts]
        self.batch = min(task.batch_size or max(self.sizes), max(self.sizes))
        passes = [math.ceil(n / self.batch) for n in self.sizes]
        self.steps = [task.local_steps or task.epochs * per_pass for per_pass in passes]
        self.alike, self.drawn = len(set(self.steps)) == 1, {}

    @property
    def population(self) -> int:
        return len(self.sizes)

    def cohort(self, t: int) -> tuple[list[int], int]:
        """Who takes part in a round, and how many could."""
        if t not in self.drawn:
            key = _keys(self.seed, t)[0]
            ids, present = map(np.asarray, _draw(self.sampling, key, self.population, np.int32(t)))
            self.drawn[t] = [int(i) for i in ids[present]], len(ids)
        return self.drawn[t]

    def order(self, t: int, i: int) -> np.ndarray | None:
        """Client i's rows in the order of each pass, shape (passes, rows); None where a step sees all of them."""
        n = self.sizes[i]
        if n <= self.batch:
            return None
        passes = math.ceil(self.steps[i] / math.ceil(n / self.batch))
        return np.random.default_rng((self.seed, t, i)).permuted(np.tile(np.arange(n), (passes, 1)), axis=1)

    def oracle(self, t: int, i: int) -> Batched:
        n, batch, order = self.sizes[i], self.batch, self.order(t, i)
        most, rows = -(-max(self.steps) // STEPS) * STEPS, -(-max(self.sizes) // ROWS) * ROWS
        taken, counts = np.zeros((most, batch), int), np.zeros((most, batch), bool)
        for k in range(self.steps[i]):
            visited = np.arange(n)
            if order is not None:
                e, j = divmod(k, math.ceil(n / batch))
                visited = order[e][j * batch : (j + 1) * batch]
            taken[k, : len(visited)], counts[k, : len(visited)] = visited, True
        place = np.arange(rows)
        every = (jax.tree.map(lambda a: a[np.minimum(place, n - 1)], self.data[i]), place < n)
        batches = (jax.tree.map(lambda a: a[taken], self.data[i]), counts)
        own, same = np.int32(self.steps[i]), self.steps[i] if self.alike else None
        bound, key = np.int32(max(self.steps)), _keys(self.seed, t)[0]
        return Batched(self.loss, batches, every, own, same, bound, np.int32(n), batch, np.int32(i), key)

    def when(self, t: int, size: int) -> When:
        return When(np.int32(t), np.int64(size), _keys(self.seed, t)[1])


def _typed(dtype: Any, a: Any) -> np.ndarray:
    a = np.asarray(a)
    return a.astype(dtype) if np.issubdtype(a.dtype, np.floating) else a


class Verbs:
    """A run of a method, one round a call of `advance`; `server` and `states` (one each client) are as they stand."""

    def __init__(self, algorithm: Algorithm, task: Task, sampling: Sampling, dtype: str, seed: int) -> None:
        self.double, self.round = dtype == "float64", 0
        with jax.enable_x64(self.double):
            algorithm.check(sampling, task.data.num_clients)
            self.clients = Clients(task, sampling, jnp.dtype(dtype), seed)
            self.algorithm = algorithm = cast(algorithm, jnp.dtype(dtype))
            population = self.clients.population
            everyone = Cohort(jnp.int32(0), jnp.int32(population), population)
            params = start_params(task, seed, jnp.dtype(dtype))
            self.server = algorithm.init(params)
            first = algorithm.enrol(algorithm.broadcast(self.server, everyone), params)
            self.states = [jax.device_get(first)] * population
            self.model = vector(algorithm.export(self.server))

    def cohort(self) -> list[int]:
        """Who takes part in the next round."""
        with jax.enable_x64(self.double):
            return self.clients.cohort(self.round)[0]

    def advance(self) -> dict[str, np.ndarray]:
        """One round; what it logs."""
        with jax.enable_x64(self.double):
            return self._advance()

    def _advance(self) -> dict[str, np.ndarray]:
        t, algorithm, clients = self.round, self.algorithm, self.clients
        population, (cohort, capacity) = clients.population, clients.cohort(t)
        messages, weights, kept = [], [], {}
        for i in cohort:
            given = (
                algorithm,
                self.server,
                clients.when(t, len(cohort)),
                self.states[i],
                clients.oracle(t, i),
            )
            sent, message, after = jax.device_get(_train(population, *given))
            if finite((sent, message, after)):
                messages.append(message)
                weights.append(float(clients.sizes[i]) if algorithm.weighting == "examples" else 1.0)
                kept[i] = after
        if messages or algorithm.updates_when_empty:
            reduced = self._reduced(messages, np.array(weights), capacity)
            when = clients.when(t, len(messages))
            server, model = jax.device_get(_update(population, algorithm, self.server, when, reduced))
            self.server, self.model = server, vector(model)
            for i, after in kept.items():
                self.states[i] = after
        self.round += 1
        counts = {"participants": np.array(len(cohort)), "dropped": np.array(len(cohort) - len(messages))}
        return counts | {name: np.asarray(value) for name, (value, _) in reports(self.server).items()}

    def _reduced(self, messages: list[Any], weights: np.ndarray, capacity: int) -> Any:
        if not messages:
            given = (
                self.algorithm,
                self.server,
                self.clients.when(0, 0),
                self.states[0],
                self.clients.oracle(0, 0),
            )
            like = jax.eval_shape(partial(_train.__wrapped__, self.clients.population), *given)[1]
            return jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), like)
        if self.algorithm.reduction is None:
            return reduce(messages, weights)
        rows = [*messages, *[jax.tree.map(lambda x: np.full_like(x, np.nan), messages[0])] * capacity][
            :capacity
        ]
        stacked = jax.tree.map(lambda *x: np.stack(x), *rows)
        weight = np.pad(weights, (0, capacity - len(messages))).astype(vector(messages[0]).dtype)
        return _reduce(self.algorithm.reduction, stacked, weight, np.arange(capacity) < len(messages))


def reduce(messages: list[Any], weights: np.ndarray) -> Any:
    """Each field as it says: the weighted mean, the plain average or the maximum."""
    how = {
        "mean": lambda x: np.tensordot(weights / weights.sum(), x, 1),
        "average": lambda x: x.mean(axis=0),
        "max": lambda x: x.max(axis=0),
    }
    return jax.tree.map(
        lambda by, *x: np.asarray(how[by](np.stack(x)), x[0].dtype), reductions(messages[0]), *messages
    )


def finite(tree: Any) -> bool:
    return all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


def vector(params: Any) -> np.ndarray:
    """All numbers of a model, leaf by leaf."""
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(params)])


def play(
    algorithm: Algorithm,
    task: Task,
    sampling: Sampling,
    rounds: int = 10,
    *,
    dtype: str = "float64",
    seed: int = 0,
) -> Trajectory:
    """Some rounds of a method; the model after every round is kept."""
    run = Verbs(algorithm, task, sampling, dtype, seed)
    models, logs, cohorts, orders = [run.model], [], [], []
    for t in range(rounds):
        drawn = [run.clients.order(t, i) for i in range(run.clients.population)]
        cohorts.append(run.cohort())
        orders.append(None if all(order is None for order in drawn) else drawn)
        logs.append(run.advance())
        models.append(run.model)
    columns = {name: np.array([log[name] for log in logs]) for name in logs[0]}
    state = State(jax.device_get(run.server), jax.tree.map(lambda *x: np.stack(x), *run.states))
    return Trajectory(np.stack(models), columns, cohorts, orders, state)
