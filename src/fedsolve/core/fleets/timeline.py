"""What a fleet does over time, server update by server update, and synchronous rounds on the clock.

A round lasts as long as the slowest client that it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.core.fleets.fleet import Fleet

SHOWN = 400
"""Tasks that are kept for plots."""
_MOST = 10**8  # places in the written cohorts of a run


@dataclass(frozen=True, eq=False)
class Tasks:
    """The first client tasks of a run in simulated time, for plots; all arrays have shape (tasks,).

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
    """A run's server updates in simulated time.

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
        names: of all clients, for plots; () where they have none.
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
    names: Sequence[str] = ()

    def at(self, update: int) -> dict[str, float]:
        """The seconds and joules from the start to each of these updates, as columns of an evaluation.

        Args:
            update: updates done, at least 0.

        Returns:
            `time` in seconds and, where the fleet has rates of energy, `energy` in joules.
        """
        columns = {"time": float(self.time[update - 1]) if update else 0.0}
        if self.joules is not None:
            columns["energy"] = float(self.joules[:update].sum())
        return columns


def synchronous(
    fleet: Fleet,
    seconds: np.ndarray,
    draw: Callable[[int, np.ndarray | None], np.ndarray],
    updates: int,
    seed: int,
    *,
    size: int,
    quorum: int | None = None,
    deadline: float | None = None,
    joules: np.ndarray | None = None,
) -> Timeline:
    """All rounds of a run.

    A round ends when `quorum` messages have come, when all whom it asked are due, or at the `deadline`, whichever is
    first. Who has not sent by then is told to stop and counts as absent; its energy is the share of its task's that its
    time is. Who drops out takes all of it.

    Args:
        fleet: who is there when, and drops out how often.
        seconds: of a task of each client, shape (clients,).
        draw: (round, who is there or None) -> the clients that the round asks.
        updates: rounds.
        seed: of who drops out, and of the jitter.
        size: clients that a round asks at most.
        quorum: messages that end a round; None waits for all.
        deadline: seconds after which a round ends in any case; None for none.
        joules: of a task of each client, shape (clients,); None if nothing is known of them.

    Raises:
        InvalidInput: a quorum above the cohort, or more cohorts than memory holds.
    """
    if quorum is not None and quorum > size:
        raise InvalidInput(f"quorum = {quorum} but a round asks {size} clients: choose at most {size}")
    # without any of these every client that a round asks is heard, so that the run's own sampling says who takes part
    acts = quorum is not None or deadline is not None or fleet.available is not None or fleet.dropout.any()
    width = min(size, quorum or size)
    if acts:
        check_places(updates, width)
    # cohorts have as many columns as messages can end a round; those that fewer clients fill are marked absent
    time, asked, waited, spent = (np.zeros(updates, kind) for kind in (float, np.int64, float, float))
    ids = np.zeros((updates if acts else 0, width), np.int32)
    present = np.zeros(ids.shape, bool)
    rows: list[tuple[int, int, float, float, float, bool]] = []
    now = 0.0
    for t in range(updates):
        now, there = _somebody(fleet, now)
        cohort = np.asarray(draw(t, there))
        longer = _longer(fleet, cohort, (seed, 0x71773, t))
        durations = seconds[cohort] * longer
        lost = np.random.default_rng((seed, 0xD209, t)).random(len(cohort)) < fleet.dropout[cohort]
        end = _length(durations, lost, quorum, deadline)
        arrived = np.flatnonzero(~lost & (durations <= end))
        if quorum is not None and len(arrived) > quorum:  # several came at the very end
            arrived = np.sort(arrived[np.argsort(durations[arrived], kind="stable")[:quorum]])
        if len(rows) < SHOWN:
            counts = np.isin(np.arange(len(cohort)), arrived)
            rows += [
                (int(c), t, now, now + d, now + end, bool(k))
                for c, d, k in zip(cohort, durations, counts, strict=True)
            ]
        waited[t] = np.mean(1 - durations[arrived] / end) if len(arrived) else 0.0
        if acts:
            ids[t, : len(arrived)], present[t, : len(arrived)] = cohort[arrived], True
        if joules is not None:
            spent[t] = np.sum(joules[cohort] * longer * np.minimum(1, end / durations))
        now += end
        time[t], asked[t] = now, len(cohort)
    written = (ids, present) if acts else (None, None)
    energy = None if joules is None else spent
    return Timeline(fleet.name, time, asked, waited, as_tasks(rows), energy, *written)


def _longer(fleet: Fleet, cohort: np.ndarray, seed: tuple[int, ...]) -> np.ndarray:
    """How many times as long as on average the tasks of a cohort take."""
    return np.exp(fleet.jitter[cohort] * np.random.default_rng(seed).standard_normal(len(cohort)))


def check_places(updates: int, places: int) -> None:
    """Raise `InvalidInput` if so many updates of so many clients are more than may be written down."""
    if updates * places > _MOST:
        raise InvalidInput(
            f"{updates:,} rounds of {places:,} clients that are chosen by the clock are more than {_MOST:,} places: "
            "take fewer rounds"
        )


def _somebody(fleet: Fleet, now: float) -> tuple[float, np.ndarray | None]:
    """The time from which on somebody can be asked, and who."""
    there = fleet.there(now)
    while there is not None and not there.any():
        now = fleet.next_slot(now)
        there = fleet.there(now)
    return now, there


def _length(own: np.ndarray, lost: np.ndarray, quorum: int | None, deadline: float | None) -> float:
    """Seconds of a round whose clients are due after `own`."""
    came = np.sort(own[~lost])
    end = float(own.max(initial=0.0))
    if quorum is not None and len(came) >= quorum:
        end = float(came[quorum - 1])
    return end if deadline is None else min(end, deadline)


def as_tasks(rows: list[tuple[int, int, float, float, float, bool]]) -> Tasks:
    """Rows (client, update, begin, due, end, counts) as columns, the first `SHOWN` of them."""
    columns = list(zip(*rows[:SHOWN], strict=True)) or [()] * 6
    kinds = (np.int64, np.int64, float, float, float, bool)
    return Tasks(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))
