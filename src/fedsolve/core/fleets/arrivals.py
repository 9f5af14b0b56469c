"""The order in which the replies of an asynchronous run arrived, written down: a trace that a run can repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.core.fleets.timeline import Timeline, as_tasks


@dataclass(frozen=True, eq=False, kw_only=True)
class Arrivals:
    """Order of arrivals in an asynchronous run: whose replies each server update took, as on a real federation.

    In place of a fleet in `fs.run(systems=...)` it says who takes part and how late each reply is. A client's
    randomness then follows from the update whose model it was sent, as in a deployment, where nobody knows when it
    replies.

    Args:
        population: number of clients.
        clients: the numbers of the clients of each update, shape (updates, buffer), each at most once in a row.
        versions: server updates done when each of them was sent the model, shape (updates, buffer): at most the number
            of the row, and more than the last row that the client is in.
        seconds: from the start to each update, not decreasing, shape (updates,); None for the number of updates done.

    Raises:
        InvalidInput: a shape, a client or a version that cannot be.

    >>> Arrivals(population=3, clients=[[0, 1], [2, 0]], versions=[[0, 0], [0, 1]]).updates
    2
    """

    population: int
    clients: Any
    versions: Any
    seconds: Any = None

    def __post_init__(self) -> None:
        clients, versions = (_whole_numbers(name, getattr(self, name)) for name in ("clients", "versions"))
        if clients.ndim != 2 or not clients.size or clients.shape != versions.shape:
            raise InvalidInput(
                f"clients and versions have shapes {clients.shape} and {versions.shape}: both must be (updates, buffer)"
            )
        seconds = (
            np.arange(1.0, len(clients) + 1) if self.seconds is None else np.asarray(self.seconds, float)
        )
        if seconds.shape != clients.shape[:1] or not (np.diff(seconds, prepend=0.0) >= 0).all():
            raise InvalidInput(f"seconds must be {len(clients)} numbers from 0 that do not decrease")
        last = np.full(self.population, -1)
        for t, (row, began) in enumerate(zip(clients, versions, strict=True)):
            if row.min() < 0 or row.max() >= self.population or len(np.unique(row)) < len(row):
                raise InvalidInput(
                    f"clients of update {t + 1} are {row.tolist()}: each must be in 0 .. {self.population - 1}, at "
                    "most once"
                )
            if (began <= last[row]).any() or began.max() > t:
                raise InvalidInput(
                    f"versions of update {t + 1} are {began.tolist()}: each must be at most {t}, and above the update "
                    "that used the client's last reply"
                )
            last[row] = t
        for name, array in (("clients", clients), ("versions", versions), ("seconds", seconds)):
            object.__setattr__(self, name, array)

    @property
    def updates(self) -> int:
        """Server updates."""
        return len(self.clients)

    def timeline(self, updates: int) -> Timeline:
        """The first updates, the clients of each in the order of their numbers, as a deployment sums them.

        Args:
            updates: how many, 1 .. `updates`.

        Returns:
            Their timeline, with the clients of each update and the versions that they began with.

        Raises:
            InvalidInput: there are not so many.
        """
        if updates > self.updates:
            raise InvalidInput(
                f"rounds = {updates} but the arrivals are of {self.updates} updates: give fewer"
            )
        clients, versions, seconds = (x[:updates] for x in (self.clients, self.versions, self.seconds))
        order = np.argsort(clients, axis=1)
        ids, began = (np.take_along_axis(x, order, axis=1).astype(np.int32) for x in (clients, versions))
        starts = np.concatenate([[0.0], seconds])
        rows = [
            (int(client), t, float(starts[version]), float(seconds[t]), float(seconds[t]), True)
            for t in range(updates)
            for client, version in zip(ids[t], began[t], strict=True)
        ]
        asked = np.full(updates, ids.shape[1])
        return Timeline(
            "arrivals", seconds, asked, np.zeros(updates), as_tasks(rows), None, ids, np.ones(ids.shape, bool), began
        )  # fmt: skip


def _whole_numbers(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise InvalidInput(f"{name} must be whole numbers of shape (updates, buffer)")
    return array.astype(np.int64)
