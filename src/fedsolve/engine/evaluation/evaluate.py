"""The evaluation of a run's models: every metric over all examples, pooled and by client.

Where all clients are on the device that is one compiled call. Where they are not, a block of whole clients is evaluated
after another: every example's own values are the same, and stay on the host until the last block, so that their means
are then taken as there, to the same bits. That is one number an example, metric and iterate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.fleets import Timeline
from fedsolve.core.types import Batch, Params
from fedsolve.core.xla.compiler import compiled
from fedsolve.engine.compute.clients import PackedClients
from fedsolve.engine.compute.round import RunState, client_state_bytes
from fedsolve.engine.evaluation.averaged_iterates import Iterates, compute_diagnostics, middle
from fedsolve.engine.evaluation.eval_sets import (
    EvalSets,
    ShardedExamples,
    as_part,
    client_percentiles,
    client_values,
    pooled,
    sums_of_all,
)
from fedsolve.engine.evaluation.example_metrics import (
    Block,
    Blocks,
    EvalClients,
    Metrics,
    OwnModels,
    on_all,
    on_clients,
)
from fedsolve.engine.simulated_time import Timed
from fedsolve.engine.streaming import Stream
from fedsolve.tasks.task import Task

Models = Callable[[Block], OwnModels | None]
"""The models of a block's clients; None where all have the server's."""
_ITERATES = ((0, ""), (1, "_averaged"))


def evaluate(
    metrics: Metrics,
    clients: EvalClients | Blocks,
    sets: dict[str, Batch],
    last: Params,
    previous: Params,
    models: Models,
    part: str = "train",
    divided: ShardedExamples | None = None,
) -> dict[str, float]:
    """Metrics of the last iterate and, with suffix `_averaged`, of the mean of the last two."""
    # `train_NAME`, and `SET_NAME` of each held-out set such as `test`, are means over all examples;
    # `client_NAME_mean`, `_p10`, `_p90` and `_worst` describe the clients' own means (worst as `badness`
    # says). Of another part than `train` all are `PART_NAME` (see `as_part`).
    # divided: the same examples by part and name on several devices; None where one has all
    if isinstance(clients, EvalClients):
        if divided is None:
            results = _resident(metrics, clients.packed, sets, last, previous, models(Block(clients)))
        else:
            values = divided.values(metrics, (part, *sets), last, previous)
            results = _compiled_pool(metrics, clients.packed, sets, values.pop(part), values)
        columns, means, parts = trees.on_host(results)
    else:
        both = Iterates(last, previous)
        values, counts, means, parts = _of_blocks(metrics, clients, both, models)
        columns = _pool_all(metrics, "train", values, counts, _compiled_pooled)
        for name, examples in sets.items():
            columns |= _compiled_held_out(metrics, clients.frozen, name, examples, both)
    columns = {name: float(value) for name, value in columns.items()}
    columns |= client_percentiles(metrics.columns, means, parts > 0)
    return columns if part == "train" else as_part(part, columns)


def each_client(
    metrics: Metrics, blocks: Iterable[Block], model: Params, models: Models
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """The clients' numbers, how many examples each has, and every metric of each one's own; all of shape (clients,)."""
    # NaN where a client has nothing that the metric counts
    rows = [(block.clients.ids, *means_of(metrics, block.clients, model, models(block))) for block in blocks]
    ids, counts, means, parts = (np.concatenate(column) for column in zip(*rows, strict=True))
    means = np.where(parts > 0, means, np.nan)
    return ids, counts, dict(zip(metrics.columns, means.T, strict=True))


def means_of(
    metrics: Metrics, clients: EvalClients, model: Params, own: OwnModels | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How many examples each client has, shape (clients,), every metric of its own, and over how many parts."""
    # the last two are of shape (clients, columns), in the order of `metrics.columns`
    alone = Iterates(jax.tree.map(jnp.asarray, model), None)
    _, _, means, parts = _compiled_of_clients(metrics, clients.packed, alone, own)
    counts, means, parts = trees.on_host((clients.packed.counts, means, parts))
    length = len(clients.ids)  # what follows is padding
    return counts[:length], means[:length], parts[:length]


@partial(compiled, static_argnums=0)
def sums_of(metrics: Metrics, packed: PackedClients, model: Params) -> dict[str, Array]:
    """The sums over all clients' examples of the metrics of `fs.metrics` among some, by name, shape (width,) each."""
    values = on_all(metrics, packed.frozen, model, packed.examples)
    return {name: sums_of_all(f, values[name]) for name, f in metrics.all.items() if hasattr(f, "totals")}


def _of_blocks(
    metrics: Metrics, blocks: Blocks, both: Iterates, models: Models
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray, np.ndarray]:
    # what `_of_clients` gives, on the host
    by_block: list[Any] = []
    for block in blocks:
        packed, length = block.clients.packed, len(block.clients.ids)
        rows = int(np.asarray(packed.counts).sum())  # what follows the clients, and their rows, is padding
        results = trees.on_host(_compiled_of_clients(metrics, packed, both, models(block)))
        values, counts = jax.tree.map(lambda a, end=rows: a[:, :end], results[0]), results[1]
        counts = jax.tree.map(lambda a, end=rows: a[:end], counts)
        by_block.append((values, counts, results[2][:length], results[3][:length]))
    values, *others = zip(*by_block, strict=True)
    values = jax.tree.map(lambda *a: np.concatenate(a, axis=1), *values)
    return values, *(jax.tree.map(lambda *a: np.concatenate(a), *column) for column in others)


@partial(compiled, static_argnums=0)
def _resident(
    metrics: Metrics,
    packed: PackedClients,
    sets: dict[str, Batch],
    last: Params,
    previous: Params,
    own: OwnModels | None,
) -> tuple[dict[str, Array], Array, Array]:
    both = Iterates(last, previous)
    train = both.values(lambda p: on_clients(metrics, packed, p, own))
    others = {name: _on_set(metrics, packed.frozen, examples, both) for name, examples in sets.items()}
    return _pool(metrics, packed, sets, train, others)


def _pool(
    metrics: Metrics, packed: PackedClients, sets: dict[str, Batch], train: Any, others: dict[str, Any]
) -> tuple[dict[str, Array], Array, Array]:
    # all columns, and the clients' own means, from the values of two models, (2, examples and padding, ...)
    counts, train = metrics.counts(packed.examples), _without_padding(train, packed.examples)
    means, parts = _first_by_client(metrics, packed, train, counts)
    columns = _pool_all(metrics, "train", train, counts)
    for name, examples in sets.items():
        values = _without_padding(others[name], examples)
        columns |= _pool_all(metrics, name, values, metrics.counts(examples))
    return columns, means, parts


def _without_padding(values: Any, examples: Batch) -> Any:
    size = len(jax.tree.leaves(examples)[0])
    return jax.tree.map(lambda x: x[:, :size], values)


def _of_clients(
    metrics: Metrics, packed: PackedClients, both: Iterates, own: OwnModels | None
) -> tuple[dict[str, Array], dict[str, Array], Array, Array]:
    # every metric of the iterates by example, (iterates, examples, ...), their counts, the first's
    # `client_values`
    train = both.values(lambda p: on_clients(metrics, packed, p, own))
    counts = metrics.counts(packed.examples)
    return train, counts, *_first_by_client(metrics, packed, train, counts)


def _first_by_client(
    metrics: Metrics, packed: PackedClients, train: Any, counts: dict[str, Array]
) -> tuple[Array, Array]:
    first = {name: values[0] for name, values in train.items()}
    return client_values(metrics, first, counts, packed)


def _held_out(
    metrics: Metrics, frozen: Params, name: str, examples: Batch, both: Iterates
) -> dict[str, Array]:
    # the metrics of both iterates on a held-out set, by name
    values = _on_set(metrics, frozen, examples, both)
    return _pool_all(metrics, name, values, metrics.counts(examples))


def _on_set(metrics: Metrics, frozen: Params, examples: Batch, both: Iterates) -> dict[str, Array]:
    return both.values(lambda p: on_all(metrics, frozen, p, examples))


def _pool_all(
    metrics: Metrics, part: str, values: dict[str, Any], counts: dict[str, Any], pool: Any = pooled
) -> dict[str, Array]:
    # the metrics of both iterates on all examples, from those by example, (2, examples, ...)
    return {
        f"{part}_{name}{s}": value
        for k, v in values.items()
        for i, s in _ITERATES
        for name, value in metrics.by_column(k, pool(metrics.all[k], v[i], counts.get(k))).items()
    }


_compiled_of_clients = compiled(_of_clients, static_argnums=0)
_compiled_held_out = compiled(_held_out, static_argnums=(0, 2))
_compiled_pool = compiled(_pool, static_argnums=0)
_compiled_pooled = compiled(pooled, static_argnums=0)

# The evaluation of a run: every metric of the models that it comes to.


@dataclass(frozen=True, kw_only=True)
class RunEvaluation(EvalSets):
    """Evaluates the models of a run: of the method, with all numbers in the run's type, from the initial model on.

    `stream` reads the clients that come next, None if all are on the device; `timed`: None without a clock.
    """

    algorithm: Algorithm
    task: Task
    params: Params
    stream: Stream | None
    timed: Timed | None

    def evaluate(self, state: RunState, means: dict[str, float] | None = None) -> dict[str, float]:
        """All metrics of the state's model; `means` are those that are known already."""
        values = self.means(state) if means is None else means
        if isinstance(self.training, EvalClients):  # in blocks: means alone
            values |= self._on_all_examples(self.training, state)
        return values | self.clock(int(state.round))

    def means(self, state: RunState) -> dict[str, float]:
        """Loss and metrics that are means over examples, of the state's model, or of clients' own."""
        own = partial(self.own_models, state)
        clients, sets = self.parts
        values = self._means_of("train", clients.pop("train"), sets, state, own)
        for part, others in clients.items():
            values |= self._means_of(part, others, {}, state, own)
        if self.unseen is not None:
            values |= self._means_of("unseen", self.unseen, {}, state, lambda block: None)
        return values

    @property
    def parts(self) -> tuple[dict[str, EvalClients | Blocks], dict[str, Batch]]:
        """Clients by part, evaluated with models of their own where they have such; and sets, with the server's."""
        clients, sets = {"train": self.training}, self.sets
        if self.has_own_models and self.validation_clients is not None:
            clients["validation"] = self.validation_clients
            del sets["validation"]
        return clients, sets

    def _means_of(
        self,
        part: str,
        clients: EvalClients | Blocks,
        sets: dict[str, Batch],
        state: RunState,
        models: Models,
    ) -> dict[str, float]:
        model = self.algorithm.export(state.server)
        return evaluate(self.metrics, clients, sets, model, state.previous, models, part, self.divided)

    def _on_all_examples(self, clients: EvalClients, state: RunState) -> dict[str, float]:
        # metrics of whole sets, of both iterates, and diagnostics
        values, model = {}, self.algorithm.export(state.server)
        if self.whole:
            sets = {"train": clients.packed.examples} | self.held_out
            first, averaged = int(state.round) == 0, middle(model, state.previous)
            values |= self.whole(clients.packed.model(model), sets, first)
            of_averaged = self.whole(clients.packed.model(averaged), sets, first)
            values |= {f"{name}_averaged": value for name, value in of_averaged.items()}
        uniform = self.algorithm.traits.weighting == "uniform"
        return values | compute_diagnostics(self.diagnostics, self.task.loss, uniform, clients.packed, model)

    @cached_property
    def has_own_models(self) -> bool:
        return self.algorithm.traits.personal

    @cached_property
    def validation_clients(self) -> EvalClients | Blocks | None:
        """The validation examples by owner; None if no client that trains has any."""
        if self.owners is None or self.validation is None:
            return None
        if self.stream is None:
            return EvalClients.by_owner(self.validation, self.owners, self.training.frozen)
        population, state_bytes = self.stream.population, 0
        if self.has_own_models:
            state_bytes = client_state_bytes(self.algorithm, self.params, population.data.num_clients)
        return Blocks.by_owner(population, self.task.validation, self.owners, state_bytes)

    def own_models(self, state: RunState, block: Block) -> OwnModels | None:
        """The models of a block's clients; None where all have the server's."""
        if not self.has_own_models:
            return None
        clients = block.clients
        if self.stream is None:
            states = jax.tree.map(lambda x: x[clients.ids], state.clients)
        else:
            states = self.stream.read_states(state, clients.ids, clients.packed.counts.shape[0])
        return OwnModels(self.algorithm, states, clients.rows)

    def clock(self, done: int) -> dict[str, float]:
        """The simulated seconds and joules after so many rounds, by the columns' names; nothing without a fleet."""
        return {} if self.timeline is None else self.timeline.at(done)

    @property
    def timeline(self) -> Timeline | None:
        return None if self.timed is None else replace(self.timed.timeline, names=self.task.data.names)
