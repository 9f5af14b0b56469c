"""What a partition is: a seeded rule that gives every client the rows it owns. It stands apart so that
`partitions` and `pachinko` can share it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.data.names import check_column


class Partition(ABC):
    """Base class of partitions, which assign examples to clients; equal rules and seeds give equal results.

    Attributes:
        name: what `PARTITIONS` and a configuration call it.
        summary: one line for `fedsolve list partitions`.
        citation: key of the paper it comes from.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    citation: ClassVar[str]

    @abstractmethod
    def __call__(self, labels: Any, num_clients: int, seed: int = 0) -> list[np.ndarray]:
        """Assign examples to clients: row numbers that are ascending and disjoint, at least one for each client.

        Args:
            labels: one for each example, shape (examples,), of one type; none may be missing.
            num_clients: clients to deal to, at most one for each example.
            seed: of NumPy's default generator, >= 0.

        Returns:
            For each client integers (n_i,), n_i at least 1.

        Raises:
            InvalidInput: a request that the rule cannot meet.
        """


def begin(labels: Any, num_clients: int, seed: int) -> tuple[np.ndarray, int, np.random.Generator]:
    """The checked labels and number of clients, and the random generator of the seed."""
    column = check_column("labels", labels)
    clients = check_integer("num_clients", num_clients, 1)
    if clients > len(column):
        raise InvalidInput(
            f"num_clients = {clients} is more than the {len(column)} examples: give at most {len(column)}"
        )
    return column, clients, np.random.default_rng(check_integer("seed", seed))


def finish(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Rows of each client in ascending order, as int64."""
    return [np.sort(np.asarray(part, np.int64)) for part in parts]


def fill_empty(parts: Sequence[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """Give every empty client one example, drawn from the client that has most (the first of equals)."""
    filled = [np.asarray(part, np.int64) for part in parts]
    sizes = np.array([len(part) for part in filled])
    for i in np.flatnonzero(sizes == 0):
        giver = int(np.argmax(sizes))
        row = int(rng.integers(sizes[giver]))
        filled[i] = filled[giver][row : row + 1]
        filled[giver] = np.delete(filled[giver], row)
        sizes[i], sizes[giver] = 1, sizes[giver] - 1
    return filled
