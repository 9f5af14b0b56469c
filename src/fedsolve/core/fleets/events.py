"""Asynchronous work on the clock: clients come and go, and the server updates whenever its buffer is full.

The order of events depends on no value of the model: it is worked out here, event by event.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.core.fleets.fleet import Fleet
from fedsolve.core.fleets.timeline import SHOWN, Timeline, as_tasks, check_places

_NOBODY = -1


def asynchronous(
    fleet: Fleet,
    seconds: np.ndarray,
    updates: int,
    seed: int,
    *,
    buffer: int,
    concurrency: int,
    joules: np.ndarray | None = None,
) -> Timeline:
    """All server updates of a run.

    `concurrency` clients are at work at any time, as far as there are so many who can be asked. As soon as one is due,
    another takes its place, drawn uniformly among those who are there, are not at work and have no message in the
    buffer. When `buffer` messages have come the server updates; who is asked next has the new model.

    Args:
        fleet: who is there when, and drops out how often.
        seconds: of a task of each client, shape (clients,).
        updates: of the server.
        seed: of who is asked, who drops out, and of the jitter.
        buffer: messages of an update.
        concurrency: clients at work at a time.
        joules: of a task of each client, shape (clients,), counted when it ends; None if nothing is known of them.

    Raises:
        InvalidInput: a buffer above the number of clients, which have one message in it each, or more messages
            than memory holds.
    """
    check_places(updates, buffer)
    if buffer > fleet.clients:
        raise InvalidInput(
            f"buffer = {buffer} but there are {fleet.clients} clients: choose at most {fleet.clients}"
        )
    run = _Run(
        fleet, seconds, seed, buffer, concurrency, np.zeros(fleet.clients) if joules is None else joules
    )
    return run.until(updates, joules is not None)


class _Run:
    """Where the clock stands: who is at work, whose messages lie in the buffer, who is idle."""

    def __init__(
        self,
        fleet: Fleet,
        seconds: np.ndarray,
        seed: int,
        buffer: int,
        concurrency: int,
        joules: np.ndarray,
    ) -> None:
        self.fleet, self.random = fleet, _uniform(np.random.default_rng((seed, 0xB0FFE2)))
        self.normal = _normal(np.random.default_rng((seed, 0x71773)))
        self.buffer, self.concurrency = buffer, concurrency
        # lists: an event looks at single numbers, which arrays are slow at
        self.seconds, self.joules = seconds.tolist(), joules.tolist()
        self.dropout, self.jitter = fleet.dropout.tolist(), fleet.jitter.tolist()
        self.idle = list(range(fleet.clients))
        # due, number of the task, client, version, how many times as long as on average it takes
        self.events: list[tuple[float, int, int, int, float]] = []
        self.begun: list[tuple[int, float, float]] = []  # client, beginning and end of the first tasks
        self.ended: dict[int, tuple[int, float, bool]] = {}  # their update, its time, whether they count
        self.now, self.working, self.asked, self.done = 0.0, 0, 0, 0
        self.waking, self.spent = -1.0, 0.0

    def until(self, updates: int, counts_energy: bool) -> Timeline:
        time, asked, waited, spent = (np.zeros(updates, kind) for kind in (float, np.int64, float, float))
        ids, versions = (np.zeros((updates, self.buffer), np.int32) for _ in range(2))
        counted = 0
        for t in range(updates):
            arrived = self._messages(self.buffer)
            due, tasks, clients, begun, _ = zip(*arrived, strict=True)
            ids[t], versions[t] = clients, begun
            time[t], asked[t] = self.now, self.asked - counted
            length = self.now - (time[t - 1] if t else 0.0)
            waited[t] = float(np.mean(self.now - np.array(due))) / length if length > 0 else 0.0
            spent[t], self.spent = self.spent, 0.0
            counted, self.done = self.asked, t + 1
            if min(tasks) < SHOWN:
                self.ended |= {n: (t, self.now, True) for n in tasks if n < SHOWN}
            self.idle += clients
        self._messages(0)  # who is asked with the last model
        rows = [
            (client, update, begin, due, end, counts)
            for n, (client, begin, due) in enumerate(self.begun)
            for update, end, counts in [self.ended.get(n, (-1, self.now, False))]
        ]
        everybody = np.ones(ids.shape, bool)
        energy = spent if counts_energy else None
        return Timeline(
            self.fleet.name, time, asked, waited, as_tasks(rows), energy, ids, everybody, versions
        )

    def _messages(self, wanted: int) -> list[tuple[float, int, int, int, float]]:
        """So many messages; the clock then stands where the last of them came. Before each, clients are asked.

        Local names are twice as fast as attributes, and this is all that a run's order of events costs.
        """
        arrived: list[tuple[float, int, int, int, float]] = []
        events, idle, uniform = self.events, self.idle, self.random
        always, concurrency, done = self.fleet.available is None, self.concurrency, self.done
        seconds, jitter, dropout, joules = self.seconds, self.jitter, self.dropout, self.joules
        now, asked, working = self.now, self.asked, self.working
        while True:
            there = None if always else self.fleet.there(now)
            while working < concurrency and idle:
                at = int(next(uniform) * len(idle)) if there is None else self._choose(there)
                if at is None:
                    self._wake_at(self.fleet.next_slot(now))
                    break
                client, last = idle[at], idle.pop()
                if at < len(idle):
                    idle[at] = last
                longer = math.exp(jitter[client] * next(self.normal)) if jitter[client] else 1.0
                due = now + seconds[client] * longer
                if asked < SHOWN:
                    self.begun.append((client, now, due))
                heappush(events, (due, asked, client, done, longer))
                asked, working = asked + 1, working + 1
            if len(arrived) == wanted:
                break
            event = heappop(events)
            now, task, client, _, longer = event
            if client != _NOBODY:
                working -= 1
                self.spent += joules[client] * longer
                if dropout[client] and next(uniform) < dropout[client]:
                    idle.append(client)
                    if task < SHOWN:
                        self.ended[task] = (done, now, False)
                else:
                    arrived.append(event)
                    if len(arrived) == wanted:
                        break
        self.now, self.asked, self.working = now, asked, working
        return arrived

    def _wake_at(self, slot: float) -> None:
        """Look again then who is there."""
        if slot > self.waking:
            heappush(self.events, (slot, -1, _NOBODY, 0, 1.0))
            self.waking = slot

    def _choose(self, there: np.ndarray) -> int | None:
        """The place among the idle of one who is there, None if nobody is."""
        free = np.flatnonzero(there[self.idle])
        return int(free[int(next(self.random) * len(free))]) if len(free) else None


def _uniform(random: np.random.Generator) -> Iterator[float]:
    """Numbers of [0, 1), one after another."""
    while True:
        yield from random.random(4096).tolist()


def _normal(random: np.random.Generator) -> Iterator[float]:
    """Standard normal numbers, one after another."""
    while True:
        yield from random.standard_normal(4096).tolist()
