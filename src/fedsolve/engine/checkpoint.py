"""Checkpoints of a run: where they lie, when they are due, and whether one belongs to this run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from fedsolve.engine.identity import check_same
from fedsolve.engine.record import Recorder
from fedsolve.engine.record_file import RecordFile
from fedsolve.engine.round import RunState
from fedsolve.errors import InvalidInput
from fedsolve.lock import Hold, locked
from fedsolve.store import load_tree, read_manifest, save_tree

CHECKPOINT = "checkpoint.safetensors"
_SECONDS_BETWEEN = 2.0


class Checkpoints:
    """The checkpoint of one run, or nothing where no folder was given."""

    def __init__(self, hold: Hold | None, identity: dict[str, Any], resume: bool) -> None:
        self._hold = hold
        self._path = None if hold is None else hold.folder / CHECKPOINT
        self._record = None if hold is None else RecordFile(hold.folder)
        self._identity = identity
        self._resume = resume
        self._last = time.monotonic()
        self._saved: int | None = None

    @classmethod
    @contextlib.contextmanager
    def at(cls, out: str | Path | None, identity: dict[str, Any], resume: bool) -> Iterator[Checkpoints]:
        """Hold the folder for one run.

        Raises:
            InvalidInput: `resume` without a folder or a checkpoint in it; a folder that holds a run
                already, is in use or cannot be written.
        """
        if out is None:
            if resume:
                raise InvalidInput("resume needs the folder of the run: give out")
            yield cls(None, identity, False)
            return
        folder = Path(out)
        with locked(folder) as hold:
            path = folder / CHECKPOINT
            if path.exists() and not resume:
                raise InvalidInput(f"{folder} holds a run already: resume it or choose another folder")
            yield cls(hold, identity, resume)

    @property
    def due(self) -> bool:
        """Whether enough time has passed since the last one."""
        return self._path is not None and time.monotonic() - self._last > _SECONDS_BETWEEN

    def restore(self, state: RunState, recorder: Recorder, rounds: int) -> tuple[RunState, Recorder]:
        """The saved state and record when resuming a run of so many rounds, else those given.

        Raises:
            InvalidInput: the checkpoint is corrupt, of a run that differs (the first difference is named), or of
                one that has done more rounds.
        """
        if not self._resume or self._path is None or self._record is None:
            return state, recorder
        manifest = read_manifest(self._path)
        check_same(self._path, manifest["identity"], self._identity)
        if manifest["round"] > rounds:
            raise InvalidInput(
                f"the checkpoint {self._path} has done {manifest['round']} rounds, rounds = {rounds} are asked for: "
                f"ask for at least {manifest['round']}, or start anew in another folder"
            )
        self._saved = manifest["round"]
        loaded = jax.device_put(load_tree(self._path, state), jax.tree.map(lambda x: x.sharding, state))
        return loaded, self._record.restore(manifest["record"])

    def save(self, state: RunState, recorder: Recorder) -> None:
        """Write state and record, atomically.

        Raises:
            InvalidInput: the folder cannot be written, or was removed during the run.
        """
        if self._path is None or self._hold is None or self._record is None:
            return
        self._hold.check()
        self._saved = int(state.round)
        record = self._record.append(recorder)
        manifest = {"identity": self._identity, "round": self._saved, "record": record}
        save_tree(self._path, state, manifest)
        self._last = time.monotonic()

    def how_to_resume(self, done: int, rounds: int) -> str:
        """What an interrupted user is told."""
        if self._path is None:
            return f"stopped after round {done} of {rounds}; nothing was saved: give out=FOLDER to resume"
        return f"stopped after round {done} of {rounds}; saved in {self._path.parent}: resume from there"

    def where_is_last(self) -> str:
        """Where the last good checkpoint lies."""
        if self._path is None or self._saved is None:
            return "No checkpoint was kept"
        return f"The checkpoint of round {self._saved} is kept in {self._path.parent}"
