"""Evaluation of a model: every metric over all examples, pooled and by client, in one compiled call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.buffers import WithBuffers
from fedsolve.core.types import Batch, Params, Scalar
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.engine.compute.clients import PackedClients
from fedsolve.engine.compute.mean_loss import per_example
from fedsolve.engine.evaluation.blocks import ROWS_AT_ONCE
from fedsolve.engine.evaluation.personal_eval import Own
from fedsolve.engine.evaluation.pooling import by_clients, counts_of, pooled

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


def evaluate(
    metrics: Metrics,
    packed: PackedClients,
    sets: dict[str, Batch],
    last: Params,
    previous: Params,
    own: Own | None = None,
) -> dict[str, float]:
    """Metrics of the last iterate and, with suffix `_averaged`, of the mean of the last two.

    `train_NAME`, and `SET_NAME` of each held-out set such as `test`, are means over all examples; `client_NAME_mean`,
    `_p10`, `_p90` and `_worst` describe the clients' own means (worst: largest loss, error or bits, else smallest).
    With `own` the packed clients are evaluated with models of their own, held-out sets by the model that is exported.
    """
    found, means, parts = jax.device_get(compiled_evaluate()(metrics, packed, sets, last, previous, own))
    return {name: float(value) for name, value in found.items()} | by_client(metrics.all, means, parts > 0)


def as_part(part: str, found: dict[str, float]) -> dict[str, float]:
    """What `evaluate` found of other clients, or of other examples of theirs, under names of their own.

    `PART_NAME` (and `_averaged`) is the mean over all their examples, `PART_NAME_mean`, `_p10`, `_p90` and
    `_worst` describe their own means.
    """
    return {f"{part}_{name.partition('_')[2]}": value for name, value in found.items()}


@cache
def compiled_evaluate() -> Any:
    """The one compiled function of all evaluations; it is made when the backend is known."""
    return jax.jit(_evaluate, static_argnums=0, compiler_options=compiler_options())


def middle(last: Params, previous: Params) -> Params:
    """The mean of two iterates, at which metrics with suffix `_averaged` are computed."""
    return jax.tree.map(lambda a, b: (a + (b - a) / 2).astype(a.dtype), last, previous)


def _evaluate(
    metrics: Metrics,
    packed: PackedClients,
    sets: dict[str, Batch],
    last: Params,
    previous: Params,
    own: Own | None,
) -> tuple[dict[str, Array], Array, Array]:
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), last, middle(last, previous))
    train, counts, means, parts = of_clients(metrics, packed, both, own)
    found = all_pooled(metrics, "train", train, counts)
    for name, examples in sets.items():
        found |= held_out(metrics, packed, name, examples, both)
    return found, means, parts


def of_clients(
    metrics: Metrics, packed: PackedClients, both: Params, own: Own | None = None
) -> tuple[dict[str, Array], dict[str, Array], Array, Array]:
    """Every metric of two stacked models by example, (2, examples, ...), `counts_of`, and `by_clients` of the first."""
    train = lax.map(lambda p: on_clients(metrics, packed, p, own), both)
    counts = counts_of(dict(metrics.others), packed.examples)
    first = {name: values[0] for name, values in train.items()}
    return train, counts, *by_clients(metrics.all, first, counts, packed)


def held_out(
    metrics: Metrics, packed: PackedClients, name: str, examples: Batch, both: Params
) -> dict[str, Array]:
    """The metrics of two stacked models on a held-out set, by name."""
    values = lax.map(lambda p: on_all(metrics, packed.model(p), examples), both)
    return all_pooled(metrics, name, values, counts_of(dict(metrics.others), examples))


def all_pooled(
    metrics: Metrics, part: str, values: dict[str, Array], counts: dict[str, Array]
) -> dict[str, Array]:
    """The metrics of two stacked models on all examples, from those by example, (2, examples, ...)."""
    return {
        f"{part}_{k}{s}": pooled(metrics.all[k], v[i], counts.get(k))
        for k, v in values.items()
        for i, s in ITERATES
    }


ITERATES = ((0, ""), (1, "_averaged"))


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


_BAD = {"loss", "error", "bits"}
"""Words of a metric's name that say it is better small."""


def by_client(names: Iterable[str], means: np.ndarray, known: np.ndarray) -> dict[str, float]:
    """Mean, 10th and 90th percentile and worst of the clients' means of every metric.

    Args:
        names: of the metrics.
        means: of shape (clients, metrics).
        known: which of them are means of anything, of that shape; all are NaN where none is.
    """
    found: dict[str, float] = {}
    for name, column, here in zip(names, means.T, known.T, strict=True):
        column = column[here] if here.any() else np.full(1, np.nan)
        with np.errstate(invalid="ignore"):  # infinite losses
            p10, p90 = np.percentile(column, [10, 90])
        worst = column.max() if _BAD & set(name.split("_")) else column.min()
        found |= {
            f"client_{name}_mean": float(column.mean()),
            f"client_{name}_p10": float(p10),
            f"client_{name}_p90": float(p90),
            f"client_{name}_worst": float(worst),
        }
    return found
