"""What a sweep returns: its record, with the names that all results have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from fedsolve.core.errors import InvalidInput, check_known, check_path, is_integer, shown
from fedsolve.report.records import Labelled, Part
from fedsolve.report.sweep_page import final_table, sweep_html
from fedsolve.report.sweep_plots import best_over_grid, edges, sensitivity
from fedsolve.report.table import ResultTable
from fedsolve.results.history import Bands
from fedsolve.results.sweep import SweepRecord, curve_columns, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(SweepRecord, Labelled):
    """A finished sweep of one method; a notebook shows it as a table of its best settings.

    `sweep[i]` is the sweep of setting `i` of `points` alone, and `sweep[sweep.best]` that of the best one. Settings are
    the product of the grid's axes, the last axis fastest, or as they were drawn. A trial is a setting with a seed.

    Attributes:
        label: the method's name.
        task: the task's name.
        grid: axis -> its values, in order; of a random search the value of each setting.
        seeds: of the trials, shape (seeds,).
        rounds: rounds done at each evaluation, shape (evaluations,), 0 first.
        metrics: name -> values, shape (settings, seeds, evaluations), NaN once a trial has diverged. They include the
            scalars that the server reports for the round before an evaluation, such as `server_lr`; NaN at the first.
        diverged: the round in which a trial diverged, -1 if it did not, shape (settings, seeds).
        selection: the selection criterion of the best setting.
        settings: the other settings of the runs, as plain data.
        seconds: wall time of the whole sweep, with compilation.
        search: of a random search its `kind`, `trials`, `seed` and `ranges`; `halving` if there was.
        stopped: the round after which halving stopped a setting, -1 if it did not, shape (settings,).
        notes: remarks, such as that the grid ran in parts, or that the best setting lies at its edge.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", tuple(dict.fromkeys((*self.notes, *edges(self)))))

    def final(self, metric: str) -> np.ndarray:
        """A metric at the last evaluation of each trial; NaN where it diverged.

        Args:
            metric: a key of `metrics`, such as `train_loss`.

        Returns:
            The values, shape (settings, seeds).

        Raises:
            InvalidInput: the sweep has no such metric (the nearest is named).
        """
        check_known("metric of the sweep", metric, self.metrics)
        return self.metrics[metric][..., -1]

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[Sweep]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, setting: int) -> Sweep:
        """The sweep of one setting alone, by its place in `points`; `InvalidInput` if there is none."""
        if not is_integer(setting) or not 0 <= setting < len(self):
            raise InvalidInput(
                f"sweep[{shown(setting)}]: give the number of a setting, 0 to {len(self) - 1}, such as sweep.best"
            )
        return self.at_settings([setting], {name: (value,) for name, value in self.points[setting].items()})

    def _columns(self, part: Part) -> dict[str, Any]:
        check_known("part of a sweep", part, ["evaluations"])  # trials keep no log of their rounds
        return curve_columns(self, with_axes=True)

    def _table(self, metrics: Sequence[str] | None, target: float | None) -> ResultTable:
        return final_table(self, metrics, target)

    def plot(self, metric: str | None = None, x: str = "round", bands: Bands = "range") -> Figure:
        """Plot the best setting by round, or the best score at each value of an axis; bands are over seeds.

        Args:
            metric: what is drawn by round; by default that of the selection, which is also drawn along an axis.
            x: `round`, or an axis of the grid.
            bands: as in `Result.plot`.

        Returns:
            A figure of matplotlib, which a notebook shows.

        Raises:
            Diverged: all settings diverged.
            InvalidInput: no such metric or axis, or matplotlib is not installed.
        """
        if x == "round":
            return sensitivity(self, metric, bands)
        if metric not in (None, self.selection.metric):
            raise InvalidInput(
                f"metric = {shown(metric)}: along the axis {x} the score is drawn, of {self.selection.metric}"
            )
        return best_over_grid(self, x, bands)

    def save(self, folder: str | Path) -> Path:
        """Save the sweep as `sweep.parquet`, `curves.parquet` and `sweep.json`, which `fedsolve.load` reads.

        Args:
            folder: made if it is not there.

        Returns:
            The folder.

        Raises:
            InvalidInput: pyarrow is not installed, or the folder cannot be written.
        """
        return save(self, check_path("folder", folder))

    @property
    def params(self) -> NoReturn:
        """Not available: a sweep stores no models.

        Raises:
            InvalidInput: always, with what to do.
        """
        raise InvalidInput(self._no_models())

    def predict(self, x: Any, *, scores: bool = False) -> NoReturn:
        """Not available: a sweep stores no models.

        Args:
            x: not used.
            scores: not used.

        Returns:
            Never.

        Raises:
            InvalidInput: always, with what to do.
        """
        raise InvalidInput(self._no_models())

    def _no_models(self) -> str:
        return f"a sweep stores no models: run its best setting, {self.best_settings}, with fs.run, which returns one"

    def _repr_html_(self) -> str:
        return sweep_html(self)
