"""A client's own state on its machine, on disk, with that of the round before, so that a lost round can be undone.

One file per experiment, client and round holds what the client became in that round; the last two that count are kept,
and those that go with the older checkpoints that the server keeps (`fedsolve.deploy.retention`).
The server says in every order which update it used last: that is where the client goes on. So a round that is asked
for twice is not applied twice, an update that never arrived, or was rejected, is forgotten, and a server that goes
back by one round finds its clients' states of then, even where the newer file is damaged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.retention import pinned
from fedsolve.folders.files import slug
from fedsolve.folders.run_folder import first_difference, load_tree, read_manifest, save_tree


class StateLost(InvalidInput):
    """The state that an order goes on from is not here, or damaged."""

    about_request = True


class ClientState:
    """The state of one client in one experiment, kept below a folder of the node."""

    def __init__(self, folder: Path, experiment: str, client: int) -> None:
        if slug(experiment) != experiment:  # it becomes a path here, and comes from elsewhere
            raise InvalidInput(
                f"{experiment!r} is not a name of an experiment: use letters, digits and _.+- only"
            )
        self._folder = folder / experiment
        self._facts = {"experiment": experiment, "client": client}

    def path(self, round: int) -> Path:
        """Where the state after a round lies; in names, rounds count from 1."""
        return self._folder / f"client-{self._facts['client']}-round-{round + 1}.safetensors"

    def load(self, last_used_round: int, initial_state: Any) -> Any:
        """The state after the last round that the server used; `initial_state` if it used none (-1).

        Raises:
            StateLost: the state of that round is not here, or damaged.
            InvalidInput: the file is of another experiment, client or round.
        """
        if last_used_round < 0:
            return initial_state
        path = self.path(last_used_round)
        what = f"the state of client {self._facts['client']} after round {last_used_round + 1}"
        if not path.exists():
            rounds = sorted(round + 1 for round in self._rounds())
            raise StateLost(f"{what} is not at {path}" + (f", only of rounds {rounds}" if rounds else ""))
        try:
            manifest = read_manifest(path)
            state = load_tree(path, initial_state)
        except InvalidInput as error:
            raise StateLost(f"{what} is damaged: {error}") from None
        if first_difference(manifest, self._facts | {"round": last_used_round}):
            raise InvalidInput(
                f"{path} holds client {manifest.get('client')} of experiment {manifest.get('experiment')} after "
                f"round {manifest.get('round', -1) + 1}: move it away and restore the right file"
            )
        return state

    def save(self, round: int, state: Any, last_used_round: int) -> None:
        """Write the state after this round; of older ones those stay that the server may go back to.

        They are that of `last_used_round` and those of the older checkpoints that the server keeps. A newer one
        stays: an order that took so long that its round is over may end after the next one's.
        """
        path = self.path(round)
        save_tree(path, state, self._facts | {"round": round}, private=True)  # it follows from the data
        older = {old for old in self._rounds() if old < round}
        used = {old for old in older if old <= last_used_round}
        for old in older - {last_used_round} - pinned(used, round):
            self.path(old).unlink(missing_ok=True)

    def _rounds(self) -> set[int]:
        """Rounds of which a state lies here."""
        paths = self._folder.glob(f"client-{self._facts['client']}-round-*.safetensors")
        numbers = [path.stem.rpartition("-")[2] for path in paths]
        return {int(n) - 1 for n in numbers if n.isdigit()}
