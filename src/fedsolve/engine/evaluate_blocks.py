"""Judging a model on clients that are not on the device: a block of whole clients after another.

Every example's own values are the same as where all lie on the device, and stay on the host until the last block: their
means are then taken as there, to the same bits. That is one number an example, metric and iterate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.engine.background import in_background
from fedsolve.engine.clients import PackedClients
from fedsolve.engine.compiled import compiler_options
from fedsolve.engine.evaluate import (
    ITERATES,
    ROWS_AT_ONCE,
    Metrics,
    by_client,
    held_out,
    middle,
    of_clients,
    pooled,
)
from fedsolve.engine.own_models import Own
from fedsolve.engine.population import WINDOW_BYTES, Packer, Population, row_bytes
from fedsolve.types import Batch, Params


@dataclass(frozen=True)
class Blocks:
    """All clients of a population, as blocks of one shape.

    Attributes:
        population: the clients.
        rows: examples of a block at most.
        places: clients of a block, and one more that nobody takes: what pads the rows is its.
    """

    population: Population
    rows: int
    places: int

    @classmethod
    def of(cls, population: Population) -> Blocks:
        """Blocks of about the size of a window."""
        data = population.data
        fit = WINDOW_BYTES // max(1, row_bytes(data, population.dtype))
        rows = min(data.num_examples, max(int(data.counts.max()), fit, ROWS_AT_ONCE))
        places = min(data.num_clients, int(1.1 * rows * data.num_clients / data.num_examples) + 1)
        return cls(population, rows, places + 1)

    def __iter__(self) -> Iterator[tuple[PackedClients, int, int]]:
        """Each block with its clients' and examples' numbers; the next one is read meanwhile."""
        ends = np.cumsum(self.population.data.counts)
        cuts = [0]
        while cuts[-1] < len(ends):
            before = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
            fits = int(np.searchsorted(ends, before + self.rows, side="right"))
            cuts.append(min(fits, cuts[-1] + self.places - 1))
        spans = [np.arange(a, b) for a, b in pairwise(cuts)]
        packer = Packer(self.population, self.places, self.rows)
        following = in_background(self._block, packer, spans[0])
        for i, span in enumerate(spans):
            block = following.result()
            if i + 1 < len(spans):
                following = in_background(self._block, packer, spans[i + 1])
            yield block, len(span), int(self.population.data.counts[span].sum())

    def _block(self, packer: Packer, clients: np.ndarray) -> PackedClients:
        with jax.enable_x64(self.population.dtype == jnp.float64):
            return packer.pack(clients)


def evaluate_blocks(
    metrics: Metrics,
    blocks: Blocks,
    some: PackedClients,
    sets: dict[str, Batch],
    last: Params,
    previous: Params,
    own: Callable[[np.ndarray, int], Own] | None = None,
) -> dict[str, float]:
    """What `evaluate` gives, of clients in blocks; `some` clients have the leaves that do not train.

    `own` gives the models of clients by their numbers, with room for so many in all.
    """
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), last, middle(last, previous))
    parts: list[Any] = []
    done = 0
    for packed, clients, rows in blocks:
        models = None if own is None else own(np.arange(done, done + clients), blocks.places)
        done += clients
        values, counts, means, known = jax.device_get(_compiled()[0](metrics, packed, both, models))
        values = {name: value[:, :rows] for name, value in values.items()}
        counts = {name: count[:rows] for name, count in counts.items()}
        parts.append((values, counts, means[:clients], known[:clients]))
    values, counts = (
        {name: np.concatenate([part[i][name] for part in parts], axis=-1) for name in parts[0][i]}
        for i in (0, 1)
    )
    found = {
        f"train_{k}{s}": _compiled()[1](v[i], counts.get(k)) for k, v in values.items() for i, s in ITERATES
    }
    for name, examples in sets.items():
        found |= _compiled()[2](metrics, some, name, examples, both)
    means, known = (np.concatenate([part[i] for part in parts]) for i in (2, 3))
    return {name: float(value) for name, value in found.items()} | by_client(metrics.all, means, known > 0)


@cache
def _compiled() -> tuple[Any, Any, Any]:
    options = compiler_options()
    return (
        jax.jit(of_clients, static_argnums=0, compiler_options=options),
        jax.jit(pooled, compiler_options=options),
        jax.jit(held_out, static_argnums=(0, 2), compiler_options=options),
    )
