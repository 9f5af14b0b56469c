"""The server's checkpoint: one file, replaced after every round, from which a run goes on with the same bits."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.deploy.coordinator import Coordinator, Held
from fedsolve.engine.checkpoint import CHECKPOINT
from fedsolve.engine.record import Recorder
from fedsolve.errors import InvalidInput
from fedsolve.files import slug
from fedsolve.lock import Hold, locked
from fedsolve.store import load_tree, read_manifest, save_tree


class Keeper:
    """The checkpoint of one deployment in a folder.

    Attributes:
        experiment: the experiment's name: that of the checkpoint, or a new one.
    """

    def __init__(self, hold: Hold, identity: Mapping[str, Any], label: str, resume: bool) -> None:
        folder = hold.folder
        self._hold, self._path, self._identity = hold, folder / CHECKPOINT, dict(identity)
        self._manifest: dict[str, Any] | None = None
        if self._path.exists() and not resume:
            raise InvalidInput(
                f"{folder} holds a run already: resume it (resume=true) or choose another folder"
            )
        if resume:
            self._manifest = read_manifest(self._path)
            for name, here in self._identity.items():
                there = self._manifest.get("identity", {}).get(name)
                if there != here:
                    raise InvalidInput(
                        f"the checkpoint {self._path} has {name} = {there}, this run {here}: resume as it was"
                    )
        known = self._manifest or {}
        self.experiment: str = known.get("experiment") or f"{slug(label)}-{secrets.token_hex(4)}"

    @classmethod
    @contextlib.contextmanager
    def at(cls, folder: Path, identity: Mapping[str, Any], label: str, resume: bool) -> Iterator[Keeper]:
        """Hold a folder for one deployment.

        Raises:
            InvalidInput: it holds a run already, none that can be resumed, or is in use.
        """
        with locked(folder) as hold:
            yield cls(hold, identity, label, resume)

    def restore(self, coordinator: Coordinator) -> Recorder:
        """Put a coordinator where the checkpoint left it; the record so far, a new one if there is none."""
        if self._manifest is None:
            return Recorder()
        kept = {name: np.zeros(shape, dtype) for name, (shape, dtype) in self._manifest["buffers"].items()}
        held = coordinator.held
        like = {"server": held.server, "buffers": kept, "used": held.used, "followed": held.followed}
        with coordinator.precision():
            found = load_tree(self._path, like)
        buffers = {name: np.asarray(x) for name, x in found["buffers"].items()}
        used = np.array(found["used"])
        done = self._manifest["round"]
        coordinator.held = Held(found["server"], buffers, used, found["followed"], done)
        return Recorder.from_dict(self._manifest["record"])

    def save(self, coordinator: Coordinator, recorder: Recorder) -> None:
        """Write everything, atomically.

        Raises:
            InvalidInput: the folder cannot be written, or was removed during the run.
        """
        self._hold.check()
        held = coordinator.held
        manifest = {
            "identity": self._identity,
            "experiment": self.experiment,
            "round": held.round,
            "record": recorder.to_dict(),
            "buffers": {name: [list(x.shape), str(x.dtype)] for name, x in held.buffers.items()},
        }
        tree = {"server": held.server, "buffers": held.buffers, "used": held.used, "followed": held.followed}
        with coordinator.precision():
            save_tree(self._path, tree, manifest)
