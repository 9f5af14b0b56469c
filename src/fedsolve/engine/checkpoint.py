"""The checkpoint of a run: its state and how far its record is, from which it goes on with the same bits."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import replace
from fedsolve.engine.compute.layout import Need, check_disk
from fedsolve.engine.compute.round import RunState, shard_state
from fedsolve.engine.compute.sharding import StateSharding, check_alone, is_first, whole
from fedsolve.engine.record import EvaluationSetup, Recorder, RecordFile
from fedsolve.engine.streaming import ClientStates, Stream
from fedsolve.folders.run_folder import RUN, RunFolder, check_rounds, how_to_resume, load_tree

_MOVED = (
    "the rounds after {} ran on other devices ({}): results are those of one run to rounding, not to the bit"
)


class Checkpoints:
    """The checkpoint of one run, or nothing where no folder was given."""

    # Of several processes the first one writes it, and all read it to go on.

    def __init__(
        self,
        folder: RunFolder | None,
        stream: Stream | None,
        state_sharding: StateSharding | None,
        stack: contextlib.ExitStack,
    ) -> None:
        self._folder = folder
        self._record = None if folder is None else RecordFile(folder.hold.folder)
        self._saved: int | None = None
        self.moves: list[str] = []
        """What is to be said where rounds were computed on other devices than those before, or evaluated otherwise."""
        self._setup: EvaluationSetup | None = None
        self._stream, self._state_sharding, self._stack = stream, state_sharding, stack
        self._states: ClientStates | None = None

    @classmethod
    @contextlib.contextmanager
    def at(
        cls,
        out: str | Path | None,
        identity: dict[str, Any],
        resume: bool,
        stream: Stream | None = None,
        state_sharding: StateSharding | None = None,
    ) -> Iterator[Checkpoints]:
        """Hold the folder for one run, whose clients may be streamed: their states then lie there too."""
        # what is saved has all clients' states by client, however they are sharded over devices
        # (`state_sharding`)
        with contextlib.ExitStack() as stack:
            if is_first():
                folder = stack.enter_context(RunFolder.if_given(out, RUN, identity, resume))
            else:
                folder = RunFolder.seen(Path(out), RUN, identity) if resume and out is not None else None
            yield cls(folder, stream, state_sharding, stack)

    @property
    def where(self) -> Path | None:
        """The folder that this process writes, None where it keeps nothing."""
        return None if self._folder is None or not is_first() else self._folder.hold.folder

    @property
    def due(self) -> bool:
        return self._folder is not None and is_first() and self._folder.due

    def restore(
        self, state: RunState, recorder: Recorder, rounds: int, setup: EvaluationSetup
    ) -> tuple[RunState, Recorder]:
        """The saved state and record when resuming a run of so many rounds, else those given."""
        # a state that another takes the place of is deleted first: all clients' states are in memory once
        self._setup = setup
        folder, manifest = self._folder, None if self._folder is None else self._folder.manifest()
        if folder is None or self._record is None or manifest is None:
            self._check_disk(self._open_states(state))
            if self._states is not None:
                self._states.begin()
            return state, recorder
        check_rounds(f"the checkpoint {folder.path}", manifest["round"], rounds)
        self._saved = manifest["round"]
        self.moves = [*manifest.get("moves", ())]
        if folder.has_moved(manifest["identity"]):
            self.moves.append(_MOVED.format(manifest["round"], folder.identity["devices"]))
        if "looks" in manifest and manifest["round"] < rounds:
            self.moves += setup.changed(folder.path, manifest["looks"], manifest["round"])
        streamed = self._stream is not None and bool(jax.tree.leaves(state.clients))
        if ("states" in manifest) != streamed:
            there, here = ("stream", "device") if "states" in manifest else ("device", "stream")
            raise InvalidInput(
                f"the checkpoint {folder.path} has the clients' states of residency = '{there}', this run '{here}': "
                f"give residency = '{there}', or start again in another folder"
            )
        state = self._open_states(state)
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
        state_sharding = self._state_sharding
        if state_sharding is not None:
            like = replace(like, clients=state_sharding.shapes_by_client(like.clients))
        mesh = state.round.sharding.mesh
        for leaf in jax.tree.leaves(state):
            leaf.delete()
        if self._states is None:
            loaded = load_tree(folder.path, like)
        else:
            loaded = load_tree(folder.path, replace(like, clients=self._states.known))
            self._states.restore(loaded.clients)
            loaded = replace(loaded, clients=())
        loaded = shard_state(loaded, mesh, state_sharding)
        return loaded, self._record.restore(manifest["record"])

    def save(self, state: RunState, recorder: Recorder) -> None:
        if self._folder is None or self._record is None or not is_first():
            return
        # clients by number, not by device: a run may go on with other devices
        state = whole(state, self._state_sharding)
        self._folder.hold.check()
        self._saved = int(state.round)
        manifest = {"round": self._saved, "record": self._record.append(recorder), "moves": self.moves}
        if self._setup is not None:
            manifest["looks"] = self._setup.facts()
        if self._stream is not None and self._states is not None:
            # clients' states first: the manifest may only speak of what lies on the disk
            self._stream.write_back(state)
            self._states.commit()
            state, manifest["states"] = replace(state, clients=self._states.known), True
        self._folder.save(state, manifest)
        if self._states is not None:
            self._states.committed()

    def _check_disk(self, state: RunState) -> None:
        # refuse a run whose first checkpoint, or whose clients' states, no disk has room for
        needs, folder = [], None
        if self._states is not None and self._stream is not None:
            rows, folder = self._stream.expected * self._states.row_bytes, self._states.folder
            fewer = "fewer clients a round, or fewer rounds"
            needs.append(Need("the states of clients that take part", rows, fewer))
        if self._folder is not None and is_first():
            folder = self._folder.hold.folder
            smaller = "a smaller model, or a method that keeps less"
            needs.append(Need("a checkpoint", trees.nbytes(state), smaller))
        if folder is not None:
            check_disk(folder, needs)

    def _open_states(self, state: RunState) -> RunState:
        # have clients' states in a file where they are streamed; the rest of the state
        if self._stream is None or not jax.tree.leaves(state.clients):
            return state
        check_alone("a run whose clients' states are streamed")
        folder = self._folder
        where = folder.hold.folder if folder else self._stack.enter_context(tempfile.TemporaryDirectory())
        first = jax.tree.map(lambda x: np.asarray(x[0]), state.clients)
        population = self._stream.population.data.num_clients
        self._states = ClientStates(Path(where), first, population, lasting=folder is not None)
        self._stack.callback(self._states.close)
        self._stream.keep_states(self._states)
        return replace(state, clients=())

    def how_to_resume(self, done: int, rounds: int) -> str:
        folder = None if self._folder is None else self._folder.hold.folder
        return how_to_resume(folder, f"stopped after round {done} of {rounds}")

    def where_is_last(self) -> str:
        if self._folder is None or self._saved is None:
            return "No checkpoint was kept"
        return f"The checkpoint of round {self._saved} is kept in {self._folder.hold.folder}"
