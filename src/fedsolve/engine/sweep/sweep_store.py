"""What a sweep has found so far, and the folder that keeps it: one file, replaced atomically."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.engine.compute.round import RunState
from fedsolve.engine.sweep.compiled_trials import TrialBatch
from fedsolve.engine.sweep.trials import RunningBatch
from fedsolve.folders.run_folder import SWEEP, RunFolder, how_to_resume, load_tree
from fedsolve.folders.sealed import corrupt, mapped_arrays
from fedsolve.folders.untrusted import MALFORMED
from fedsolve.results.columns import plain


@dataclass
class TrialResults:
    """Results by trial while a sweep grows.

    Attributes:
        shape: settings, seeds, evaluations.
        dtype: of the metrics.
        metrics: name -> values of that shape, NaN where nothing was seen.
        diverged: the round in which a trial diverged, -1 if it has not, shape (settings, seeds).
        batches: batches that are done.
        rounds: rounds done of the batches under way.
        seconds: wall time so far.
    """

    shape: tuple[int, int, int]
    dtype: Any
    metrics: dict[str, np.ndarray] = field(default_factory=dict)
    diverged: np.ndarray = field(init=False)
    batches: int = 0
    rounds: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.diverged = np.full(self.shape[:2], -1, np.int32)

    def put(self, batch: TrialBatch, evaluation: int, values: dict[str, np.ndarray]) -> None:
        """Metrics of a batch's trials, each of shape (L, S), at one evaluation."""
        for name, value in values.items():
            all_trials = self.metrics.setdefault(name, np.full(self.shape, np.nan, self.dtype))
            all_trials[np.ix_(batch.settings, batch.seeds, np.array([evaluation]))] = value[..., None]

    def end(self, batch: TrialBatch, rounds: int) -> None:
        """A trial whose model is not finite after the last round has diverged: nobody trained from it to notice."""
        trials = np.ix_(batch.settings, batch.seeds)
        lost = np.isnan(self.metrics["train_loss"][trials][..., -1]) & (self.diverged[trials] < 0)
        self.diverged[trials] = np.where(lost, rounds, self.diverged[trials])


def results_so_far(
    folder: Path, shape: tuple[int, int, int]
) -> tuple[dict[str, np.ndarray], np.ndarray, float]:
    """The metrics of all trials, where they diverged, and the seconds, as a sweep of a shape last kept them.

    Raises:
        InvalidInput: nothing is kept, or it is corrupt or of another sweep.
    """
    path = folder / SWEEP.file
    header, arrays = mapped_arrays(path, "checkpoint")
    try:
        metrics = {name: arrays[f"['metrics']['{name}']"] for name in header.manifest["metrics"]}
        diverged, seconds = arrays["['diverged']"], float(header.manifest["seconds"])
    except MALFORMED as error:
        raise corrupt(path, "checkpoint", f"it is of no sweep: {error}") from None
    if diverged.shape != shape[:2] or {x.shape for x in metrics.values()} != {shape}:
        raise corrupt(path, "checkpoint", "it is of another sweep")
    return metrics, diverged, seconds


class SweepStore:
    """The checkpoint of one sweep, or nothing where no folder was given."""

    def __init__(self, folder: RunFolder | None) -> None:
        self._folder = folder
        self._manifest = {} if folder is None else folder.manifest() or {}

    @classmethod
    @contextlib.contextmanager
    def at(cls, out: str | Path | None, identity: dict[str, Any], resume: bool) -> Iterator[SweepStore]:
        """Hold the folder for one sweep.

        Raises:
            InvalidInput: `resume` without a folder or anything kept in it; what is kept is of a sweep that differs
                (the first difference is named); a folder that holds a sweep already, is in use or cannot be written.
        """
        with RunFolder.if_given(out, SWEEP, plain(identity), resume) as folder:
            yield cls(folder)

    @property
    def where(self) -> Path | None:
        """The folder, None where nothing is kept."""
        return None if self._folder is None else self._folder.hold.folder

    @property
    def due(self) -> bool:
        """Whether enough time has passed since the last saving."""
        return self._folder is not None and self._folder.due

    @property
    def trials(self) -> int | None:
        """Trials side by side of the sweep that is resumed, which decide its bits; None for a new one."""
        return self._manifest.get("lanes")

    @property
    def at_once(self) -> int | None:
        """Batches at once of the sweep that is resumed, which share a state in the file; None for a new one."""
        return self._manifest.get("at_once")

    @property
    def running(self) -> list[TrialBatch]:
        """The batches under way of the sweep that is resumed, where some of its trials had diverged; else none."""
        return [
            TrialBatch(np.array(settings), np.array(seeds))
            for settings, seeds in self._manifest.get("running", ())
        ]

    @property
    def done(self) -> tuple[int, int, float]:
        """Batches that are done, rounds of those under way, and seconds of the sweep that is resumed; else zeros."""
        manifest = self._manifest
        return (manifest["blocks"], manifest["rounds"], manifest["seconds"]) if manifest else (0, 0, 0.0)

    def restore(self, results: TrialResults, states: list[RunState]) -> list[RunState]:
        """Fill the results when resuming; the states of the batches under way, of the shapes of `states`.

        Raises:
            InvalidInput: what is kept is corrupt.
        """
        if self._folder is None or not self._manifest:
            return states
        empty = {name: np.zeros(results.shape, results.dtype) for name in self._manifest["metrics"]}
        like = {"metrics": empty, "diverged": results.diverged, "states": states}
        saved = load_tree(self._folder.path, like)
        results.metrics = {name: np.array(saved["metrics"][name]) for name in empty}  # in their order
        results.diverged = np.array(saved["diverged"])
        return saved["states"]

    def save(self, results: TrialResults, running: Sequence[RunningBatch], layout: dict[str, int]) -> None:
        """Keep everything, atomically: also the batches under way; `layout` holds `lanes` and `at_once`.

        Raises:
            InvalidInput: the folder cannot be written, or was removed during the sweep.
        """
        if self._folder is None:
            return
        manifest = {
            "blocks": results.batches,
            "rounds": results.rounds if running else 0,
            "seconds": results.seconds,
            **layout,
            "metrics": list(results.metrics),
            "running": [
                [b.settings.tolist(), b.seeds.tolist()] for b in (current.batch for current in running)
            ],
        }
        states = [current.states for current in running]
        tree = {"metrics": results.metrics, "diverged": results.diverged, "states": states}
        self._folder.save(tree, manifest)

    def how_to_resume(self, done: int, total: int) -> str:
        """What an interrupted user is told."""
        folder = None if self._folder is None else self._folder.hold.folder
        return how_to_resume(folder, f"stopped after {100 * done // total} % of the sweep")
