"""Judging a model: every metric over all examples, pooled and by client, in one compiled call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
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
    train = lax.map(lambda p: on_all(measures, p, packed.examples), both)
    found = {f"train_{k}{s}": jnp.mean(v[i]) for k, v in train.items() for i, s in _ITERATES}
    if test is not None:
        held_out = lax.map(lambda p: on_all(measures, p, test), both)
        found |= {f"test_{k}{s}": jnp.mean(v[i]) for k, v in held_out.items() for i, s in _ITERATES}
    return found | by_client({name: values[0] for name, values in train.items()}, packed)


_ITERATES = ((0, ""), (1, "_averaged"))


def on_all(measures: Measures, params: Params, examples: Batch) -> dict[str, Array]:
    """Every metric on every example, each of shape (examples,); a few rows at a time to bound memory."""

    total = jax.tree.leaves(examples)[0].shape[0]
    size = min(total, _ROWS_AT_ONCE)

    def block(i: Scalar, found: dict[str, Array]) -> dict[str, Array]:
        start = jnp.minimum(i * size, total - size)  # the last block overlaps the one before
        rows = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, size), examples)
        return {
            name: lax.dynamic_update_slice_in_dim(found[name], per_example(f, params, rows), start, 0)
            for name, f in measures.all.items()
        }

    one = jax.tree.map(lambda a: a[:1], examples)
    empty = {
        name: jnp.zeros(total, jax.eval_shape(partial(per_example, f), params, one).dtype)
        for name, f in measures.all.items()
    }
    return lax.fori_loop(0, -(-total // size), block, empty)


def by_client(each: dict[str, Array], packed: PackedClients) -> dict[str, Array]:
    """Mean, 10th and 90th percentile and worst of the clients' means of every metric."""
    clients, values = packed.counts.shape[0], jnp.stack(list(each.values()), axis=1)
    owner = jnp.repeat(jnp.arange(clients), packed.counts, total_repeat_length=len(values))
    counts = packed.counts.astype(values.dtype)[:, None]
    means = jax.ops.segment_sum(values, owner, clients, indices_are_sorted=True) / counts
    average, percentiles = jnp.mean(means, axis=0), jnp.percentile(means, jnp.array([10, 90]), axis=0)
    largest, smallest = jnp.max(means, axis=0), jnp.min(means, axis=0)
    found: dict[str, Array] = {}
    for i, name in enumerate(each):
        found |= {
            f"client_{name}_mean": average[i],
            f"client_{name}_p10": percentiles[0, i],
            f"client_{name}_p90": percentiles[1, i],
            f"client_{name}_worst": (largest if name == "loss" else smallest)[i],
        }
    return found
