"""The runs of a folder, and where they stand by what it holds: finished or not, and their records so far."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedsolve.cli.configuration.config import Config
from fedsolve.core.errors import InvalidInput
from fedsolve.engine.records.record import RecordFile
from fedsolve.engine.sweep.grid import check_seeds
from fedsolve.folders.run_folder import RUN
from fedsolve.folders.store import read_manifest
from fedsolve.folders.untrusted import MALFORMED
from fedsolve.results.history import History
from fedsolve.results.record_files import (
    FAILURE,
    method_folders,
    read_failure,
    read_history,
    seed_folder,
)


def run_folders(folder: Path, config: Config) -> dict[str, dict[str, Path]]:
    """By method, the folder of each of its runs by name: the method's, with the seed where there are several."""
    labels = [method.shown for method in config.method]
    places = method_folders(folder, labels) if len(labels) > 1 else [folder]
    if config.seeds is None:
        return {label: {label: place} for label, place in zip(labels, places, strict=True)}
    return {
        label: {f"{label}, seed {seed}": seed_folder(place, seed) for seed in check_seeds(config.seeds)}
        for label, place in zip(labels, places, strict=True)
    }


def finished(folder: Path, rounds: int) -> History | None:
    """The record of a run that has done all its rounds; None where it has not."""
    history = None if (folder / FAILURE).exists() else read_history(folder)
    return history if history is not None and history.evaluations["round"][-1] >= rounds else None


def ended(folder: Path, rounds: int) -> History | None:
    """The record of a run that is finished or has diverged; None where it would go on."""
    return read_history(folder) if read_failure(folder) is not None else finished(folder, rounds)


@dataclass(frozen=True)
class Standing:
    """Where a run stands: finished, unfinished, diverged or waiting; its record so far, if any."""

    label: str
    status: str
    history: History | None
    message: str = ""

    @property
    def done(self) -> int:
        """Rounds done."""
        return 0 if self.history is None else len(self.history.rounds["round"])


def standing(name: str, method: str, folder: Path, task: str, rounds: int) -> Standing:
    """Where a run of a method stands, by its own name and the method's.

    Raises:
        InvalidInput: a record or a checkpoint that is damaged.
    """
    done = finished(folder, rounds)
    if done is not None:
        return Standing(name, "finished", done)
    failure = read_failure(folder)
    if failure is not None:
        return Standing(name, "diverged", read_history(folder), failure)
    history = None
    if (folder / RUN.file).exists():
        history = record_so_far(folder / RUN.file, method, task)
    return Standing(name, "waiting" if history is None else "unfinished", history)


def record_so_far(path: Path, label: str, task: str) -> History:
    """The record that a checkpoint speaks of.

    Raises:
        InvalidInput: it is damaged, or of another version.
    """
    manifest = read_manifest(path)
    try:
        recorder = RecordFile(path.parent).restore(manifest["record"])
        return recorder.history(label, task, manifest["identity"], 0.0, ())
    except InvalidInput:
        raise
    except MALFORMED:
        raise InvalidInput(f"the checkpoint {path} holds no record: another version wrote it") from None
