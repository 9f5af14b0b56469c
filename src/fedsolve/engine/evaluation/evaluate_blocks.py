"""Evaluation on clients that are not on the device: a block of whole clients after another.

Every example's own values are the same as where all lie on the device, and stay on the host until the last block: their
means are then taken as there, to the same bits. That is one number an example, metric and iterate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.types import Batch, Params
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.engine.compute.clients import PackedClients
from fedsolve.engine.evaluation.blocks import Block
from fedsolve.engine.evaluation.evaluate import ITERATES, Metrics, by_client, held_out, middle, of_clients
from fedsolve.engine.evaluation.personal_eval import Own, Owned
from fedsolve.engine.evaluation.pooling import pooled

Models = Callable[[Block], Own | None]
"""The models of a block's clients; None where all have the server's."""


def evaluate_blocks(
    metrics: Metrics,
    blocks: Iterable[Block],
    some: PackedClients,
    sets: dict[str, Batch],
    last: Params,
    previous: Params,
    own: Models,
) -> dict[str, float]:
    """What `evaluate` gives, of clients in blocks; `some` clients have the leaves that do not train."""
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), last, middle(last, previous))
    parts: list[Any] = []
    for block in blocks:
        found = _compiled()[0](metrics, block.owned.packed, both, own(block))
        values, counts, means, known = jax.device_get(found)
        clients = len(block.owned.ids)
        rows = int(np.asarray(block.owned.packed.counts).sum())
        values = {name: value[:, :rows] for name, value in values.items()}
        counts = {name: count[:rows] for name, count in counts.items()}
        parts.append((values, counts, means[:clients], known[:clients]))
    values, counts = (
        {name: np.concatenate([part[i][name] for part in parts], axis=axis) for name in parts[0][i]}
        for i, axis in ((0, 1), (1, 0))
    )
    pool = _compiled()[1]
    found = {
        f"train_{k}{s}": pool(metrics.all[k], v[i], counts.get(k))
        for k, v in values.items()
        for i, s in ITERATES
    }
    for name, examples in sets.items():
        found |= _compiled()[2](metrics, some, name, examples, both)
    means, known = (np.concatenate([part[i] for part in parts]) for i in (2, 3))
    return {name: float(value) for name, value in found.items()} | by_client(metrics.all, means, known > 0)


def each_client(
    metrics: Metrics, blocks: Iterable[Block], model: Params, own: Models
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """The clients' numbers, how many examples each has, and every metric of each one's own; all of shape (clients,).

    NaN where a client has nothing that the metric counts.
    """
    parts = [(block.owned.ids, *means_of(metrics, block.owned, model, own(block))) for block in blocks]
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
    _, _, means, known = _compiled()[0](metrics, owned.packed, alone, own)
    found = jax.device_get((owned.packed.counts, means, known))
    counts, means, known = (np.asarray(a)[: len(owned.ids)] for a in found)
    return counts, means, known


@cache
def _compiled() -> tuple[Any, Any, Any]:
    options = compiler_options()
    return (
        jax.jit(of_clients, static_argnums=0, compiler_options=options),
        jax.jit(pooled, static_argnums=0, compiler_options=options),
        jax.jit(held_out, static_argnums=(0, 2), compiler_options=options),
    )
