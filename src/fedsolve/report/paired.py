"""Differences of methods to one of them, paired by seed, by the rules by which studies decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.report.table import Cell, ResultTable, full_name
from fedsolve.results.columns import frame
from fedsolve.results.history import History
from fedsolve.results.intervals import FEW, holm, interval, p_value
from fedsolve.results.metrics import describe


@dataclass(frozen=True, repr=False)
class Differences(ResultTable):
    """The difference of each method to one of them, paired by seed.

    Attributes, beside those of the table:
        columns: `method`, and of each, in the metric's unit as recorded, the mean `difference`, the ends `low` and
            `high` of its interval, and `p`, NaN with fewer than five seeds or where none differ.
    """

    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __repr__(self) -> str:
        rows = [list(self.head), *self.texts]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, self.note])

    def to_latex(self) -> str:
        """The table as LaTeX text, for a preamble with `\\usepackage{booktabs}`."""
        return self.latex()

    def frame(self) -> Any:
        """`columns` as a data frame of pandas, or of polars; `InvalidInput` if neither is installed."""
        return frame(dict(self.columns))


def differences(histories: Sequence[History], against: str, metric: str) -> Differences:
    name = full_name(metric, dict.fromkeys(name for h in histories for name in h.evaluations))
    ends: dict[str, dict[Any, float]] = {}
    for h in histories:
        ends.setdefault(h.label, {})[h.settings.get("seed")] = h.final(name)
    if against not in ends:
        raise unknown("method", against, ends)
    base, others = ends.pop(against), list(ends)
    seeds = [seed for seed in base if all(seed in of for of in ends.values())]
    if not others or not seeds:
        raise InvalidInput(f"{against} and another method need a seed in common: run all with the same seeds")
    values = [np.array([ends[label][s] - base[s] for s in seeds]) for label in others]
    # of a run that diverged nothing is known, and seeds that change nothing are one observation
    values = [x if np.isfinite(x).all() else np.nan * x for x in values]
    found = [interval(x if np.ptp(x) else x[:1], len(others)) for x in values]
    tested = [i for i, x in enumerate(values) if len(x) >= FEW and np.ptp(x) > 0]
    p = np.full(len(others), np.nan)
    p[tested] = holm([p_value(values[i]) for i in tested])
    numbers = dict(zip(("difference", "low", "high"), np.array(found).T, strict=True)) | {"p": p}
    kind, unit = describe(name), {"%": "points"}.get(describe(name).unit, describe(name).unit)
    rows = [_row(row, kind.scale) for row in zip(others, *numbers.values(), strict=True)]
    head = ["Method", f"{kind.title}, difference" + (f" ({unit})" if unit else ""), "95 % interval", "p"]
    test = "p: paired t-test, two-sided, with Holm's correction"
    note = (
        f"To {against}, paired by seed ({len(seeds)}); {'above' if kind.higher_is_better else 'below'} 0 is better. "
        "Intervals hold together at 95 % (Student's t, Bonferroni); "
        f"{test if len(seeds) >= FEW else f'fewer than {FEW} seeds: no p-values'}."
    )
    columns = {"method": np.array(others), **numbers}
    return Differences(f"Differences to {against}", head, rows, note, columns)


def _row(row: tuple[Any, ...], scale: float) -> list[str | Cell]:
    method, mean, low, high, p = row
    ends = f"[{scale * low:.3g}, {scale * high:.3g}]" if np.isfinite(low) else "-"
    shown = "diverged" if np.isnan(mean) else f"{scale * mean:+.3g}"
    return [method, Cell(shown, mean), Cell(ends, low), Cell("-" if np.isnan(p) else f"{p:.2g}", p)]
