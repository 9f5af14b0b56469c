"""Runs of one method that differ in the seed alone, as one: the mean by round, and how far the seeds lie apart.

Tables say mean ± the sample standard deviation (n - 1); plots draw the mean with a band (`Bands`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from fedsolve.core.errors import check_known
from fedsolve.results.columns import Columns
from fedsolve.results.history import History

Bands = Literal["range", "std", "ci"]
"""What a band over seeds is: the range, the mean ± the sample standard deviation, or the mean's interval."""
_CONFIDENCE = 0.95
BAND_WORDS = {
    "range": "range over seeds",
    "std": "± sample standard deviation over seeds",
    "ci": f"{100 * _CONFIDENCE:.0f} % interval of the mean over seeds (Student's t)",
}


@dataclass(frozen=True, eq=False)
class OverSeeds:
    """The runs of one method on one task.

    Attributes:
        runs: one for each seed.
        history: their means by round, NaN once one of them has diverged; the run itself where there is one.
        low, high: the smallest and the largest value of each evaluation; empty where there is one run.
    """

    runs: tuple[History, ...]
    history: History
    low: Columns = field(default_factory=dict)
    high: Columns = field(default_factory=dict)

    @property
    def several(self) -> bool:
        """Whether there is more than one seed."""
        return len(self.runs) > 1

    def values(self, name: str) -> np.ndarray | None:
        """A column of the evaluations, or else of the rounds, shape (seeds, rows); None where there is none."""
        for tables in ([h.evaluations for h in self.runs], [h.rounds for h in self.runs]):
            if all(name in table for table in tables):
                return same_columns(tables)[name]
        return None


METHOD = ("algorithm", "sampling", "batch_size", "epochs", "local_steps", "dtype")
"""Settings that runs of one method share, whatever their seeds."""


def method_of(history: History) -> tuple[object, ...]:
    """What runs must share to be those of one method: label, task and the settings of `METHOD`."""
    return (history.label, history.task, *(str(history.settings.get(name)) for name in METHOD))


def over_seeds(histories: Sequence[History]) -> list[OverSeeds]:
    """The runs by method, in order: those that share `method_of`, if they have different seeds."""
    by_method: dict[tuple[object, ...], list[History]] = {}
    for history in histories:
        by_method.setdefault(method_of(history), []).append(history)
    methods = []
    for runs in by_method.values():
        seeds = [h.settings.get("seed") for h in runs]
        if len(runs) > 1 and len(set(seeds)) == len(runs) and None not in seeds:
            methods.append(_together(tuple(runs)))
        else:
            methods += [OverSeeds((run,), run) for run in runs]
    return methods


def _together(runs: tuple[History, ...]) -> OverSeeds:
    stacks = same_columns([h.evaluations | {"megabytes": h.megabytes()} for h in runs])
    rounds = stacks.pop("round")[0].astype(np.int64)
    mean = {name: values.mean(axis=0) for name, values in stacks.items() if name != "megabytes"}
    logs = {name: values.mean(axis=0) for name, values in same_columns([h.rounds for h in runs]).items()}
    seeds = [h.settings["seed"] for h in runs]
    return OverSeeds(
        runs,
        replace(
            runs[0],
            settings=runs[0].settings | {"seed": ", ".join(map(str, seeds))},
            evaluations={"round": rounds, **mean},
            rounds=logs | {"round": logs["round"].astype(np.int64)},
            seconds=float(np.mean([h.seconds for h in runs])),
            compile_seconds=max(h.compile_seconds for h in runs),  # of the program that they share
            notes=tuple(dict.fromkeys(note for h in runs for note in h.notes)),
        ),
        {name: values.min(axis=0) for name, values in stacks.items()},
        {name: values.max(axis=0) for name, values in stacks.items()},
    )


def same_columns(tables: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The columns that all have, each of shape (seeds, rounds of any of them); NaN where a run has no such round."""
    rounds = np.unique(np.concatenate([table["round"] for table in tables]))
    columns = {"round": np.tile(rounds, (len(tables), 1))}
    for name in tables[0]:
        if name == "round" or not all(name in table for table in tables):
            continue
        values = np.full((len(tables), len(rounds)), np.nan)
        for row, table in zip(values, tables, strict=True):
            row[np.searchsorted(rounds, table["round"])] = table[name]
        columns[name] = values
    return columns


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the standard deviation of a sample, NaN and NaN if one is no number; of one value NaN.

    >>> mean_and_deviation([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    array = np.asarray(values, float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # infinite values
        return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else float("nan")


def band(values: np.ndarray, bands: Bands) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the upper end of a band over seeds, both of shape (points,).

    Args:
        values: shape (seeds, points), two seeds or more.
        bands: which.

    Raises:
        InvalidInput: no such band.
    """
    check_known("bands", bands, get_args(Bands))
    if bands == "range":
        return values.min(axis=0), values.max(axis=0)
    seeds = len(values)
    half = values.std(axis=0, ddof=1)
    if bands == "ci":
        from scipy.special import stdtrit  # of JAX's dependencies; not needed where nothing is drawn

        half = half * (stdtrit(seeds - 1, 0.5 + _CONFIDENCE / 2) / np.sqrt(seeds))
    return values.mean(axis=0) - half, values.mean(axis=0) + half
