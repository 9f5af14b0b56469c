"""What the examples' own values make together: means of all of them and of each client's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.types import Batch
from fedsolve.engine.compute.clients import PackedClients
from fedsolve.tasks.losses.sums import nothing_counts

Functions = Mapping[str, Any]


def counts_of(functions: Functions, examples: Batch) -> dict[str, Array]:
    """Of the metrics that are means over parts of examples: how many parts each example has, shape (examples,)."""
    found = {name: getattr(f, "counts", None) for name, f in functions.items()}
    return {name: counts(examples) for name, counts in found.items() if counts is not None}


def pooled(function: Any, values: Array, counts: Array | None) -> Array:
    """The mean over examples, or over their parts where these are counted; NaN if there is no part.

    Args:
        function: the loss or metric; one with `of_sums` makes the value of the sums.
        values: the examples' own, shape (examples,), or what each adds, (examples, k).
        counts: how many parts each example has, shape (examples,); None where they count alike.
    """
    of_sums = getattr(function, "of_sums", None)
    if of_sums is not None:
        return of_sums(jnp.sum(values, axis=0))
    if counts is None:
        return jnp.mean(values)
    counts = counts.astype(values.dtype)
    return jnp.sum(jnp.where(counts > 0, values * counts, 0)) / jnp.sum(counts)


def by_clients(
    functions: Functions, values: Mapping[str, Array], counts: Mapping[str, Array], packed: PackedClients
) -> tuple[Array, Array]:
    """The clients' own values of every metric, and over how much each is a mean: (clients, metrics) both.

    Args:
        functions: losses and metrics by name.
        values: of every example, as for `pooled`.
        counts: as `counts_of` gives them.
        packed: whose examples they are.
    """
    plain = [name for name, f in functions.items() if not hasattr(f, "of_sums")]
    columns: dict[str, tuple[Array, Array]] = {}
    if plain:
        each = jnp.stack([values[name] for name in plain], axis=1)
        one = jnp.ones(len(each), each.dtype)
        parts = jnp.stack([counts.get(name, one).astype(each.dtype) for name in plain], axis=1)
        means, found = client_means(each, parts, packed)
        columns |= {name: (means[:, i], found[:, i]) for i, name in enumerate(plain)}
    for name in functions.keys() - plain:
        columns[name] = _of_sums(functions[name], totals_by_client(values[name], packed), packed)
    means, parts = zip(*(columns[name] for name in functions), strict=True)
    return jnp.stack(means, axis=1), jnp.stack(parts, axis=1)


def client_means(values: Array, parts: Array, packed: PackedClients) -> tuple[Array, Array]:
    """The clients' own means of values (examples, metrics) over their parts, and how many: (clients, metrics) both.

    Args:
        values: of every example.
        parts: how much each of them counts, of the same shape and type.
        packed: whose examples they are.
    """
    found = totals_by_client(parts, packed)
    return totals_by_client(jnp.where(parts > 0, values * parts, 0), packed) / found, found


def totals_by_client(values: Array, packed: PackedClients) -> Array:
    """The sums of each client's examples, (clients, k), of values (examples, k)."""
    clients = packed.counts.shape[0]
    owner = jnp.repeat(jnp.arange(clients), packed.counts, total_repeat_length=len(values))
    return jax.ops.segment_sum(values, owner, clients, indices_are_sorted=True)


def _of_sums(function: Any, totals: Array, packed: PackedClients) -> tuple[Array, Array]:
    """The clients' values from their sums, and over how much each is a mean: 0 where nothing counts."""
    values = jax.vmap(function.of_sums)(totals)
    size = getattr(function, "size", None)
    sizes = packed.counts.astype(values.dtype) if size is None else jax.vmap(size)(totals)
    return values, jnp.where(nothing_counts(values, totals), 0, sizes)
