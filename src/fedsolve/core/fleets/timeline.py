"""What a fleet does over time, server update by server update: who came, who was waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Tasks:
    """The first tasks of a run, one row each, for plots: all of shape (tasks,).

    Attributes:
        client: who.
        update: the server update (from 0) that used the message or closed without it, -1 of who is at work at the end.
        begin: when the model was sent to it.
        due: when its message is there, or would have been.
        end: when the server went on: it used the message, or closed the round without it; at the latest the end.
        counts: whether the message was used.
    """

    client: np.ndarray
    update: np.ndarray
    begin: np.ndarray
    due: np.ndarray
    end: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True, eq=False)
class Timeline:
    """A run's server updates on the clock.

    Attributes:
        fleet: the name of the fleet.
        time: seconds since the start at which each update is done, shape (updates,).
        asked: clients that were sent the model since the update before, shape (updates,).
        waited: mean share of an update's time that its messages waited for the last of them, shape (updates,).
        tasks: the first of them.
        joules: what its tasks took, shape (updates,); None where the fleet says nothing of energy.
        ids: who counts in each update, shape (updates, size), padded with 0; None where cohorts are as drawn.
        present: which of `ids` are no padding.
        versions: updates that were done when each of `ids` was sent the model; None where all had the newest.
    """

    fleet: str
    time: np.ndarray
    asked: np.ndarray
    waited: np.ndarray
    tasks: Tasks
    joules: np.ndarray | None = None
    ids: np.ndarray | None = None
    present: np.ndarray | None = None
    versions: np.ndarray | None = None

    def at(self, update: int) -> dict[str, float]:
        """Seconds since the start after so many updates, and the joules by then, as an evaluation's columns.

        Args:
            update: updates done, at least 0.

        Returns:
            `time` in seconds and, where the fleet has rates of energy, `energy` in joules.
        """
        columns = {"time": float(self.time[update - 1]) if update else 0.0}
        if self.joules is not None:
            columns["energy"] = float(self.joules[:update].sum())
        return columns
