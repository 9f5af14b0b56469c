"""What the examples' own values make together: means of all, each client's own, and how the clients' are spread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.core.types import Scalar
from fedsolve.engine.compute.clients import PackedClients
from fedsolve.engine.evaluation.example_metrics import Metrics
from fedsolve.tasks.losses.weights import nothing_counts

_AT_ONCE = 2**20
"""Examples that are counted together: sums of more ones are rounded in float32."""
_SUMS_AT_ONCE = 2**24
"""Sums of clients that are held at a time."""
_BETTER_SMALL = {"loss", "error", "bits"}
"""Words of a metric's name that say it is better small."""


def pooled(function: Any, values: Array, counts: Array | None) -> Array:
    """The mean over examples, or over their parts where these are counted; NaN if there is no part.

    Args:
        function: the loss or metric; one with `of_sums` makes the value of the sums.
        values: the examples' own, shape (examples,), or what each adds, (examples, k).
        counts: how many parts each example has, shape (examples,); None where they count alike.

    Returns:
        Shape (); of a function with `columns` (columns,).
    """
    if hasattr(function, "totals"):
        return function.of_sums(sums_of_all(function, values))
    if hasattr(function, "of_sums"):
        return function.of_sums(jnp.sum(values, axis=0))
    if counts is None:
        return jnp.mean(values)
    counts = counts.astype(values.dtype)
    return jnp.sum(jnp.where(counts > 0, values * counts, 0)) / jnp.sum(counts)


def sums_of_all(function: Any, each: Array) -> Array:
    """The sums of a metric of `fedsolve.tasks.metrics` over all examples, shape (width,)."""
    part = jnp.arange(len(each)) // _AT_ONCE
    return jnp.sum(function.totals(each, part, -(-len(each) // _AT_ONCE)), axis=0)


def client_values(
    metrics: Metrics, values: Mapping[str, Array], counts: Mapping[str, Array], packed: PackedClients
) -> tuple[Array, Array]:
    """The clients' own values of every metric, and over how much each is a mean: (clients, columns) both.

    Args:
        metrics: the loss and the others.
        values: of every example, as for `pooled`.
        counts: as `Metrics.counts` gives them.
        packed: whose examples they are.
    """
    functions = metrics.all
    plain = [name for name, f in functions.items() if not hasattr(f, "of_sums")]
    columns: dict[str, tuple[Array, Array]] = {}
    if plain:
        each = jnp.stack([values[name] for name in plain], axis=1)
        one = jnp.ones(len(each), each.dtype)
        parts = jnp.stack([counts.get(name, one).astype(each.dtype) for name in plain], axis=1)
        sizes = _totals_by_client(parts, packed)
        means = _totals_by_client(jnp.where(parts > 0, each * parts, 0), packed) / sizes
        columns |= {name: (means[:, i], sizes[:, i]) for i, name in enumerate(plain)}
    for name in functions.keys() - plain:
        found = _of_sums(functions[name], values[name], packed)
        own, totals = (metrics.by_column(name, x.T) for x in found)
        columns |= {column: (own[column], totals[column]) for column in own}
    means, sizes = zip(*(columns[name] for name in metrics.columns), strict=True)
    return jnp.stack(means, axis=1), jnp.stack(sizes, axis=1)


def _totals_by_client(values: Array, packed: PackedClients) -> Array:
    """The sums of each client's examples, (clients, k), of values (examples, k)."""
    owner = _owners(packed, len(values))
    return jax.ops.segment_sum(values, owner, packed.counts.shape[0], indices_are_sorted=True)


def _owners(packed: PackedClients, rows: int) -> Array:
    """The place of each row's client, shape (rows,)."""
    return jnp.repeat(jnp.arange(packed.counts.shape[0]), packed.counts, total_repeat_length=rows)


def _of_sums(function: Any, each: Array, packed: PackedClients) -> tuple[Array, Array]:
    """The clients' values from their sums, and over how much each is a mean: 0 where nothing counts.

    Both are of shape (clients,), of a function with `columns` (clients, columns).
    """
    if hasattr(function, "totals"):
        values, nothing = _of_totals(function, each, packed)
        return values, jnp.where(nothing, 0, packed.counts.astype(values.dtype)[:, None])
    totals = _totals_by_client(each, packed)
    values = jax.vmap(function.of_sums)(totals)
    size = getattr(function, "size", None)
    sizes = packed.counts.astype(values.dtype) if size is None else jax.vmap(size)(totals)
    return values, jnp.where(nothing_counts(values, totals), 0, sizes)


def _of_totals(function: Any, each: Array, packed: PackedClients) -> tuple[Array, Array]:
    """The columns of each client by a metric of `fedsolve.tasks.metrics`, and where nothing counts: (clients, columns).

    So many clients at a time that their sums take little memory.
    """
    owner, clients = _owners(packed, len(each)), packed.counts.shape[0]
    size = min(clients, max(1, _SUMS_AT_ONCE // function.width))

    def some(start: Scalar) -> tuple[Array, Array]:
        totals = function.totals(each, owner - start, size)  # other clients' examples are dropped
        values = jax.vmap(function.of_sums)(totals)
        return values, nothing_counts(values, totals[:, None])

    if size == clients:
        return some(0)
    blocks = lax.map(some, jnp.arange(0, clients, size))
    values, nothing = (x.reshape(-1, x.shape[-1])[:clients] for x in blocks)
    return values, nothing


def client_percentiles(names: Iterable[str], means: np.ndarray, known: np.ndarray) -> dict[str, float]:
    """Mean, 10th and 90th percentile and worst of the clients' means of every metric.

    Args:
        names: of the metrics.
        means: of shape (clients, metrics).
        known: which of them are means of anything, of that shape; all are NaN where none is.
    """
    columns: dict[str, float] = {}
    for name, column, here in zip(names, means.T, known.T, strict=True):
        column = column[here] if here.any() else np.full(1, np.nan)
        with np.errstate(invalid="ignore"):  # infinite losses
            p10, p90 = np.percentile(column, [10, 90])
        worst = column.max() if _BETTER_SMALL & set(name.split("_")) else column.min()
        columns |= {
            f"client_{name}_mean": float(column.mean()),
            f"client_{name}_p10": float(p10),
            f"client_{name}_p90": float(p90),
            f"client_{name}_worst": float(worst),
        }
    return columns


def as_part(part: str, columns: dict[str, float]) -> dict[str, float]:
    """Columns `train_NAME` and `client_NAME` of other clients, or of other examples of theirs, as `PART_NAME`.

    `PART_NAME` (and `_averaged`) is the mean over all their examples, `PART_NAME_mean`, `_p10`, `_p90` and
    `_worst` describe their own means.
    """
    return {f"{part}_{name.partition('_')[2]}": value for name, value in columns.items()}
