"""Sweeps over data sets: one part a method and data set, kept, and read as one record whose seeds are the data's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

import fedsolve as fs
from fedsolve.algorithm import Algorithm
from fedsolve.results.selection import Selection
from fedsolve.results.sweep import Sweep
from fedsolve.studies.experiment import Context
from fedsolve.studies.kept_sweeps import packed, unpacked
from fedsolve.tasks.task import Task


def over_data(
    context: Context,
    part: str,
    label: str,
    make: Callable[..., Algorithm],
    grid: Mapping[str, Sequence[float]],
    task: Callable[[int], Task],
    seeds: Sequence[int],
    kept: Mapping[str, Any],
    *,
    rounds: int,
    eval_every: int,
    select: Selection,
    dtype: Literal["float32", "float64"] = "float32",
) -> Sweep:
    """A sweep of one method on the data set of each seed; `seeds` of the record are those of the data."""
    axes = {name: tuple(values) for name, values in grid.items()}
    settings = {
        "label": label, "grid": axes, "rounds": rounds, "eval_every": eval_every, "dtype": dtype, **kept
    }  # fmt: skip

    def one(seed: int) -> dict[str, np.ndarray]:
        def compute() -> Mapping[str, np.ndarray]:
            found = fs.sweep(
                make, task(seed), axes, rounds=rounds, eval_every=eval_every, dtype=dtype, label=label,
                select=select, progress=context.sweeping(f"{part} {label}, data {seed}"),
            )  # fmt: skip
            return packed(found)

        return context.part(f"{part} {label} {seed}", settings | {"seed": seed}, compute)

    return joined([unpacked(one(seed), label, axes, (seed,), select) for seed in seeds])


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


def positive(sweep: Sweep, axis: str) -> Sweep:
    """The settings with a positive value of an axis, which a log axis can show."""
    keep = np.array([point[axis] > 0 for point in sweep.points])
    return replace(
        sweep,
        grid={**sweep.grid, axis: tuple(v for v in sweep.grid[axis] if v > 0)},
        metrics={k: v[keep] for k, v in sweep.metrics.items()},
        diverged=sweep.diverged[keep],
    )
