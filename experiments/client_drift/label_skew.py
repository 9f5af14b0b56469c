"""Digits dealt by label: clients of equal size, each with class shares drawn from Dirichlet(alpha)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.data import Partition
from fedsolve.studies.public import begin, finish


@dataclass(frozen=True)
class EqualDirichlet(Partition):
    """Each client draws its shares of the classes from Dirichlet(alpha), and by them its examples, equally many
    (Hsu et al. 2019); of a class that is used up nothing more is drawn. Fewer examples than clients are left over.

    So alpha changes the labels alone, and not the sizes of the clients.
    """

    alpha: float

    name = "equal-dirichlet"
    summary = "class shares of each client drawn from Dirichlet(alpha), equal sizes"
    citation = "hsu2019fedavgm"

    def __call__(self, labels: Any, num_clients: int, seed: int = 0) -> list[np.ndarray]:
        """See `Partition`."""
        column, clients, rng = begin(labels, num_clients, seed)
        left = [rng.permutation(np.flatnonzero(column == label)).tolist() for label in np.unique(column)]
        parts = []
        for _ in range(clients):
            shares = rng.dirichlet(np.full(len(left), self.alpha))
            parts.append([self._draw(left, shares, rng) for _ in range(len(column) // clients)])
        return finish(parts)

    def _draw(self, left: list[list[int]], shares: np.ndarray, rng: np.random.Generator) -> int:
        there = np.array([len(rows) > 0 for rows in left])
        chances = np.where(there, shares, 0.0)
        chances = chances if chances.sum() > 0 else there.astype(float)
        return left[rng.choice(len(left), p=chances / chances.sum())].pop()


@lru_cache(maxsize=20)
def digits(alpha: float, clients: int, seed: int) -> fs.Task:
    """8x8 digits, softmax regression from zero, without a test set: what is compared is the training loss.

    Args:
        alpha: concentration of each client's class shares, > 0.
        clients: all of 1,438 // clients examples.
        seed: of the deal, and of which fifth is held out.
    """
    return replace(fs.tasks.digits(clients, EqualDirichlet(alpha), "softmax", seed), test=None)
