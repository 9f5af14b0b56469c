"""Judging a model: every metric over all examples, pooled and by client, in one compiled call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.engine.clients import PackedClients, per_example
from fedsolve.types import Batch, Params, Scalar

_ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class Measures:
    """What is measured: the loss and further means over a batch, by name; equal measures share a program."""

    loss: Callable[[Params, Batch], Scalar]
    others: tuple[tuple[str, Callable[[Params, Batch], Scalar]], ...]

    @property
    def all(self) -> dict[str, Callable[[Params, Batch], Scalar]]:
        """The loss first, then the others."""
        return {"loss": self.loss, **dict(self.others)}


@partial(jax.jit, static_argnames="measures")
def evaluate(
    measures: Measures, packed: PackedClients, test: Batch | None, last: Params, previous: Params
) -> dict[str, Array]:
    """Metrics of the last iterate and, with suffix `_averaged`, of the mean of the last two.

    `train_NAME` and `test_NAME` are means over all examples; `client_NAME_mean`, `_p10`, `_p90` and
    `_worst` describe the clients' own means (worst: largest loss, smallest of anything else).
    """
    averaged = jax.tree.map(lambda a, b: (a + (b - a) / 2).astype(a.dtype), last, previous)
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), last, averaged)
    train = jax.lax.map(lambda p: on_all(measures, p, packed.examples), both)
    found = {f"train_{k}{s}": jnp.mean(v[i]) for k, v in train.items() for i, s in _ITERATES}
    if test is not None:
        held_out = jax.lax.map(lambda p: on_all(measures, p, test), both)
        found |= {f"test_{k}{s}": jnp.mean(v[i]) for k, v in held_out.items() for i, s in _ITERATES}
    for name, values in train.items():
        found |= by_client(name, values[0], packed)
    return found


_ITERATES = ((0, ""), (1, "_averaged"))


def on_all(measures: Measures, params: Params, examples: Batch) -> dict[str, Array]:
    """Every metric on every example, each of shape (examples,); a few rows at a time to bound memory."""

    def block(rows: Batch) -> dict[str, Array]:
        return {name: per_example(f, params, rows) for name, f in measures.all.items()}

    total = jax.tree.leaves(examples)[0].shape[0]
    size = min(total, _ROWS_AT_ONCE)
    whole = total // size * size
    blocks = jax.tree.map(lambda a: a[:whole].reshape(-1, size, *a.shape[1:]), examples)
    found = jax.tree.map(jnp.ravel, jax.lax.map(block, blocks))
    if whole == total:
        return found
    rest = block(jax.tree.map(lambda a: a[whole:], examples))
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), found, rest)


def by_client(name: str, values: Array, packed: PackedClients) -> dict[str, Array]:
    """Mean, 10th and 90th percentile and worst of the clients' means of a metric."""
    clients = packed.counts.shape[0]
    owner = jnp.repeat(jnp.arange(clients), packed.counts, total_repeat_length=values.shape[0])
    means = jax.ops.segment_sum(values, owner, clients) / packed.counts.astype(values.dtype)
    p10, p90 = jnp.percentile(means, jnp.array([10, 90]))
    worst = jnp.max(means) if name == "loss" else jnp.min(means)
    key = f"client_{name}"
    return {f"{key}_mean": jnp.mean(means), f"{key}_p10": p10, f"{key}_p90": p90, f"{key}_worst": worst}
