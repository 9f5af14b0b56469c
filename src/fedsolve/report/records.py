"""What finished runs have in common for a reader: data frame, CSV, LaTeX and a notebook's table of them."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fedsolve.core.errors import check_known
from fedsolve.folders.files import write_atomically
from fedsolve.report.markup import text
from fedsolve.report.plots import curves
from fedsolve.report.style import LIGHT, context, line_styles
from fedsolve.report.table import ResultTable, headline, result_table
from fedsolve.results.columns import csv_text, frame
from fedsolve.results.history import Bands, History, group_by_seed
from fedsolve.results.metrics import describe, wants_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PARTS = ("train", "validation", "test")
_WIDTH, _HEIGHT = 120, 24
_MOST_POINTS = 120
"""More evaluations than pixels are not drawn."""

Part = Literal["evaluations", "rounds"]
"""Which of a history's numbers."""


class Labelled(ABC):
    """Results over labelled axes (method, seed, and of a sweep the setting) as a table, a data frame and files.

    ± is the sample standard deviation over seeds (n - 1).
    """

    @abstractmethod
    def _columns(self, part: Part) -> dict[str, Any]:
        """The rows of `frame`, labels first."""

    @abstractmethod
    def _table(self, metrics: Sequence[str] | None, target: float | None) -> ResultTable:
        """The table of `to_latex`."""

    def frame(self, part: Part = "evaluations") -> Any:
        """All evaluations or all rounds as a data frame of pandas, or of polars where only that is installed.

        Its columns are the labels (`method`, `seed`; of a sweep `setting`, the grid's axes, `seed`) and those of the
        record: `round`, `train_loss`, ...

        Raises:
            InvalidInput: neither is installed, or another part than "evaluations" or "rounds", which no sweep has.
        """
        return frame(self._columns(part))

    def to_csv(self, path: str | Path, part: Part = "evaluations") -> Path:
        """Write what `frame` has as a CSV file, atomically; numbers read back exactly.

        Raises:
            InvalidInput: the file cannot be written, or as of `frame`.
        """
        return write_atomically(path, csv_text(self._columns(part)))

    def to_latex(self, metrics: Sequence[str] | None = None, target: float | None = None) -> str:
        """The table of results as LaTeX text, for a preamble with `\\usepackage{booktabs}`.

        Seeds of a method, or of a sweep's setting, are one row: the mean ± the sample standard deviation (n - 1).

        Args:
            metrics: whose final values it shows, such as `test_auc`, or `auc` for the test's; by default the main
                metric, the training loss, other metrics of the test set, data sent and time; of a sweep the score.
            target: adds a column of the rounds until the first of `metrics` (by default the main metric, of a sweep
                the selection's) is that good: a fraction such as 0.9, or a loss.

        Raises:
            InvalidInput: no run has such a metric (the nearest is named), or `target` is no finite number.
        """
        return self._table(metrics, target).latex()


class Records(Labelled):
    """One finished run or several, by their histories."""

    @property
    @abstractmethod
    def histories(self) -> tuple[History, ...]:
        """The record of each run."""

    def plot(self, metric: str | None = None, x: str = "round", bands: Bands = "range") -> Figure:
        """A metric over rounds, a line a method with a band over its seeds.

        Args:
            metric: a column of the evaluations or of the rounds, such as `server_lr`, or what follows `train_`,
                `validation_` and `test_`: of one method these are drawn together, of several the test's. None for the
                loss of one method; of several the test accuracy, or else the test loss or the training loss.
            x: `round`, `seconds` of the machine, `megabytes` sent, or `time`, the fleet's; of a column of `rounds`
                `round` alone.
            bands: "range" over seeds, "std" for the mean ± the sample standard deviation (n - 1), or "ci" for the 95 %
                interval of the mean by Student's t.

        Returns:
            A figure of matplotlib, which a notebook shows.

        Raises:
            InvalidInput: no such metric (the nearest is named), no such x or bands, or matplotlib is not installed.
        """
        histories, labels = self.histories, list(dict.fromkeys(h.label for h in self.histories))
        name = metric or ("loss" if len(labels) == 1 else headline(histories))
        parts = [p for p in _PARTS if all(f"{p}_{name}" in h.evaluations for h in histories)]
        if not parts or any(name in h.evaluations for h in histories):
            return curves(histories, name, x=x, bands=bands)
        if len(labels) > 1:
            return curves(histories, f"{parts[-1]}_{name}", x=x, bands=bands)
        drawn = []  # a line for each part, under its name
        for part in parts:
            for h in histories:
                columns = h.evaluations | {name: h.evaluations[f"{part}_{name}"]}
                drawn.append(dataclasses.replace(h, label=part, evaluations=columns))
        return curves(drawn, name, f"{name.capitalize()} of {labels[0]}", x, bands)

    def _columns(self, part: Part) -> dict[str, Any]:
        return stacked(self.histories, part)

    def _table(self, metrics: Sequence[str] | None, target: float | None) -> ResultTable:
        return result_table(self.histories, target, metrics)

    def _repr_html_(self) -> str:
        # the table of results, with a curve of the headline metric in each row
        metric, styles = headline(self.histories), line_styles(self.histories)
        curves = [
            sparkline(m.history, metric, LIGHT[styles[m.history.label].colour])
            for m in group_by_seed(self.histories)
        ]
        table = result_table(self.histories)
        return table.notebook(f"{context(self.histories)}. {table.note}", ("By round", curves))


def stacked(histories: Sequence[History], part: Part = "evaluations") -> dict[str, np.ndarray]:
    """The columns of all runs below one another, after `method` and, where all runs have one, `seed`."""
    # A column that a run lacks is NaN in its rows. `InvalidInput` for another part than evaluations or rounds.
    check_known("part of a history", part, get_args(Part))
    tables = [getattr(h, part) for h in histories]
    lengths = [len(table["round"]) for table in tables]
    columns_of_all = {"method": np.repeat([h.label for h in histories], lengths)}
    seeds = [h.settings.get("seed") for h in histories]
    if all(isinstance(seed, int) for seed in seeds):
        columns_of_all["seed"] = np.repeat(np.array(seeds, np.int64), lengths)
    for name in dict.fromkeys(["round", *(name for table in tables for name in table)]):
        columns = [t.get(name, np.full(n, np.nan)) for t, n in zip(tables, lengths, strict=True)]
        columns_of_all[name] = np.concatenate(columns)
    return columns_of_all


def sparkline(history: History, metric: str, colour: str) -> str:
    """A metric by round as a small SVG plot; '' if the run has fewer than two values of it."""
    values = np.asarray(history.evaluations.get(metric, ()), float)
    rounds = history.evaluations["round"][: len(values)]
    if wants_log(metric, [values]):
        values = np.log(np.where(values > 0, values, np.nan))
    rounds, values = rounds[np.isfinite(values)], values[np.isfinite(values)]
    if len(values) < 2:
        return ""
    drawn = np.unique(np.linspace(0, len(values) - 1, _MOST_POINTS).round().astype(int))
    x = 2 + (_WIDTH - 4) * rounds[drawn] / rounds[-1]
    y = 2 + (_HEIGHT - 4) * (values.max() - values[drawn]) / (np.ptp(values) or 1.0)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{text(describe(metric).title)} by round">'
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/></svg>'
    )
