"""Sweeps as arrays that a study keeps, and back; joined over data sets, or cut off earlier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput, shown
from fedsolve.results.selection import Selection
from fedsolve.results.sweep import SENT, Sweep


def packed(found: Sweep) -> dict[str, np.ndarray]:
    """What is kept of a sweep, as arrays by name."""
    metrics = {f"metric {name}": values for name, values in found.metrics.items()}
    sent = found.settings[SENT]
    told = {} if sent is None else {SENT: np.asarray(sent)}
    return {"rounds": found.rounds, "diverged": found.diverged, **told, **metrics}


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
    told = {SENT: int(part[SENT])} if SENT in part else {}
    return Sweep(label, task, axes, seeds, part["rounds"], metrics, part["diverged"], select, told)


def joined(sweeps: Sequence[Sweep]) -> Sweep:
    """Sweeps of one grid with different seeds, as one."""
    first = sweeps[0]
    return replace(
        first,
        seeds=tuple(seed for s in sweeps for seed in s.seeds),
        metrics={k: np.concatenate([s.metrics[k] for s in sweeps], axis=1) for k in first.metrics},
        diverged=np.concatenate([s.diverged for s in sweeps], axis=1),
    )


def until(sweep: Sweep, rounds: int, select: Selection) -> Sweep:
    """The sweep as if it had ended after so many rounds."""
    count = int(np.searchsorted(sweep.rounds, rounds, side="right"))
    return replace(
        sweep,
        rounds=sweep.rounds[:count],
        metrics={k: v[..., :count] for k, v in sweep.metrics.items()},
        diverged=np.where(sweep.diverged <= rounds, sweep.diverged, -1),
        selection=select,
    )


def fixed(sweep: Sweep, **at: Any) -> Sweep:
    """The part of a sweep with these values of axes; an axis that it lacks changes nothing."""
    at = {axis: value for axis, value in at.items() if axis in sweep.grid}
    chosen = [i for i, point in enumerate(sweep.points) if all(point[a] == v for a, v in at.items())]
    return replace(
        sweep,
        grid={axis: values for axis, values in sweep.grid.items() if axis not in at},
        metrics={k: v[chosen] for k, v in sweep.metrics.items()},
        diverged=sweep.diverged[chosen],
    )


def within(sweep: Sweep, grid: Mapping[str, tuple[Any, ...]]) -> Sweep:
    """The sweep as if it had run the settings of a smaller grid alone.

    Raises:
        InvalidInput: it has not run them all.
    """
    if missing := [axis for axis, values in grid.items() if not set(values) <= set(sweep.grid.get(axis, ()))]:
        raise InvalidInput(
            f"the grid of {sweep.label} that ran lacks values of {shown(missing)}: run its own"
        )
    smaller = replace(sweep, grid=dict(grid))
    chosen = [sweep.points.index(point) for point in smaller.points]
    return replace(
        smaller, metrics={k: v[chosen] for k, v in sweep.metrics.items()}, diverged=sweep.diverged[chosen]
    )
