"""The server's checkpoint, replaced after every round, from which a run goes on with the same bits.

Those before it (`folders.older_checkpoints`) share its record, one file, and the states of clients that the server
tracks. The names on disk ("used", "followed") are those of earlier versions, whose folders can be resumed.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.client.state import is_kept, pinned
from fedsolve.deploy.sanitize import reading
from fedsolve.deploy.server.coordinator import Coordinator, ServerState, check_usual, store_row
from fedsolve.engine.record import EvaluationSetup, Recorder, RecordFile
from fedsolve.folders.files import slug
from fedsolve.folders.run_folder import (
    DEPLOYMENT,
    OlderCheckpoints,
    RunFolder,
    load_tree,
    occupied_error,
    read_manifest,
    save_tree,
)

_FIELDS = {"identity": dict, "experiment": str, "round": int, "record": dict, "buffers": dict}


class DeploymentCheckpoint:
    """The checkpoint of one deployment in a folder."""

    def __init__(self, folder: RunFolder, label: str) -> None:
        where = folder.hold.folder
        self._folder, self._record = folder, RecordFile(where)
        self._older = OlderCheckpoints(folder.path, DEPLOYMENT.previous)
        self._tracked = TrackedStates(where / "followed")
        self._manifest: dict[str, Any] | None = None
        self._keeps: int | None = None  # rounds done of the newest, where it is one that stays
        self._setup: EvaluationSetup | None = None
        self._changes: list[str] = []
        if folder.resume:
            try:
                self._manifest = _read(folder.path)
            except InvalidInput as error:
                self._manifest = self._fall_back(error)
            self._check(self._older.source, self._manifest["identity"])
        elif self._older.any_exists:
            raise occupied_error(where, DEPLOYMENT.name, f" ({DEPLOYMENT.option})")
        manifest = self._manifest or {}
        self.experiment: str = manifest.get("experiment") or f"{slug(label)}-{secrets.token_hex(4)}"

    @classmethod
    @contextlib.contextmanager
    def at(
        cls, folder: Path, identity: Mapping[str, Any], label: str, resume: bool
    ) -> Iterator[DeploymentCheckpoint]:
        with RunFolder.at(folder, DEPLOYMENT, identity, resume) as held:
            yield cls(held, label)

    @property
    def notice(self) -> str:
        """One line if the newest checkpoint could not be read and an older one was taken, else ""."""
        return self._older.notice

    @property
    def evaluation_is_due(self) -> bool:
        return (self._manifest or {}).get("evaluation_is_due") is True

    def _check(self, path: Path, there: Mapping[str, Any]) -> None:
        # a federation that has grown draws other cohorts; whether it may, `restore` sees
        grows = there.get("population") != self._folder.identity.get("population", there.get("population"))
        self._folder.check_same(path, there, ("population", "sampling") if grows else ())

    def restore(self, coordinator: Coordinator, trains: bool = True) -> Recorder:
        """Put a coordinator where the checkpoint left it; the record so far, a new one if there is none."""
        # where rounds follow, which `trains` says, the method must have as many clients as before, or allow for more
        if self._manifest is None:
            return Recorder()
        if why := coordinator.why_not(self._manifest["identity"]["population"], trains):
            raise InvalidInput(
                f"{self._older.source} has {why}; resume as it was, or end it there (rounds = "
                f"{self._manifest['round']}) and begin anew with its model: initial = {str(self._folder.hold.folder)!r}"
            )
        while True:
            try:
                recorder = self._load(coordinator, self._manifest)
            except InvalidInput as error:
                self._manifest = self._fall_back(error)
            else:
                self._note(coordinator.state)
                return recorder

    def changes_of(self, setup: EvaluationSetup, rounds: int) -> list[str]:
        """What differs in how a run of so many rounds is evaluated from how it was, in words."""
        manifest, self._setup = self._manifest or {}, setup
        self._changes = [str(line) for line in manifest.get("changes", ())]
        before, now = manifest.get("identity", {}).get("population"), self._folder.identity["population"]
        if manifest and before != now:
            self._changes.append(f"{before} clients for {manifest['round']} rounds, and {now} from there on")
        if "looks" in manifest and manifest["round"] < rounds:
            self._changes += setup.changed(self._older.source, manifest["looks"], manifest["round"])
        return self._changes

    def save(self, coordinator: Coordinator, recorder: Recorder, *, evaluation_is_due: bool = False) -> None:
        """Write what has changed; the checkpoint itself is replaced atomically."""
        self._folder.hold.check()
        state = coordinator.state
        manifest = {
            "experiment": self.experiment,
            "round": state.round,
            "record": self._record.append(recorder),
            "buffers": {name: [list(x.shape), str(x.dtype)] for name, x in state.buffers.items()},
            "usual_norms": dict(state.usual),
            "changes": self._changes,
            "evaluation_is_due": evaluation_is_due,
        }
        if self._setup is not None:
            manifest["looks"] = self._setup.facts()
        tree = {"server": state.server, "buffers": state.buffers, "used": coordinator.written_last_used}
        with coordinator.precision():
            # Files of clients first, then the checkpoint that names them, then what nobody needs any more is removed.
            self._tracked.save(state)
            self._older.add(self._keeps)
            self._folder.save(tree, manifest)
            self._tracked.remove_unneeded(state)
            self._older.replaced(state.round)
        self._note(state)

    def how_to_go_back(self, round: int) -> str:
        """How a run is gone on with from before an update that was used in a round, counted from 1."""
        return self._older.how_to_go_back(round)

    def _note(self, state: ServerState) -> None:
        # Whether the newest checkpoint is to stay: only if a reply of its last round counts, so that rounds that are
        # skipped because a model is spoiled drop none of before.
        is_used = (state.last_used_round == state.round - 1).any()
        self._keeps = state.round if is_used and is_kept(state.round) else None

    def _fall_back(self, error: InvalidInput) -> dict[str, Any]:
        # The manifest of the next older checkpoint that can be read; that error if there is none.
        def read(path: Path) -> dict[str, Any]:
            manifest = _read(path)
            self._check(path, manifest["identity"])
            return manifest

        return self._older.fall_back(error, read)

    def _load(self, coordinator: Coordinator, manifest: Mapping[str, Any]) -> Recorder:
        state = coordinator.state
        with coordinator.precision(), reading(f"the checkpoint {self._older.source}"):
            buffers = {name: np.zeros(shape, dtype) for name, (shape, dtype) in manifest["buffers"].items()}
            # of clients that came later nothing is there
            last_used_round, before = state.last_used_round.copy(), manifest["identity"]["population"]
            like = {"server": state.server, "buffers": buffers, "used": last_used_round[:before]}
            tree = load_tree(self._older.source, like)
            last_used_round[:before] = tree["used"]
            tracked = self._tracked.load(state.tracked, last_used_round)
            recorder = self._record.restore(manifest["record"])
        buffers = {name: np.asarray(x) for name, x in tree["buffers"].items()}
        usual = check_usual(manifest.get("usual_norms"))
        server, done = tree["server"], manifest["round"]
        coordinator.state = ServerState(server, buffers, last_used_round, tracked, done, usual)
        return recorder


def _read(path: Path) -> dict[str, Any]:
    manifest = read_manifest(path)
    for name, kind in _FIELDS.items():
        if not isinstance(manifest, dict) or not isinstance(manifest.get(name), kind):
            raise InvalidInput(
                f"the checkpoint {path} has no {name}: it is not of this version, or of another run"
            )
    return manifest


class TrackedStates:
    """The states of clients as the server tracks them, a file a client and round, so that a save costs what changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rounds: dict[int, set[int]] = {}
        for path in folder.glob("client-*-round-*.safetensors"):
            _, client, _, round = path.stem.split("-")
            self._rounds.setdefault(int(client), set()).add(int(round))
        self._previous: np.ndarray | None = None  # `last_used_round` of the checkpoint before

    def save(self, state: ServerState) -> None:
        """Write the states of those whose update the last round used."""
        if not jax.tree.leaves(state.tracked):
            return
        round = state.round - 1
        for client in np.flatnonzero(state.last_used_round == round).tolist():
            path = self._path(client, round)
            save_tree(path, state.tracked_state(client), {"client": client, "round": round})
            self._rounds.setdefault(client, set()).add(round)

    def remove_unneeded(self, state: ServerState) -> None:
        """Remove what neither this checkpoint nor the one before it needs, nor an older one that is kept."""
        last_used_round = state.last_used_round
        previous = last_used_round if self._previous is None else self._previous
        for client in np.flatnonzero(last_used_round != previous).tolist():
            rounds = self._rounds.get(client, set())
            needed = {int(last_used_round[client]), int(previous[client])} | pinned(rounds, state.round)
            for round in rounds - needed:
                self._path(client, round).unlink(missing_ok=True)
                self._rounds[client].discard(round)
        self._previous = last_used_round.copy()

    def load(self, initial: Any, last_used_round: np.ndarray) -> Any:
        tracked = jax.tree.map(np.array, initial)
        if jax.tree.leaves(tracked):
            for client in np.flatnonzero(last_used_round >= 0).tolist():
                row = jax.tree.map(lambda x, i=client: x[i], tracked)
                path = self._path(client, int(last_used_round[client]))
                store_row(tracked, client, load_tree(path, row))
        self._previous = last_used_round.copy()
        return tracked

    def _path(self, client: int, round: int) -> Path:
        return self._folder / f"client-{client}-round-{round}.safetensors"
