"""Clients grouped by size: what a compiled round keeps for a client has one length for all of a group.

Padded to the largest of all, every client would draw as long an order, and see as large a batch where it sees all of
its examples at once. Whatever the group, minibatches and their arithmetic stay the same; a batch of everything is
shorter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsolve.engine.compute.clients import LocalWork

_PADDED_UP_TO = 64  # examples
_WORTH = 4  # a group more is a program more to compile: it must take three quarters of the padding away


@dataclass(frozen=True)
class Group:
    """Clients of a cohort that are trained by one program.

    Attributes:
        work: their local work; its `rows` is the size of the largest.
        chunk: of them trained side by side.
    """

    work: LocalWork
    chunk: int


def group_clients(
    works: tuple[LocalWork, ...], counts: np.ndarray, cohort: float, side_by_side: Callable[..., int]
) -> tuple[Group, ...]:
    """The groups of a round, from the longest clients to the shortest; none if all clients are trained alike.

    Args:
        works: as `works_by_size` gives them.
        counts: examples of each client, shape (clients,).
        cohort: clients of a round on one device, about.
        side_by_side: how many clients train side by side, by the examples of the `largest`.
    """
    if len(works) == 1:
        return ()
    groups = []
    for work, shorter in zip(works, [*(w.rows for w in works[1:]), 0], strict=True):
        members = int(((counts > shorter) & (counts <= work.rows)).sum())
        # as many as nearly every cohort has: two standard deviations beyond the mean
        expected = cohort * members / len(counts)
        wide = min(members, math.ceil(expected + 2 * math.sqrt(expected)))
        groups.append(Group(work, min(side_by_side(largest=work.rows), wide)))
    return tuple(groups)


def works_by_size(work: LocalWork, counts: np.ndarray, steps: np.ndarray) -> tuple[LocalWork, ...]:
    """The local work of clients up to each of a few sizes, the largest first.

    Args:
        work: of all clients together.
        counts, steps: examples and local steps of each client, shape (clients,).
    """
    works, sizes = [], _sizes(counts)
    for size, shorter in zip(sizes, [*sizes[1:], 0], strict=True):
        members = (counts > shorter) & (counts <= size)
        most, passes, batch = int(steps[members].max()), work.passes, work.batch_size
        # a client of one batch has an order of its own for each pass of any
        if passes and counts[members].min() > batch:
            passes = math.ceil((steps[members] / -(-counts[members] // batch)).max())
        works.append(
            dataclasses.replace(
                work, rows=size, max_steps=most, passes=passes, batch_size=batch if work.passes else size
            )
        )
    return tuple(works)


def of_client(works: tuple[LocalWork, ...], count: int) -> LocalWork:
    """The local work of a client with so many examples."""
    return next(work for work in reversed(works) if count <= work.rows)


def _sizes(counts: np.ndarray) -> list[int]:
    """Sizes at which clients are grouped, the largest first: each cut is the one that leaves the least padding."""
    chosen = [int(counts.max())]
    if chosen[0] <= _PADDED_UP_TO:
        return chosen
    sizes, clients = np.unique(counts, return_counts=True)
    while chosen[-1] > _PADDED_UP_TO:
        below = np.cumsum(clients)
        rows = below * sizes + (below[-1] - below) * sizes[-1]
        best = int(rows.argmin())
        if _WORTH * rows[best] > rows[-1]:
            break
        chosen.append(int(sizes[best]))
        sizes, clients = sizes[: best + 1], clients[: best + 1]
    return chosen
