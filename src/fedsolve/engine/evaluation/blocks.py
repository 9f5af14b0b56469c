"""Clients that are evaluated while they are not all on the device: a block of whole clients after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.types import Batch, replace
from fedsolve.data.federated import FederatedData
from fedsolve.engine.evaluation.personal_eval import Owned, ordered_by_owner
from fedsolve.engine.streaming.background import in_background
from fedsolve.engine.streaming.population import WINDOW_BYTES, Packer, Population, padded, row_bytes
from fedsolve.engine.streaming.window import Window

ROWS_AT_ONCE = 512
"""Examples that a small model sees at once."""
_FACTS = 16  # bytes of a client beside its examples and its state


class Block(NamedTuple):
    """Clients that are evaluated together.

    Attributes:
        owned: the examples that they are evaluated on; places beyond those of `owned.ids` are nobody's.
        train: the `PackedClients` of what they train on, these clients or all; None if they do not.
        slots: the place of each client there, of as many places as `owned` has.
    """

    owned: Owned
    train: Any = None
    slots: Any = None


@dataclass(frozen=True)
class Blocks:
    """Clients as blocks of one shape.

    Attributes:
        evaluated: the examples that they are evaluated on.
        ids: their numbers in the population, ascending; None if they are all.
        state_bytes: what a client's own state takes, 0 where it is not asked for.
        trained: the population, whose examples they train on before; None if they do not.
        cuts: places of the first client of each block, and their number.
    """

    evaluated: Population
    ids: np.ndarray | None
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
        """Blocks of about the size of a window."""
        row = row_bytes(evaluated.data, evaluated.dtype)
        size = evaluated.data.counts * row + (_FACTS + state_bytes)
        if trained is not None and trained is not evaluated:
            size += trained.data.counts[_numbers(ids, evaluated)] * row
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
        in_order, ids, counts = ordered_by_owner(examples, owners)
        data = FederatedData(in_order, counts)
        return cls.of(replace(population, data=data, steps=np.ones_like(counts)), ids, state_bytes)

    def after_training(self, population: Population) -> Blocks:
        """The same clients with the examples of theirs in a population."""
        return Blocks.of(self.evaluated, self.ids, self.state_bytes, population)

    def __iter__(self) -> Iterator[Block]:
        """Each block; the next one is read meanwhile."""
        spans = [np.arange(a, b) for a, b in pairwise(self.cuts)]
        evaluated, trained, numbers = self.evaluated.data, self.trained, _numbers(self.ids, self.evaluated)
        places = max(map(len, spans)) + 1  # one that nobody takes: what pads the rows is its
        rows = max(int(evaluated.counts[span].sum()) for span in spans)
        packers = [Packer(self.evaluated, places, max(rows, min(ROWS_AT_ONCE, evaluated.num_examples)))]
        if trained is not None and trained is not self.evaluated:
            most = max(int(trained.data.counts[numbers[span]].sum()) for span in spans)
            packers.append(Packer(trained, places, most))
        following = in_background(self._block, packers, spans[0], numbers)
        for i in range(len(spans)):
            block = following.result()
            if i + 1 < len(spans):
                following = in_background(self._block, packers, spans[i + 1], numbers)
            yield block

    def _block(self, packers: list[Packer], clients: np.ndarray, numbers: np.ndarray) -> Block:
        ids, places = numbers[clients], packers[0].places
        with jax.enable_x64(self.evaluated.dtype == jnp.float64):
            packed = packers[0].pack(clients)
            owned = Owned(packed, ids, int(self.evaluated.data.counts.max()))
            if self.trained is None:
                return Block(owned)
            train = packed if len(packers) == 1 else packers[1].pack(ids)
            window = Window.of_no_round(padded(places, ids), self.trained.data.num_clients)
            return Block(owned, replace(train, window=window), np.arange(places))


def _numbers(ids: np.ndarray | None, evaluated: Population) -> np.ndarray:
    return np.arange(evaluated.data.num_clients) if ids is None else ids
