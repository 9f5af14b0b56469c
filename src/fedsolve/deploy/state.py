"""A client's own state on its machine: durable, with the round before, so that a lost round can be taken back.

One file per experiment and client holds two states: what the client became in the last round that it trained, and
what it was before. The server says in every order which update it used last; whichever of the two states that
leaves is where the client goes on. So a round that is asked for twice is not applied twice, and an update that
never arrived, or was rejected, is forgotten.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsolve.errors import InvalidInput
from fedsolve.files import slug
from fedsolve.store import load_tree, read_manifest, save_tree


class ClientState:
    """The state of one client in one experiment, kept below a folder of the node."""

    def __init__(self, folder: Path, experiment: str, client: int) -> None:
        if slug(experiment) != experiment:  # it becomes a path here, and comes from elsewhere
            raise InvalidInput(f"{experiment!r} is no name of an experiment: letters, digits and _.+- alone")
        self.path = folder / experiment / f"client-{client}.safetensors"
        self._facts = {"experiment": experiment, "client": client}

    def before(self, used: int, enrolled: Any) -> Any:
        """The state after round `used`, the last that the server used; `enrolled` if it used none (-1).

        Raises:
            InvalidInput: the state of that round is not here, or the file is of another experiment or client.
        """
        if used < 0:
            return enrolled
        if not self.path.exists():
            raise InvalidInput(
                f"the state of client {self._facts['client']} after round {used + 1} is not at {self.path}: "
                "bring the file back, or start a new experiment"
            )
        manifest = read_manifest(self.path)
        if any(manifest.get(name) != value for name, value in self._facts.items()):
            raise InvalidInput(
                f"{self.path} holds client {manifest.get('client')} of experiment {manifest.get('experiment')}: "
                "move it away and bring the right file back"
            )
        for name in ("after", "before"):
            if manifest["rounds"][name] == used:
                return load_tree(self.path, {"after": enrolled, "before": enrolled})[name]
        after, before = manifest["rounds"]["after"], manifest["rounds"]["before"]
        raise InvalidInput(
            f"the state of client {self._facts['client']} at {self.path} is that of rounds {after + 1} and "
            f"{before + 1}, the server last used round {used + 1}: bring that file back, or start a new experiment"
        )

    def save(self, round: int, after: Any, used: int, before: Any) -> None:
        """Keep the state after this round beside the one before it, in one atomic step."""
        facts = self._facts | {"rounds": {"after": round, "before": used}}
        save_tree(
            self.path, {"after": after, "before": before}, facts, private=True
        )  # it follows from the data
