"""Loss and metrics of every example of the clients that a model is evaluated on, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.buffers import Memory, WithBuffers
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Batch, Params, Scalar, module, replace, static
from fedsolve.core.xla.compiler import compiled
from fedsolve.core.xla.convolutions import without_slow_convolutions
from fedsolve.core.xla.narrow import with_late_widening
from fedsolve.data.federated import FederatedData
from fedsolve.engine.compute.clients import (
    LocalWork,
    Loss,
    PackedClients,
    Window,
    client_oracle,
    pack,
    per_example,
)
from fedsolve.engine.streaming import WINDOW_BYTES, Packer, Population, in_background, padded, row_bytes
from fedsolve.tasks.leaves import with_frozen
from fedsolve.tasks.loss_arguments import call, mean_of
from fedsolve.tasks.losses.weights import Whole

ROWS_AT_ONCE = 512
"""Examples that a small model sees at once."""
_FACTS = 16  # bytes of a client beside its examples and its state


@module
class EvalClients:
    """Clients on the device with the examples that they are evaluated on."""

    # `ids` are their numbers in the population, ascending; `rows` are the examples of the one with most.

    packed: PackedClients
    ids: Any
    rows: int = static()

    @property
    def frozen(self) -> Params:
        return self.packed.frozen

    @classmethod
    def of(cls, packed: PackedClients, ids: np.ndarray) -> EvalClients:
        return cls(packed, ids, int(np.asarray(packed.counts).max()))

    @classmethod
    def of_data(
        cls, data: FederatedData, ids: np.ndarray, loss: Loss, dtype: Any, frozen: Params
    ) -> EvalClients:
        work = {"batch_size": None, "epochs": 1, "local_steps": None}
        return cls.of(pack(data, loss, dtype, **work, frozen=frozen)[0], ids)

    @classmethod
    def by_owner(cls, examples: Batch, owners: np.ndarray, frozen: Params) -> EvalClients:
        """Examples with the number of each one's owner, shape (examples,)."""
        in_order, ids, counts = _ordered_by_owner(examples, owners)
        offsets, counts, steps = (
            jnp.asarray(a, jnp.int32) for a in (np.cumsum(counts) - counts, counts, np.zeros_like(counts))
        )
        return cls.of(PackedClients(in_order, offsets, counts, steps, frozen), ids)


class Block(NamedTuple):
    """Clients that are evaluated together; places beyond those of `clients.ids` are nobody's.

    `train`: the `PackedClients` of what they train on, these or all, None if they do not; `slots`: their places
    there.
    """

    clients: EvalClients
    train: Any = None
    slots: Any = None


@dataclass(frozen=True)
class Blocks:
    """Clients as blocks of one shape.

    `trained` is the population whose examples they train on before, None if they do not; `state_bytes` is what a
    client's own state takes, 0 where it is not asked for; `cuts` are the places of each block's first client, and
    their number.
    """

    evaluated: Population
    ids: np.ndarray
    state_bytes: int
    trained: Population | None
    cuts: tuple[int, ...]

    @classmethod
    def of(
        cls,
        evaluated: Population,
        ids: np.ndarray | None = None,
        state_bytes: int = 0,
        trained: Population | None = None,
    ) -> Blocks:
        """Blocks of about the size of a window; of all clients where no `ids` are given."""
        ids = np.arange(evaluated.data.num_clients) if ids is None else ids
        row = row_bytes(evaluated.data, evaluated.dtype)
        size = evaluated.data.counts * row + (_FACTS + state_bytes)
        if trained is not None and trained is not evaluated:
            size += trained.data.counts[ids] * row
        ends, room = np.cumsum(size), max(WINDOW_BYTES, ROWS_AT_ONCE * row)
        cuts = [0]
        while cuts[-1] < len(ends):
            before = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
            cuts.append(max(cuts[-1] + 1, int(np.searchsorted(ends, before + room, side="right"))))
        return cls(evaluated, ids, state_bytes, trained, tuple(cuts))

    @classmethod
    def by_owner(
        cls, population: Population, examples: Batch, owners: np.ndarray, state_bytes: int
    ) -> Blocks:
        """Clients of a population with other examples, each of which has the number of its owner."""
        in_order, ids, counts = _ordered_by_owner(examples, owners)
        data = FederatedData(in_order, counts)
        return cls.of(replace(population, data=data, steps=np.ones_like(counts)), ids, state_bytes)

    @property
    def frozen(self) -> Params:
        return self.evaluated.frozen

    def __iter__(self) -> Iterator[Block]:
        # each block; the next one is read meanwhile
        spans = [np.arange(a, b) for a, b in pairwise(self.cuts)]
        evaluated, trained = self.evaluated.data, self.trained
        slots = max(map(len, spans)) + 1  # one that nobody takes: what pads the rows is its
        rows = max(int(evaluated.counts[span].sum()) for span in spans)
        packers = [Packer(self.evaluated, slots, max(rows, min(ROWS_AT_ONCE, evaluated.num_examples)))]
        if trained is not None and trained is not self.evaluated:
            most = max(int(trained.data.counts[self.ids[span]].sum()) for span in spans)
            packers.append(Packer(trained, slots, most))
        following = in_background(self._read, packers, spans[0])
        for i in range(len(spans)):
            block = following.result()
            if i + 1 < len(spans):
                following = in_background(self._read, packers, spans[i + 1])
            yield block

    def _read(self, packers: list[Packer], span: np.ndarray) -> Block:
        ids, slots = self.ids[span], packers[0].slots
        with jax.enable_x64(self.evaluated.dtype == jnp.float64):
            packed = packers[0].pack(span)
            clients = EvalClients(packed, ids, int(self.evaluated.data.counts.max()))
            if self.trained is None:
                return Block(clients)
            train = packed if len(packers) == 1 else packers[1].pack(ids)
            window = Window.of_no_round(padded(slots, ids), self.trained.data.num_clients)
            return Block(clients, replace(train, window=window), np.arange(slots))


def _ordered_by_owner(examples: Batch, owners: np.ndarray) -> tuple[Batch, np.ndarray, np.ndarray]:
    # examples owner after owner, the owners' numbers, ascending, and how many examples each has
    order = np.argsort(owners, kind="stable")
    return jax.tree.map(lambda a: a[order], examples), *np.unique(owners, return_counts=True)


# Loss and metrics of every example, by one model or by models of the examples' owners; a few rows at a time.


_SMALL_MODEL = 2**16  # parameters; larger models see fewer rows at once, to stay in a core's cache


@dataclass(frozen=True)
class Metrics:
    """What is measured: the loss and further means over a batch, by name; equal metrics share a program."""

    # A metric with a method `counts(batch)`, shape (n,), is a mean over the parts of all examples together, of which
    # each example's value is the mean over so many: tokens, not sequences. A loss or metric with a method `of_sums`
    # follows from the sums of what the examples add (`fedsolve.tasks.losses.weights`); one with `columns` gives a
    # number for each of them (`fedsolve.tasks.metrics`). Any other loss is a mean over examples.

    loss: Callable[[Params, Batch], Scalar]
    others: tuple[tuple[str, Callable[[Params, Batch], Scalar]], ...]

    @property
    def all(self) -> dict[str, Callable[[Params, Batch], Scalar]]:
        """The loss first, then the others."""
        return {"loss": self.loss, **dict(self.others)}

    @property
    def columns(self) -> list[str]:
        """The names of the numbers that they give, in the order of `all`."""
        return [name + suffix for name, f in self.all.items() for suffix in getattr(f, "columns", ("",))]

    def by_column(self, name: str, value: Any) -> dict[str, Any]:
        """What a metric gives, shape (), or (columns,) where it has columns, by their names."""
        suffixes = getattr(self.all[name], "columns", None)
        if suffixes is None:
            return {name: value}
        return {name + suffix: x for suffix, x in zip(suffixes, value, strict=True)}

    def counts(self, examples: Batch) -> dict[str, Array]:
        """Of those that are means over parts of examples: how many parts each example has, shape (examples,)."""
        counted = {name: getattr(f, "counts", None) for name, f in self.others}
        return {name: counts(examples) for name, counts in counted.items() if counts is not None}


@module
class OwnModels:
    """The models of some clients, by their states in the order in which they are evaluated; `rows`: of the largest."""

    algorithm: Algorithm
    states: Any
    rows: int = static()

    def model(self, exported: Params, index: Scalar) -> Params:
        return self.algorithm.own_model(exported, jax.tree.map(lambda x: x[index], self.states))


@module
class TunedModels(OwnModels):
    """The models of some clients after local steps from them, by their training examples at `slots` of `train`."""

    solver: Any
    train: PackedClients
    slots: Any
    key: Array
    work: LocalWork = static()

    def model(self, exported: Params, index: Scalar) -> Params:
        """Of the client at an index; buffers are those that its steps leave."""
        slot, start, steps = self.slots[index], super().model(exported, index), self.work.max_steps
        client = self.train.number(slot)
        oracle = client_oracle(self.work, self.train, self.key, client, jnp.int32(steps), slot)
        if not isinstance(start, WithBuffers):
            return self.solver.solve(start, oracle, 0).params
        memory = Memory(start.buffers)
        params = self.solver.solve(start.params, oracle.remembering(memory), 0).params
        return WithBuffers(params, memory.read())


def on_clients(
    metrics: Metrics, packed: PackedClients, params: Params, own: OwnModels | None
) -> dict[str, Array]:
    """Every metric on every example of some clients, by one model or by models of their own."""
    if own is None:
        return on_all(metrics, packed.frozen, params, packed.examples)
    return _by_owner(partial(on_rows, metrics), packed, params, own)


def on_all(metrics: Metrics, frozen: Params, params: Params, examples: Batch) -> dict[str, Array]:
    """Every metric on every example, each of shape (examples,), or (examples, k) where it follows from sums."""

    def wide(frozen: Params, params: Params, examples: Batch) -> Any:
        together = getattr(metrics.loss, "rows_together", 1)
        return map_rows(partial(on_rows, metrics), with_frozen(params, frozen), examples, together)

    return with_late_widening(wide, trees.dtype_of(params))(frozen, params, examples)


def on_rows(metrics: Metrics, params: Params, rows: Batch) -> dict[str, Array]:
    """Every metric on each of a few examples; metrics of one model's outputs share one pass of it."""
    outputs: dict[Any, Array] = {}
    values: dict[str, Array] = {}
    for name, f in metrics.all.items():
        model, of = getattr(f, "model", None), getattr(f, "of", None)
        if model is None or of is None or isinstance(params, WithBuffers):
            values[name] = per_example(f, params, rows)
            continue
        if model not in outputs:
            # a translated module's convolutions are XLA's own, which crawl inside a loop
            outputs[model] = without_slow_convolutions(model)(params, rows[0])
        values[name] = of(outputs[model], rows[1])
    return values


def map_rows(
    function: Callable[[Params, Batch], Any], params: Params, examples: Batch, together: int = 1
) -> Any:
    """What a function gives for each example, leading axis (examples,); a few rows at a time to bound memory."""
    # together: rows that depend on one another, as a multiple of which examples come
    total = jax.tree.leaves(examples)[0].shape[0]
    if total % together:
        raise InvalidInput(
            f"a set of {total} examples is evaluated by a loss that couples those of batches of {together}: give a "
            "multiple of batch_size"
        )
    size = min(total, -(-_rows_at_once(params) // together) * together)

    def block(i: Scalar, results: Any) -> Any:
        start = jnp.minimum(i * size, total - size)  # the last block overlaps the one before
        rows = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, size), examples)
        values = function(params, rows)
        return jax.tree.map(lambda a, v: lax.dynamic_update_slice_in_dim(a, v, start, 0), results, values)

    return lax.fori_loop(0, -(-total // size), block, _empty(partial(function, params), examples))


def _by_owner(
    function: Callable[[Params, Batch], Any], packed: PackedClients, exported: Params, own: OwnModels
) -> Any:
    # the same by the model of each example's owner
    total = jax.tree.leaves(packed.examples)[0].shape[0]
    size = min(total, own.rows, _rows_at_once(exported))

    def client(index: Scalar, results: Any) -> Any:
        model = packed.model(own.model(exported, index))
        first, stop = packed.offsets[index], packed.offsets[index] + packed.counts[index]

        def block(j: Scalar, results: Any) -> Any:
            start = jnp.minimum(first + j * size, total - size)  # may reach back to others' rows
            positions = start + jnp.arange(size)
            rows = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, size), packed.examples)
            return _put(results, function(model, rows), start, (positions >= first) & (positions < stop))

        return lax.fori_loop(0, -(-packed.counts[index] // size), block, results)

    empty = _empty(lambda rows: function(packed.model(own.model(exported, 0)), rows), packed.examples)
    return lax.fori_loop(0, jnp.sum(packed.counts > 0), client, empty)  # places that nobody takes come last


def _empty(function: Callable[[Batch], Any], examples: Batch) -> Any:
    # zeros in the shapes of what a function gives for all examples
    one = jax.tree.map(lambda a: a[:1], examples)
    total = jax.tree.leaves(examples)[0].shape[0]
    return jax.tree.map(lambda s: jnp.zeros((total, *s.shape[1:]), s.dtype), jax.eval_shape(function, one))


def _put(results: Any, values: Any, start: Scalar, mine: Array) -> Any:
    # values in their place and those that follow, where they are mine
    def rows(a: Array, v: Array) -> Array:
        old = lax.dynamic_slice_in_dim(a, start, len(v))
        keep = mine.reshape(-1, *(1,) * (v.ndim - 1))
        return lax.dynamic_update_slice_in_dim(a, jnp.where(keep, v, old), start, 0)

    return jax.tree.map(rows, results, values)


def _rows_at_once(params: Params) -> int:
    return ROWS_AT_ONCE if trees.size(params) <= _SMALL_MODEL else 32


# Metrics of whole sets, which are no means over examples.


Function = Callable[[Params, Batch], Any]


@dataclass(frozen=True)
class OnWholeSets:
    """Metrics of whole sets, by name: on the host as the task has them in `whole`, with NumPy arrays, or compiled."""

    host: Mapping[str, Function | Whole]
    compiled: Mapping[str, Function]

    def __bool__(self) -> bool:
        return bool(self.host or self.compiled)

    def __call__(self, params: Params, sets: Mapping[str, Batch], first: bool) -> dict[str, float]:
        # `SET_NAME` of every set and metric; NaN where a model is not finite any more
        alive = bool(trees.all_finite(params))
        columns = {}
        for part, examples in sets.items():
            for name, metric in (*self.compiled.items(), *self.host.items()):
                value = float("nan")
                if alive or first:
                    value = _value(
                        f"{name} of the {part} set", self._bound(name, metric), params, examples, first
                    )
                columns[f"{part}_{name}"] = value
        return columns

    def _bound(self, name: str, metric: Function | Whole) -> Function:
        if isinstance(metric, Whole):
            return partial(_scored, metric)
        if name in self.compiled:
            return partial(_batch_mean, metric)
        return lambda params, examples: call(metric, params, jax.tree.map(np.asarray, examples))[0]


def _value(what: str, metric: Function, params: Params, examples: Batch, first: bool) -> float:
    try:
        value = np.asarray(metric(params, examples))
    except Exception as error:  # whatever the user's code raises
        if not first:
            return float("nan")
        line = (str(error).splitlines() or [""])[0]
        raise InvalidInput(f"{what} fails: {type(error).__name__}: {line}") from error
    if value.shape != () or not (np.issubdtype(value.dtype, np.number) or value.dtype == bool):
        raise InvalidInput(
            f"{what} has shape {value.shape} and type {value.dtype}: it must be one real number"
        )
    return float(value)


def _scored(metric: Whole, params: Params, examples: Batch) -> Any:
    outputs = jax.device_get(_outputs(metric.outputs, params, examples))
    arrays = [np.asarray(a) for a in (outputs if isinstance(outputs, tuple) else (outputs,))]
    if not all(np.isfinite(a).all() for a in arrays):  # scikit-learn would raise
        return float("nan")
    return metric.score(*arrays)


@partial(compiled, static_argnums=0)
def _outputs(outputs: Function, params: Params, examples: Batch) -> Any:
    return map_rows(lambda *given: call(outputs, *given)[0], params, examples)


@partial(compiled, static_argnums=0)
def _batch_mean(metric: Function, params: Params, examples: Batch) -> Any:
    return mean_of(call(metric, params, examples)[0])
