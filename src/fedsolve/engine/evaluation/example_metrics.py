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
from fedsolve.core.buffers import WithBuffers
from fedsolve.core.types import Batch, Params, Scalar
from fedsolve.engine.compute.clients import PackedClients
from fedsolve.engine.compute.mean_loss import per_example
from fedsolve.engine.evaluation.blocks import ROWS_AT_ONCE
from fedsolve.engine.evaluation.personal_eval import Own

_SMALL_MODEL = 2**16  # parameters; larger models see fewer rows at once, to stay in a core's cache


@dataclass(frozen=True)
class Metrics:
    """What is measured: the loss and further means over a batch, by name; equal metrics share a program.

    A metric with a method `counts(batch)`, shape (n,), is a mean over the parts of all examples together, of which each
    example's value is the mean over so many: tokens, not sequences. A loss or metric with a method `of_sums` follows
    from the sums of what the examples add (`fedsolve.tasks.losses.sums`). Any other loss is a mean over examples.
    """

    loss: Callable[[Params, Batch], Scalar]
    others: tuple[tuple[str, Callable[[Params, Batch], Scalar]], ...]

    @property
    def all(self) -> dict[str, Callable[[Params, Batch], Scalar]]:
        """The loss first, then the others."""
        return {"loss": self.loss, **dict(self.others)}


def on_clients(metrics: Metrics, packed: PackedClients, params: Params, own: Own | None) -> dict[str, Array]:
    """Every metric on every example of some clients, by one model or by models of their own."""
    if own is None:
        return on_all(metrics, packed.model(params), packed.examples)
    return own.on_all(partial(on_rows, metrics), packed, params, _rows_at_once(params))


def on_all(metrics: Metrics, params: Params, examples: Batch) -> dict[str, Array]:
    """Every metric on every example, each of shape (examples,), or (examples, k) where it follows from sums."""
    return by_blocks(partial(on_rows, metrics), params, examples)


def by_blocks(function: Callable[[Params, Batch], Any], params: Params, examples: Batch) -> Any:
    """What a function gives for each example, leading axis (examples,); a few rows at a time to bound memory."""
    total = jax.tree.leaves(examples)[0].shape[0]
    size = min(total, _rows_at_once(params))

    def block(i: Scalar, found: Any) -> Any:
        start = jnp.minimum(i * size, total - size)  # the last block overlaps the one before
        rows = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, size), examples)
        values = function(params, rows)
        return jax.tree.map(lambda a, v: lax.dynamic_update_slice_in_dim(a, v, start, 0), found, values)

    one = jax.tree.map(lambda a: a[:1], examples)
    shapes = jax.eval_shape(function, params, one)
    empty = jax.tree.map(lambda s: jnp.zeros((total, *s.shape[1:]), s.dtype), shapes)
    return lax.fori_loop(0, -(-total // size), block, empty)


def _rows_at_once(params: Params) -> int:
    return ROWS_AT_ONCE if trees.size(params) <= _SMALL_MODEL else 32


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
            outputs[model] = model(params, rows[0])
        values[name] = of(outputs[model], rows[1])
    return values
