"""The clients that a model is evaluated on: all on the device, or a block of whole clients after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.types import Batch, Params, module, replace, static
from fedsolve.data.federated import FederatedData
from fedsolve.engine.compute.clients import Loss, PackedClients, Window, pack
from fedsolve.engine.streaming import WINDOW_BYTES, Packer, Population, in_background, padded, row_bytes

ROWS_AT_ONCE = 512
"""Examples that a small model sees at once."""
_FACTS = 16  # bytes of a client beside its examples and its state


@module
class EvalClients:
    """Clients on the device with the examples that they are evaluated on.

    `ids` are their numbers in the population, ascending; `rows` are the examples of the one with most.
    """

    packed: PackedClients
    ids: Any
    rows: int = static()

    @property
    def frozen(self) -> Params:
        return self.packed.frozen

    @classmethod
    def of(cls, packed: PackedClients, ids: np.ndarray) -> EvalClients:
        return cls(packed, ids, int(np.asarray(packed.counts).max()))

    @classmethod
    def of_data(
        cls, data: FederatedData, ids: np.ndarray, loss: Loss, dtype: Any, frozen: Params
    ) -> EvalClients:
        work = {"batch_size": None, "epochs": 1, "local_steps": None}
        return cls.of(pack(data, loss, dtype, **work, frozen=frozen)[0], ids)

    @classmethod
    def by_owner(cls, examples: Batch, owners: np.ndarray, frozen: Params) -> EvalClients:
        """Examples with the number of each one's owner, shape (examples,)."""
        in_order, ids, counts = _ordered_by_owner(examples, owners)
        offsets, counts, steps = (
            jnp.asarray(a, jnp.int32) for a in (np.cumsum(counts) - counts, counts, np.zeros_like(counts))
        )
        return cls.of(PackedClients(in_order, offsets, counts, steps, frozen), ids)


class Block(NamedTuple):
    """Clients that are evaluated together; places beyond those of `clients.ids` are nobody's.

    `train`: the `PackedClients` of what they train on, these or all, None if they do not; `slots`: their places
    there.
    """

    clients: EvalClients
    train: Any = None
    slots: Any = None


@dataclass(frozen=True)
class Blocks:
    """Clients as blocks of one shape.

    `trained` is the population whose examples they train on before, None if they do not; `state_bytes` is what a
    client's own state takes, 0 where it is not asked for; `cuts` are the places of each block's first client, and
    their number.
    """

    evaluated: Population
    ids: np.ndarray
    state_bytes: int
    trained: Population | None
    cuts: tuple[int, ...]

    @classmethod
    def of(
        cls,
        evaluated: Population,
        ids: np.ndarray | None = None,
        state_bytes: int = 0,
        trained: Population | None = None,
    ) -> Blocks:
        """Blocks of about the size of a window; of all clients where no `ids` are given."""
        ids = np.arange(evaluated.data.num_clients) if ids is None else ids
        row = row_bytes(evaluated.data, evaluated.dtype)
        size = evaluated.data.counts * row + (_FACTS + state_bytes)
        if trained is not None and trained is not evaluated:
            size += trained.data.counts[ids] * row
        ends, room = np.cumsum(size), max(WINDOW_BYTES, ROWS_AT_ONCE * row)
        cuts = [0]
        while cuts[-1] < len(ends):
            before = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
            cuts.append(max(cuts[-1] + 1, int(np.searchsorted(ends, before + room, side="right"))))
        return cls(evaluated, ids, state_bytes, trained, tuple(cuts))

    @classmethod
    def by_owner(
        cls, population: Population, examples: Batch, owners: np.ndarray, state_bytes: int
    ) -> Blocks:
        """Clients of a population with other examples, each of which has the number of its owner."""
        in_order, ids, counts = _ordered_by_owner(examples, owners)
        data = FederatedData(in_order, counts)
        return cls.of(replace(population, data=data, steps=np.ones_like(counts)), ids, state_bytes)

    @property
    def frozen(self) -> Params:
        return self.evaluated.frozen

    def __iter__(self) -> Iterator[Block]:
        # each block; the next one is read meanwhile
        spans = [np.arange(a, b) for a, b in pairwise(self.cuts)]
        evaluated, trained = self.evaluated.data, self.trained
        slots = max(map(len, spans)) + 1  # one that nobody takes: what pads the rows is its
        rows = max(int(evaluated.counts[span].sum()) for span in spans)
        packers = [Packer(self.evaluated, slots, max(rows, min(ROWS_AT_ONCE, evaluated.num_examples)))]
        if trained is not None and trained is not self.evaluated:
            most = max(int(trained.data.counts[self.ids[span]].sum()) for span in spans)
            packers.append(Packer(trained, slots, most))
        following = in_background(self._read, packers, spans[0])
        for i in range(len(spans)):
            block = following.result()
            if i + 1 < len(spans):
                following = in_background(self._read, packers, spans[i + 1])
            yield block

    def _read(self, packers: list[Packer], span: np.ndarray) -> Block:
        ids, slots = self.ids[span], packers[0].slots
        with jax.enable_x64(self.evaluated.dtype == jnp.float64):
            packed = packers[0].pack(span)
            clients = EvalClients(packed, ids, int(self.evaluated.data.counts.max()))
            if self.trained is None:
                return Block(clients)
            train = packed if len(packers) == 1 else packers[1].pack(ids)
            window = Window.of_no_round(padded(slots, ids), self.trained.data.num_clients)
            return Block(clients, replace(train, window=window), np.arange(slots))


def _ordered_by_owner(examples: Batch, owners: np.ndarray) -> tuple[Batch, np.ndarray, np.ndarray]:
    # examples owner after owner, the owners' numbers, ascending, and how many examples each has
    order = np.argsort(owners, kind="stable")
    return jax.tree.map(lambda a: a[order], examples), *np.unique(owners, return_counts=True)
