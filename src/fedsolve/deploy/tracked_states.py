"""The states of clients as a deployment tracks them: a file a client and round, so that a save costs what changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsolve.deploy.retention import pinned
from fedsolve.deploy.server.server_state import ServerState, store_row
from fedsolve.folders.store import load_tree, save_tree


class TrackedStates:
    """The states of clients as the server tracks them, each in a file that says after which round it is."""

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
        """The states of all clients after the rounds in which they were last used, from those at the start."""
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
