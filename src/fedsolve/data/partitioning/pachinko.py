"""Pachinko allocation over a hierarchy of labels (Reddi et al. 2021, the federated CIFAR-100).

It stands apart because it alone draws examples one by one and alone needs a second label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput, check_integer, check_number
from fedsolve.data.names import check_column
from fedsolve.data.partitioning.partition import Partition, begin, finish


@dataclass(frozen=True)
class Pachinko(Partition):
    """Pachinko allocation (Reddi et al. 2021): each client draws coarse label, fine label and example in turn.

    Examples are drawn without replacement, client by client.

    Each client draws p ~ Dirichlet(coarse_alpha) over the coarse labels and, below each of them,
    q ~ Dirichlet(fine_alpha) over its fine labels. An example takes a coarse label by p, a fine label by q
    and then any unused example; a label without unused examples is taken out and the rest renormalised.
    Rows left over are not used.

    Attributes:
        coarse_alpha: > 0, 0.1 in the paper.
        fine_alpha: > 0, 10 in the paper.
        per_client: examples of a client; None for examples // num_clients (100 of 50,000 in the paper); at least 1.

    Raises:
        InvalidInput: an alpha out of its range, a per_client that is no integer from 1.
    """

    coarse_alpha: float = 0.1
    fine_alpha: float = 10.0
    per_client: int | None = None

    name = "pachinko"
    summary = "hierarchical Dirichlet over coarse and fine labels, equal sizes, without replacement"
    citation = "reddi2021fedopt"

    def __post_init__(self) -> None:
        check_number("coarse_alpha", self.coarse_alpha, above=0, at_most=1e6)
        check_number("fine_alpha", self.fine_alpha, above=0, at_most=1e6)
        if self.per_client is not None:
            check_integer("per_client", self.per_client, 1)

    def __call__(
        self, labels: Any, num_clients: int, seed: int = 0, *, coarse: Any = None
    ) -> list[np.ndarray]:
        """See `Partition`; `coarse` is the coarse label of each example, shape (examples,)."""
        column, clients, rng = begin(labels, num_clients, seed)
        each = len(column) // clients if self.per_client is None else self.per_client
        if each * clients > len(column):
            raise InvalidInput(
                f"{clients} clients of per_client = {each} need {each * clients} examples, "
                f"there are {len(column)}: give fewer"
            )
        fine, parents = _hierarchy(column, coarse)
        pools = [list(rng.permutation(np.flatnonzero(fine == f))) for f in range(len(parents))]
        return finish([self._draw(pools, parents, each, rng) for _ in range(clients)])

    def _draw(
        self, pools: list[list[int]], parents: np.ndarray, each: int, rng: np.random.Generator
    ) -> np.ndarray:
        """The rows of one client; they are taken out of the pools."""
        children = [np.flatnonzero(parents == c) for c in range(int(parents.max()) + 1)]
        p = rng.dirichlet(np.full(len(children), float(self.coarse_alpha)))
        q = [rng.dirichlet(np.full(len(below), float(self.fine_alpha))) for below in children]
        left = np.array([len(pool) for pool in pools])
        rows = []
        for _ in range(each):
            c = _choose(p, np.bincount(parents, weights=left), rng)
            f = children[c][_choose(q[c], left[children[c]], rng)]
            rows.append(pools[f].pop())
            left[f] -= 1
        return np.array(rows)


def _choose(weights: np.ndarray, left: np.ndarray, rng: np.random.Generator) -> int:
    """An index with something left, by its weight; any of them if their weights have underflowed."""
    cumulative = np.cumsum(np.where(left > 0, weights, 0.0))
    if not cumulative[-1] > 0:
        cumulative = np.cumsum(left > 0, dtype=float)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def _hierarchy(labels: np.ndarray, coarse: Any) -> tuple[np.ndarray, np.ndarray]:
    """Fine label of each example and coarse label of each fine label, both numbered from 0."""
    if coarse is None:
        raise InvalidInput("the partition pachinko needs the coarse labels: give coarse=, shape (examples,)")
    column = check_column("coarse labels", coarse)
    if len(column) != len(labels):
        raise InvalidInput(f"{len(column)} coarse labels for {len(labels)} examples: give one each")
    names, fine = np.unique(labels, return_inverse=True)
    above = np.unique(column, return_inverse=True)[1]
    parents = np.zeros(len(names), np.int64)
    parents[fine] = above
    if (parents[fine] != above).any():
        bad = int(np.argmax(parents[fine] != above))
        raise InvalidInput(
            f"label {labels[bad]} of row {bad} has two coarse labels: give each label the same one everywhere"
        )
    return fine, parents
