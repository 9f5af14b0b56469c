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
from fedsolve.studies.kept_sweeps import joined, packed, unpacked
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


def positive(sweep: Sweep, axis: str) -> Sweep:
    """The settings with a positive value of an axis, which a log axis can show."""
    keep = np.array([point[axis] > 0 for point in sweep.points])
    return replace(
        sweep,
        grid={**sweep.grid, axis: tuple(v for v in sweep.grid[axis] if v > 0)},
        metrics={k: v[keep] for k, v in sweep.metrics.items()},
        diverged=sweep.diverged[keep],
    )
