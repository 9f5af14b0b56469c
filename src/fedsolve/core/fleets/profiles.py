"""Fleets by name, each with the source of its numbers, or the word that they are synthetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsolve.core.building.registry import Registry
from fedsolve.core.checks import check_integer
from fedsolve.core.fleets.fleet import Fleet


@dataclass(frozen=True)
class Profile:
    """A kind of fleet.

    Attributes:
        make: (clients, random numbers) -> the fleet.
        source: where its numbers come from.
    """

    make: Callable[[int, np.random.Generator], Fleet]
    source: str


_SYNTHETIC = "synthetic: numbers of no measurement"
_ENERGY: dict[str, Any] = {"watts": 4.0, "download_joules": 1e-6, "upload_joules": 3e-6}
"""A phone's, in magnitude: a watt of its radio at the links' speeds. Not measured either."""


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
    """A fleet by name.

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
