"""Sweeps as arrays that a study keeps, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsolve.results.selection import Selection
from fedsolve.results.sweep import Sweep


def packed(found: Sweep) -> dict[str, np.ndarray]:
    """What is kept of a sweep, as arrays by name."""
    metrics = {f"metric {name}": values for name, values in found.metrics.items()}
    return {"rounds": found.rounds, "diverged": found.diverged, **metrics}


def unpacked(
    part: Mapping[str, np.ndarray],
    label: str,
    axes: Mapping[str, tuple[Any, ...]],
    seeds: tuple[int, ...],
    select: Selection,
    task: str = "regression",
) -> Sweep:
    """The record of what `packed` kept."""
    metrics = {k.removeprefix("metric "): v for k, v in part.items() if k.startswith("metric ")}
    return Sweep(label, task, axes, seeds, part["rounds"], metrics, part["diverged"], select)
