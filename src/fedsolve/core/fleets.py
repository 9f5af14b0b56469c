"""Simulated time: device profiles (speed, links, availability) and the times of a run's rounds.

Times are computed on the host before training: they do not depend on any value of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np

from fedsolve.core.building import Registry
from fedsolve.core.errors import InvalidInput, check_integer, check_number
from fedsolve.core.trees import as_array

__all__ = ["PROFILES", "Fleet", "Profile", "Tasks", "Timeline", "profile"]

# A fleet as data: the speed of each device, its link, what both take, when it is there and how often it drops out.
#
# Fleets by name have the source of their numbers, or the word that they are synthetic.

_ABOVE_ZERO = ("step_seconds", "download", "upload")
_FROM_ZERO = ("latency", "dropout", "jitter", "watts", "download_joules", "upload_joules")
_BELOW = {"dropout": 1, "jitter": 10}
_SYNTHETIC = "synthetic: numbers of no measurement"
_ENERGY: dict[str, Any] = {"watts": 4.0, "download_joules": 1e-6, "upload_joules": 3e-6}
"""A phone's, in magnitude: a watt of its radio at the links' speeds. Not measured either."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Fleet:
    """Device profiles of a task's clients: compute speed, links and availability, by client number.

    A task of a client takes `latency + down / download + steps * step_seconds + up / upload` seconds, with the bytes of
    the method's broadcast and message and the client's own local steps, and `watts * steps * step_seconds +
    download_joules * down + upload_joules * up` joules. With `jitter` each task takes exp(jitter z) times both, z
    standard normal by the run's seed.

    Args:
        clients: how many, those of the task; at least 1.
        step_seconds: of a local step, above 0: one number, or one a client.
        download, upload: bytes a second, above 0: one number, or one a client.
        latency: seconds of a task besides steps and transfers, at least 0: one number, or one a client.
        dropout: chance that a client which was sent the model sends nothing back, in [0, 1): one number, or one a
            client. The server notices when the message would have been there.
        jitter: standard deviation of the logarithm of a task's length, in [0, 10): one number, or one a client.
        watts: of a device that computes, at least 0: one number, or one a client. Where this and the next two are 0
            no energy is recorded.
        download_joules, upload_joules: of a byte, at least 0: one number, or one a client.
        available: who can be asked when: booleans of shape (slots, clients), repeated; None for always.
            Who was asked finishes, whatever the trace says then.
        slot: seconds of a slot of `available`, above 0.
        name: what records call it.

    Raises:
        InvalidInput: a number out of its range (the first client is named), an array of another length, a trace
            in which a client is never there.

    >>> Fleet(clients=2, step_seconds=[0.1, 0.4], download=1e6, upload=1e6).task_seconds([10, 10], 10**6, 10**6)
    array([3., 6.])
    """

    clients: int
    step_seconds: Any
    download: Any
    upload: Any
    latency: Any = 0.0
    dropout: Any = 0.0
    jitter: Any = 0.0
    watts: Any = 0.0
    download_joules: Any = 0.0
    upload_joules: Any = 0.0
    available: Any = None
    slot: float = 3600.0
    name: str = "own fleet"

    def __post_init__(self) -> None:
        check_integer("clients", self.clients, 1)
        for name in (*_ABOVE_ZERO, *_FROM_ZERO):
            object.__setattr__(self, name, self._column(name))
        check_number("slot", self.slot, above=0)
        if self.available is not None:
            object.__setattr__(self, "available", self._trace())

    def task_seconds(self, steps: Any, down: int, up: int, overlap: int = 0) -> np.ndarray:
        """The seconds that each client needs for its local steps, download and upload, shape (clients,).

        Args:
            steps: local steps, one number or one for each client, shape (clients,).
            down: bytes to a client.
            up: bytes from it.
            overlap: local steps of the next round that pass meanwhile, at least 0.

        Returns:
            Seconds, float64 (clients,), without jitter.
        """
        links = self.latency + down / self.download + up / self.upload
        waits = np.maximum(links - np.minimum(overlap, steps) * self.step_seconds, 0)
        return waits + np.asarray(steps) * self.step_seconds

    def task_joules(self, steps: Any, down: int, up: int) -> np.ndarray | None:
        """The joules that each client needs likewise, shape (clients,); None if all power rates are 0.

        Args:
            steps: local steps, one number or one for each client, shape (clients,).
            down: bytes to a client.
            up: bytes from it.

        Returns:
            Joules, float64 (clients,), or None.
        """
        links = down * self.download_joules + up * self.upload_joules
        joules = links + np.asarray(steps) * self.step_seconds * self.watts
        return joules if joules.any() else None

    def there(self, time: float) -> np.ndarray | None:
        """The clients that are available at a time, shape (clients,); None if all clients always are.

        Args:
            time: seconds since the start, at least 0.

        Returns:
            bool (clients,), or None.
        """
        if self.available is None:
            return None
        return self.available[self._slot(time) % len(self.available)]

    def next_slot(self, time: float) -> float:
        """The time at which the next availability slot begins.

        Args:
            time: seconds since the start, at least 0.

        Returns:
            Seconds since the start.
        """
        return (self._slot(time) + 1) * self.slot

    def _slot(self, time: float) -> int:
        """The slot of a time; a beginning that was rounded down is in its own slot."""
        return int(time / self.slot + 1e-9)

    def _column(self, name: str) -> np.ndarray:
        given = as_array(name, getattr(self, name))
        if given.dtype.kind not in "iuf" or given.shape not in ((), (self.clients,)):
            raise InvalidInput(
                f"{name} of shape {given.shape} and type {given.dtype} must be one number, or {self.clients}, "
                "one a client"
            )
        column = np.broadcast_to(given, (self.clients,)).astype(np.float64)
        least, below = name in _FROM_ZERO, _BELOW.get(name, np.inf)
        good = np.isfinite(column) & ((column >= 0) if least else (column > 0)) & (column < below)
        if not good.all():
            first = int(np.argmin(good))
            wanted = f"in [0, {below})" if name in _BELOW else f"finite and {'>=' if least else '>'} 0"
            raise InvalidInput(f"{name} of client {first} is {column[first]:g}: it must be {wanted}")
        return column

    def _trace(self) -> np.ndarray:
        trace = as_array("available", self.available)
        if trace.dtype != bool or trace.ndim != 2 or trace.shape[1] != self.clients or not len(trace):
            raise InvalidInput(
                f"available has shape {trace.shape} and type {trace.dtype}: it must be booleans of shape "
                f"(slots, {self.clients})"
            )
        if not trace.any():
            raise InvalidInput("available: no client is available in any slot, so no round can begin")
        never = np.flatnonzero(~trace.any(axis=0))
        if len(never):
            raise InvalidInput(
                f"available: client {never[0]} is available in no slot ({len(never)} clients are not): remove them "
                "from the data"
            )
        return trace


@dataclass(frozen=True)
class Profile:
    """A named kind of fleet, from which `profile` draws device profiles.

    Attributes:
        make: (clients, random numbers) -> the fleet.
        source: where its numbers come from.
    """

    make: Callable[[int, np.random.Generator], Fleet]
    source: str


def _even(clients: int, random: np.random.Generator) -> Fleet:
    return Fleet(clients=clients, step_seconds=0.05, download=1e6, upload=2.5e5, latency=0.2, **_ENERGY)


def _half_normal(clients: int, random: np.random.Generator) -> Fleet:
    speed = np.abs(random.standard_normal(clients))
    return Fleet(
        clients=clients, step_seconds=0.02 + 0.1 * speed, download=1e6, upload=2.5e5, latency=1 + 10 * speed,
        **_ENERGY,
    )  # fmt: skip


def _stragglers(clients: int, random: np.random.Generator) -> Fleet:
    step, down, up = (np.exp(random.normal(0, sigma, clients)) for sigma in (1.0, 0.8, 0.8))
    return Fleet(
        clients=clients, step_seconds=0.05 * step, download=1e6 / down, upload=2.5e5 / up, latency=0.5,
        dropout=0.05, **_ENERGY,
    )  # fmt: skip


def _diurnal(clients: int, random: np.random.Generator) -> Fleet:
    begins = random.normal(22, 3, clients).round().astype(int) % 24  # most are on the charger at night
    hours = (np.arange(24)[:, None] - begins) % 24
    step = 0.05 * np.exp(random.normal(0, 0.5, clients))
    return Fleet(
        clients=clients, step_seconds=step, download=1e6, upload=2.5e5, latency=1.0, dropout=0.05,
        jitter=0.2, available=hours < 8, slot=3600.0, **_ENERGY,
    )  # fmt: skip


_PROFILES = {
    "even": Profile(_even, f"{_SYNTHETIC}; all clients alike"),
    "half-normal": Profile(
        _half_normal,
        f"{_SYNTHETIC}; spread as |N(0, 1)|, the law of training times that Nguyen et al. 2022 simulate with",
    ),
    "stragglers": Profile(_stragglers, f"{_SYNTHETIC}; log-normal speeds and links, one task in 20 is lost"),
    "diurnal": Profile(
        _diurnal,
        f"{_SYNTHETIC}; log-normal speeds that vary by a fifth from task to task, eight hours a day there, one task in "
        "20 is lost",
    ),
}

PROFILES = Registry("fleet", _PROFILES)


def profile(name: str, clients: int, seed: int = 0) -> Fleet:
    """Make a fleet by name.

    Args:
        name: of `PROFILES`.
        clients: how many, at least 1.
        seed: of the draws of speeds, links and hours, at least 0.

    Returns:
        The fleet of so many clients, with `name` as its name; the same arguments give the same one.

    Raises:
        InvalidInput: an unknown name (the nearest is named), no client, or a negative seed.
    """
    entry = PROFILES.find(name)
    check_integer("clients", clients, 1)
    fleet = entry.make(clients, np.random.default_rng((check_integer("seed", seed), 0xF1EE7)))
    object.__setattr__(fleet, "name", name)
    return fleet


# What a fleet does over time, server update by server update, and synchronous rounds on the clock.
#
# A round lasts as long as the slowest client that it waits for.

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
    cohorts: tuple[Callable[[int, np.ndarray | None], np.ndarray], int],
    updates: int,
    seed: int,
    *,
    quorum: int | None = None,
    deadline: float | None = None,
    joules: np.ndarray | None = None,
) -> Timeline:
    # a round ends when `quorum` messages have come, when all whom it asked are due, or at the `deadline`,
    # whichever is first. Who has not sent by then is told to stop and counts as absent; its energy is the share
    # of its task's that its time is. Who drops out takes all of it.
    # seconds: of a task of each client, shape (clients,)
    # cohorts: (round, who is there or None) -> the clients that the round asks, and how many these are at most
    # quorum: messages that end a round; None waits for all
    # deadline: seconds after which a round ends in any case; None for none
    # joules: of a task of each client, shape (clients,); None if nothing is known of them
    draw, size = cohorts
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
        normal = np.random.default_rng((seed, 0x71773, t)).standard_normal(len(cohort))
        # how many times as long as on average their tasks take
        longer = np.exp(fleet.jitter[cohort] * normal)
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


def check_places(updates: int, places: int) -> None:
    """Raise `InvalidInput` if so many updates of so many clients are more than may be written down."""
    if updates * places > _MOST:
        raise InvalidInput(
            f"{updates:,} rounds of {places:,} clients that are chosen by the clock are more than {_MOST:,} places: "
            "take fewer rounds"
        )


def _somebody(fleet: Fleet, now: float) -> tuple[float, np.ndarray | None]:
    # the time from which on somebody can be asked, and who
    there = fleet.there(now)
    while there is not None and not there.any():
        now = fleet.next_slot(now)
        there = fleet.there(now)
    return now, there


def _length(own: np.ndarray, lost: np.ndarray, quorum: int | None, deadline: float | None) -> float:
    # seconds of a round whose clients are due after `own`
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


# Asynchronous work on the clock: clients come and go, and the server updates whenever its buffer is full.
#
# The order of events depends on no value of the model: it is worked out here, event by event.

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
    # `concurrency` clients are at work at any time, as far as there are so many who can be asked. As soon as
    # one is due, another takes its place, drawn uniformly among those who are there, are not at work and have
    # no message in the buffer. When `buffer` messages have come the server updates; who is asked next has the
    # new model.
    # seconds: of a task of each client, shape (clients,)
    # joules: of a task of each client, shape (clients,), counted when it ends; None if nothing is known of them
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
    # where the clock stands: who is at work, whose messages lie in the buffer, who is idle
    def __init__(
        self, fleet: Fleet, seconds: np.ndarray, seed: int, buffer: int, concurrency: int, joules: np.ndarray
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
        # so many messages; the clock then stands where the last of them came. Before each, clients are asked.
        # local names are twice as fast as attributes, and this is all that a run's order of events costs
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
        # look again then who is there
        if slot > self.waking:
            heappush(self.events, (slot, -1, _NOBODY, 0, 1.0))
            self.waking = slot

    def _choose(self, there: np.ndarray) -> int | None:
        # the place among the idle of one who is there, None if nobody is
        free = np.flatnonzero(there[self.idle])
        return int(free[int(next(self.random) * len(free))]) if len(free) else None


def _uniform(random: np.random.Generator) -> Iterator[float]:
    # numbers of [0, 1), one after another
    while True:
        yield from random.random(4096).tolist()


def _normal(random: np.random.Generator) -> Iterator[float]:
    # standard normal numbers, one after another
    while True:
        yield from random.standard_normal(4096).tolist()
