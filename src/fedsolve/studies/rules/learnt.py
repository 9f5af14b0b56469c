"""Whether methods have learnt: a comparison of two that have not says nothing of either."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedsolve.results.metrics import describe
from fedsolve.studies.cells import Cells, Which

TRAINING_LOSS = "train_loss"
KNOWN = "a known solution"
"""The note of a record that no run made, but a solution whose numbers stand in every evaluation of others."""


def not_learnt(cells: Cells, problem: str, names: Iterable[str], which: Which = "tuned") -> tuple[str, ...]:
    """Those of the methods that have not learnt, each once.

    A method has learnt if its training loss is lower at the end than before the first round, by the 95 % interval over
    the seeds; and a metric of the test data, where the problem compares one, better than before and than
    `Problem.chance`. A method that lost a seed has not; one marked `KNOWN` is not asked.
    """
    return tuple(name for name in dict.fromkeys(names) if not _has_learnt(cells, problem, name, which))


def no_better(cells: Cells, problem: str, names: Iterable[str]) -> str:
    """In words, that methods of a problem have not learnt."""
    asked = cells.problem(problem)
    bar = f" or than the best constant prediction, {describe(asked.metric).scale * asked.chance:.3g}"
    by = "training loss or test metric" if asked.metric.startswith("test_") else "training loss"
    return f"{' and '.join(names)} ended no better by {by} than at the start{bar if asked.chance else ''}"


def _has_learnt(cells: Cells, problem: str, method: str, which: Which) -> bool:
    run, asked = cells.cell(problem, method).of(which), cells.problem(problem)
    if run is None:
        return False
    if KNOWN in run.notes:
        return True
    metrics = [TRAINING_LOSS, *([asked.metric] if asked.metric.startswith("test_") else [])]
    gains = [_gain(cells, problem, method, which, metric) for metric in metrics if metric in run.metrics]
    if asked.chance and asked.metric in metrics:
        gains.append(_better_by(asked.metric, cells.final(problem, method, which), asked.chance))
    return all(_is_positive(cells, problem, gain) for gain in gains)


def _gain(cells: Cells, problem: str, method: str, which: Which, metric: str) -> np.ndarray:
    """By how much each seed's metric is better at the end than before the first round."""
    end, start = (
        cells.final(problem, method, which, metric),
        cells.curve(problem, method, which, metric)[1][:, 0],
    )
    return _better_by(metric, end, start)


def _better_by(metric: str, ours: np.ndarray, other: np.ndarray | float) -> np.ndarray:
    return (ours - other) if describe(metric).higher_is_better else (other - ours)


def _is_positive(cells: Cells, problem: str, gain: np.ndarray) -> bool:
    if not np.isfinite(gain).all():
        return False
    if np.ptp(gain) == 0:  # one seed, or seeds that change nothing
        return bool(gain[0] > 0)
    return cells.interval(problem, gain).low > 0
