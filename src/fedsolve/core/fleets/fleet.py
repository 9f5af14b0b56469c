"""A fleet as data: the speed of each device, its link, what both take, when it is there and how often it drops out.

Fleets by name have the source of their numbers, or the word that they are synthetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsolve.core.arrays.leaf import as_array
from fedsolve.core.building.registry import Registry
from fedsolve.core.checks import check_integer, check_number
from fedsolve.core.errors import InvalidInput

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

    def task_seconds(self, steps: Any, down: int, up: int) -> np.ndarray:
        """The seconds that each client needs for its local steps, download and upload, shape (clients,).

        Args:
            steps: local steps, one number or one for each client, shape (clients,).
            down: bytes to a client.
            up: bytes from it.

        Returns:
            Seconds, float64 (clients,), without jitter.
        """
        links = self.latency + down / self.download + up / self.upload
        return links + np.asarray(steps) * self.step_seconds

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
        """One number a client, in its range."""
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
"""Every fleet by name."""


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
