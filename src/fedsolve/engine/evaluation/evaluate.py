"""Evaluating a model: every metric over all examples, pooled and by client.

Where all clients are on the device that is one compiled call. Where they are not, a block of whole clients is evaluated
after another: every example's own values are the same, and stay on the host until the last block, so that their means
are then taken as there, to the same bits. That is one number an example, metric and iterate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.core.types import Batch, Params
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.engine.compute.clients import PackedClients
from fedsolve.engine.evaluation.blocks import Block
from fedsolve.engine.evaluation.client_percentiles import by_client
from fedsolve.engine.evaluation.example_metrics import Metrics, on_all, on_clients
from fedsolve.engine.evaluation.personal_eval import Own, Owned
from fedsolve.engine.evaluation.pooling import by_clients, counts_of, pooled

Models = Callable[[Block], Own | None]
"""The models of a block's clients; None where all have the server's."""
_ITERATES = ((0, ""), (1, "_averaged"))


def evaluate(
    metrics: Metrics,
    clients: Owned | Iterable[Block],
    frozen_of: PackedClients,
    sets: dict[str, Batch],
    last: Params,
    previous: Params,
    models: Models = lambda block: None,
) -> dict[str, float]:
    """Metrics of the last iterate and, with suffix `_averaged`, of the mean of the last two.

    `train_NAME`, and `SET_NAME` of each held-out set such as `test`, are means over all examples; `client_NAME_mean`,
    `_p10`, `_p90` and `_worst` describe the clients' own means (worst: largest loss, error or bits, else smallest).

    Args:
        metrics: what is measured.
        clients: with their examples, on the device or in blocks.
        frozen_of: clients that have the leaves that do not train.
        sets: held-out examples by name, which the exported model is measured on.
        last, previous: the exported model, and that of the round before.
        models: the clients' own.
    """
    compiled = _compiled()
    if isinstance(clients, Owned):
        own = models(Block(clients))
        results = compiled.resident(metrics, clients.packed, sets, last, previous, own)
        found, means, parts = jax.device_get(results)
    else:
        both = _both(last, previous)
        values, counts, means, parts = _of_blocks(metrics, clients, both, models)
        found = _all_pooled(metrics, "train", values, counts, compiled.pooled)
        for name, examples in sets.items():
            found |= compiled.held_out(metrics, frozen_of, name, examples, both)
    return {name: float(value) for name, value in found.items()} | by_client(metrics.all, means, parts > 0)


def as_part(part: str, found: dict[str, float]) -> dict[str, float]:
    """What `evaluate` found of other clients, or of other examples of theirs, under names of their own.

    `PART_NAME` (and `_averaged`) is the mean over all their examples, `PART_NAME_mean`, `_p10`, `_p90` and
    `_worst` describe their own means.
    """
    return {f"{part}_{name.partition('_')[2]}": value for name, value in found.items()}


def _of_blocks(
    metrics: Metrics, blocks: Iterable[Block], both: Params, models: Models
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """What `_of_clients` gives, on the host."""
    parts: list[Any] = []
    for block in blocks:
        found = _compiled().of_clients(metrics, block.owned.packed, both, models(block))
        values, counts, means, known = jax.device_get(found)
        clients = len(block.owned.ids)  # slots beyond these, and rows of theirs, are padding
        rows = int(np.asarray(block.owned.packed.counts).sum())
        values = {name: value[:, :rows] for name, value in values.items()}
        counts = {name: count[:rows] for name, count in counts.items()}
        parts.append((values, counts, means[:clients], known[:clients]))
    values, counts = (
        {name: np.concatenate([part[i][name] for part in parts], axis=axis) for name in parts[0][i]}
        for i, axis in ((0, 1), (1, 0))
    )
    means, known = (np.concatenate([part[i] for part in parts]) for i in (2, 3))
    return values, counts, means, known


def each_client(
    metrics: Metrics, blocks: Iterable[Block], model: Params, models: Models
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """The clients' numbers, how many examples each has, and every metric of each one's own; all of shape (clients,).

    NaN where a client has nothing that the metric counts.
    """
    parts = [(block.owned.ids, *means_of(metrics, block.owned, model, models(block))) for block in blocks]
    ids, counts, means, known = (np.concatenate(column) for column in zip(*parts, strict=True))
    means = np.where(known > 0, means, np.nan)
    return ids, counts, dict(zip(metrics.all, means.T, strict=True))


def means_of(
    metrics: Metrics, owned: Owned, model: Params, own: Own | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How many examples each owner has, shape (clients,), every metric of its own, and over how many parts.

    The last two are of shape (clients, metrics), in the order of `metrics.all`.
    """
    alone = jax.tree.map(lambda a: jnp.asarray(a)[None], model)
    _, _, means, known = _compiled().of_clients(metrics, owned.packed, alone, own)
    found = jax.device_get((owned.packed.counts, means, known))
    counts, means, known = (np.asarray(a)[: len(owned.ids)] for a in found)
    return counts, means, known


class _Compiled(NamedTuple):
    """The compiled functions of all evaluations."""

    resident: Any
    of_clients: Any
    pooled: Any
    held_out: Any


@cache
def _compiled() -> _Compiled:
    """They are made when the backend is known."""
    options = compiler_options()
    return _Compiled(
        jax.jit(_resident, static_argnums=0, compiler_options=options),
        jax.jit(_of_clients, static_argnums=0, compiler_options=options),
        jax.jit(pooled, static_argnums=0, compiler_options=options),
        jax.jit(_held_out, static_argnums=(0, 2), compiler_options=options),
    )


def middle(last: Params, previous: Params) -> Params:
    """The mean of two iterates, at which metrics with suffix `_averaged` are computed."""
    return jax.tree.map(lambda a, b: (a + (b - a) / 2).astype(a.dtype), last, previous)


def _both(last: Params, previous: Params) -> Params:
    """The last iterate and the middle of the last two, stacked."""
    return jax.tree.map(lambda a, b: jnp.stack([a, b]), last, middle(last, previous))


def _resident(
    metrics: Metrics,
    packed: PackedClients,
    sets: dict[str, Batch],
    last: Params,
    previous: Params,
    own: Own | None,
) -> tuple[dict[str, Array], Array, Array]:
    both = _both(last, previous)
    train, counts, means, parts = _of_clients(metrics, packed, both, own)
    found = _all_pooled(metrics, "train", train, counts)
    for name, examples in sets.items():
        found |= _held_out(metrics, packed, name, examples, both)
    return found, means, parts


def _of_clients(
    metrics: Metrics, packed: PackedClients, both: Params, own: Own | None
) -> tuple[dict[str, Array], dict[str, Array], Array, Array]:
    """Every metric of two stacked models by example, (2, examples, ...), `counts_of`, and `by_clients` of the first."""
    train = lax.map(lambda p: on_clients(metrics, packed, p, own), both)
    counts = counts_of(dict(metrics.others), packed.examples)
    first = {name: values[0] for name, values in train.items()}
    return train, counts, *by_clients(metrics.all, first, counts, packed)


def _held_out(
    metrics: Metrics, packed: PackedClients, name: str, examples: Batch, both: Params
) -> dict[str, Array]:
    """The metrics of two stacked models on a held-out set, by name."""
    values = lax.map(lambda p: on_all(metrics, packed.model(p), examples), both)
    return _all_pooled(metrics, name, values, counts_of(dict(metrics.others), examples))


def _all_pooled(
    metrics: Metrics, part: str, values: dict[str, Any], counts: dict[str, Any], pool: Any = pooled
) -> dict[str, Array]:
    """The metrics of two stacked models on all examples, from those by example, (2, examples, ...)."""
    return {
        f"{part}_{k}{s}": pool(metrics.all[k], v[i], counts.get(k))
        for k, v in values.items()
        for i, s in _ITERATES
    }
