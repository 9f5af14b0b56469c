"""What a page shows first: how the runs ended, in a sentence, and the metric and the range in which methods differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from fedsolve.core.metric_direction import higher_is_better
from fedsolve.report.table import Row, headline, result_columns, result_rows
from fedsolve.results.history import History, over_seeds
from fedsolve.results.metrics import describe, wants_log

_APART = 0.15
"""Ends of curves that differ by less of the height of all curves lie on top of each other."""
_SETTLED = 0.2
"""The first fraction of a run, in which all methods leave the same initial model."""


def first_metric(histories: Sequence[History]) -> str:
    """The metric to draw first: the headline, or the training loss where that alone separates the methods."""
    main = headline(histories)
    methods = [m.history.evaluations for m in over_seeds(histories)]
    apart = {key: _apart(key, [m[key] for m in methods if key in m]) for key in (main, "train_loss")}
    return main if apart[main] >= _APART or apart["train_loss"] <= 2 * apart[main] else "train_loss"


def _apart(key: str, curves: Sequence[np.ndarray]) -> float:
    """How far apart the last quarters of curves lie, as a fraction of the height that all curves take."""
    values = [np.asarray(curve, float) for curve in curves]
    if wants_log(key, values):
        values = [np.log(np.where(v > 0, v, np.nan)) for v in values]
    ends = [part[np.isfinite(part)] for part in (v[-max(1, len(v) // 4) :] for v in values)]
    medians = [float(np.median(end)) for end in ends if len(end)]
    height = _span(values)
    return (max(medians) - min(medians)) / height if len(medians) > 1 and height > 0 else 0.0


def focus(curves: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """The range of a linear axis in which curves of several methods differ; None where that is most of it.

    >>> focus([np.array([0.1, 0.9, 0.95, 0.95, 0.96]), np.array([0.1, 0.91, 0.92, 0.92, 0.92])])
    (0.896, 0.964)
    """
    values = [np.asarray(curve, float) for curve in curves]
    settled = [v[math.ceil(_SETTLED * len(v)) :] for v in values]
    height = _span(settled)
    if len(values) < 2 or not 0 < height < 0.5 * _span(values):
        return None
    numbers = np.concatenate([v[np.isfinite(v)] for v in settled])
    margin = 0.1 * (numbers.max() - numbers.min()) / 1.5
    return float(f"{numbers.min() - margin:.6g}"), float(f"{numbers.max() + margin:.6g}")


def _span(curves: Iterable[np.ndarray]) -> float:
    """Between the smallest and the largest number of some curves."""
    numbers = np.concatenate([v[np.isfinite(v)] for v in curves])
    return float(np.ptp(numbers)) if len(numbers) else 0.0


def outcome(histories: Sequence[History]) -> str:
    """How the runs ended, in one sentence."""
    rows = result_rows(histories)
    keys = list(dict.fromkeys((headline(histories), "train_loss")))
    shown = {key: _Final(key, histories) for key in keys}
    alive = [row for row in rows if all(shown[key].known(row) for key in keys)]
    lost = [str(row["method"]) for row in rows if row not in alive]
    diverged = f"{', '.join(lost)} diverged"
    if not alive:
        return f"{diverged}."
    ends = {int(h.evaluations["round"][-1]) for h in histories}
    when = f"After {max(ends):,} rounds" if len(ends) == 1 else "At the end"
    if len(rows) == 1:
        parts = [f"a {shown[key].name} of {shown[key].text(alive[0])}" for key in keys]
        sentence = f"{when} {alive[0]['method']} has {' and '.join(parts)}"
    else:
        sentence = f"{when} {_joined([shown[key].best(alive) for key in keys])}"
    seeds = {row["seeds"] for row in rows if "seeds" in row}
    means = f" (means of {max(seeds)} seeds)" if len(seeds) == 1 else " (means over seeds)" if seeds else ""
    return f"{sentence}{means}{f'; {diverged}' if lost else ''}."


def _joined(best: Sequence[tuple[str, str]]) -> str:
    """What is best by one metric or by two; a method is named once."""
    words: list[str] = []
    for i, (who, what) in enumerate(best):
        words.append(what if i and who == best[i - 1][0] else f"{who} {what}")
    return ", and ".join(words)


class _Final:
    """A metric's final values in a sentence."""

    def __init__(self, key: str, histories: Sequence[History]) -> None:
        self._metric, self._key = describe(key), f"final_{key}"
        (self._column,) = (c for c in result_columns(histories) if c.key == self._key)
        title = self._metric.title
        self.name = title[0].lower() + title[1:]
        self._sign = -1 if higher_is_better(key) else 1
        self._superlative = "highest" if self._sign < 0 else "lowest"

    def known(self, row: Row) -> bool:
        """Whether a method has a finite one."""
        value = row.get(self._key)
        return value is not None and math.isfinite(value)

    def best(self, rows: Sequence[Row]) -> tuple[str, str]:
        """The method with the best one, or those that share it, and what that is."""
        best = min(self._sign * row[self._key] for row in rows)
        first = [row for row in rows if self._sign * row[self._key] == best]
        names = [str(row["method"]) for row in first]
        if len(names) == 1:
            who = f"{names[0]} has"
        else:
            who = (
                f"{', '.join(names[:-1])} and {names[-1]} have"
                if len(names) < 5
                else f"{len(names)} methods have"
            )
        return who, f"the {self._superlative} {self.name}, {self.text(first[0])}"

    def text(self, row: Row) -> str:
        """A method's value with its unit."""
        return self._column.show(row[self._key]) + ("\N{NO-BREAK SPACE}%" if self._metric.unit == "%" else "")
