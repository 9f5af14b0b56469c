"""Tuning by a small budget: settings drawn at random from ranges, and what the best of so many of them comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.results.metrics import describe
from fedsolve.studies.cells import Cells, exploded
from fedsolve.studies.problem import Method
from fedsolve.studies.rules.ranks import Ranked, Ranks, rank

if TYPE_CHECKING:
    from fedsolve.core.algorithm import Algorithm

Range = tuple[float, float]


def drawn(default: Mapping[str, float], ranges: Mapping[str, Range], count: int) -> dict[str, tuple]:
    """An axis of `count` settings: the default first, the others log-uniform from the ranges, to three digits.

    The first hyper-parameter has the same draws whichever others there are.

    Args:
        default: hyper-parameter -> its default.
        ranges: hyper-parameter -> its least and largest value, both above 0.
        count: settings, the default included.

    Returns:
        One axis, whose name lists the hyper-parameters and whose values are tuples in that order.
    """
    shares = np.random.default_rng(0).random((len(default), count - 1))
    ends = np.log10([ranges[name] for name in default])
    values = 10 ** (ends[:, :1] + shares * (ends[:, 1:] - ends[:, :1]))
    settings = [tuple(float(f"{v:.3g}") for v in setting) for setting in values.T]
    return {", ".join(default): (tuple(default.values()), *settings)}


def budgeted(
    build: Callable[..., Algorithm], default: Mapping[str, float], ranges: Mapping[str, Range], count: int
) -> Method:
    """A method at its default, and tuned over the axis that `drawn` makes.

    Args:
        build: from the hyper-parameters, by keyword, to the method.
        default, ranges, count: as `drawn` takes them.
    """

    def make(**axis: tuple[float, ...]) -> Algorithm:
        ((names, values),) = axis.items()
        return build(**dict(zip(names.split(", "), values, strict=True)))

    grid = drawn(default, ranges, count)
    return Method(make, {names: values[0] for names, values in grid.items()}, grid)


def chances(scores: np.ndarray, tried: int) -> np.ndarray:
    """How likely each setting is chosen when the first is tried with `tried` - 1 of the others, drawn at random.

    Chosen is the least score of those tried; where all are infinite, the first. This is exact, over all subsets.

    Args:
        scores: shape (settings,), infinite where a setting diverged.
        tried: 1 to the number of settings.

    >>> chances(np.array([2.0, 3.0, 1.0, 0.0]), 2).round(3).tolist()
    [0.333, 0.0, 0.333, 0.333]
    """
    others, left = len(scores) - 1, tried - 1
    order = [i for i in np.argsort(scores, kind="stable") if scores[i] < scores[0]]
    probabilities = np.zeros(len(scores))
    for better, i in enumerate(order):  # i is chosen if it is tried and none of those better is
        probabilities[i] = comb(others - better - 1, left - 1) / comb(others, left) if left else 0.0
    probabilities[0] = 1 - probabilities.sum()
    return probabilities


def expected(cells: Cells, problem: str, tried: int) -> dict[str, float]:
    """What each method comes to on the tuning seed if `tried` settings are tried, on average over which these are.

    Chosen by the problem's selection, shown is its metric at the end: 0 is the start (or worse, or diverged), 1 the
    best that any setting of any method reached.
    """
    metric = describe(cells.problem(problem).metric)
    sign = 1 if metric.higher_is_better else -1
    grids = {m: grid for m in cells.methods(problem) if (grid := cells.cell(problem, m).grid) is not None}
    ends, start = {}, 0.0
    for method, grid in grids.items():
        values = sign * grid.metrics[metric.key][:, 0]
        start = float(values[0, 0])
        lost = (grid.diverged[:, 0] >= 0) | exploded(grid)[:, 0]
        ends[method] = np.where(lost | ~np.isfinite(values[:, -1]), start, values[:, -1])
    most = max((float(end.max()) for end in ends.values()), default=start)
    shares = {}
    for method, grid in grids.items():
        score = -grid.score if grid.selection.most else grid.score
        share = np.maximum(ends[method] - start, 0) / (most - start if most > start else 1)
        shares[method] = float(chances(score, tried) @ share)
    return shares


def budget(tried: int) -> Ranked:
    """Ranks by `expected` with so many settings tried."""

    def ranked(cells: Cells) -> Ranks:
        by_problem = [expected(cells, problem, tried) for problem in cells.problems]
        return rank({m: [-found[m] for found in by_problem] for m in by_problem[0]})

    return ranked
