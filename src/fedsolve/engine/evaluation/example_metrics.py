"""Loss and metrics of every example, by one model or by models of the examples' owners; a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.buffers import Memory, WithBuffers
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Batch, Params, Scalar, module, static
from fedsolve.core.xla.convolutions import without_slow_convolutions
from fedsolve.core.xla.narrow import with_late_widening
from fedsolve.engine.compute.clients import LocalWork, PackedClients, client_oracle, per_example
from fedsolve.engine.evaluation.batched_eval import ROWS_AT_ONCE
from fedsolve.tasks.leaves import with_frozen

_SMALL_MODEL = 2**16  # parameters; larger models see fewer rows at once, to stay in a core's cache


@dataclass(frozen=True)
class Metrics:
    """What is measured: the loss and further means over a batch, by name; equal metrics share a program.

    A metric with a method `counts(batch)`, shape (n,), is a mean over the parts of all examples together, of which each
    example's value is the mean over so many: tokens, not sequences. A loss or metric with a method `of_sums` follows
    from the sums of what the examples add (`fedsolve.tasks.losses.weights`); one with `columns` gives a number for each
    of them (`fedsolve.tasks.metrics`). Any other loss is a mean over examples.
    """

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
