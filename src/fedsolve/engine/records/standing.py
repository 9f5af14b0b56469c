"""Where a run stands by what its folder holds: finished or not, and its record so far."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedsolve.core.errors import InvalidInput
from fedsolve.engine.records.record import RecordFile
from fedsolve.folders.files import held
from fedsolve.folders.run_folder import RUN, read_manifest
from fedsolve.folders.untrusted import MALFORMED
from fedsolve.results.history import History
from fedsolve.results.record_files import FAILURE, read_failure, read_history


def finished(folder: Path, rounds: int) -> History | None:
    """The record of a run that has done all its rounds; None where it has not."""
    history = None if (folder / FAILURE).exists() else read_history(folder)
    return history if history is not None and history.evaluations["round"][-1] >= rounds else None


def ended(folder: Path, rounds: int) -> History | None:
    """The record of a run that is finished or has diverged; None where it would go on."""
    return read_history(folder) if read_failure(folder) is not None else finished(folder, rounds)


@dataclass(frozen=True)
class Standing:
    """Where a run stands: finished, diverged, running, unfinished or waiting; its record so far, if any."""

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
    status = "running" if held(folder) else "waiting" if history is None else "unfinished"
    return Standing(name, status, history)


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
