"""Which node each client number is bound to, in a file of the run's folder that outlives the server."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from flwr.proto.node_pb2 import NodeInfo

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.files import write_atomically
from fedsolve.folders.sealed import LARGEST
from fedsolve.folders.untrusted import MALFORMED, loads, read_bytes

BINDINGS = "clients.json"
"""The file in a run's folder: experiment, and each client's number with the digest of its node's key."""


def key_digest(node: NodeInfo) -> str:
    """What identifies a node: a digest of its public key, which a SuperNode without one of its own makes at each start.

    >>> key_digest(NodeInfo(node_id=7))
    'node-7'
    """
    return hashlib.sha256(node.public_key).hexdigest()[:32] if node.public_key else f"node-{node.node_id}"


class NodeBindings:
    """Client numbers and the nodes that they are bound to, of one experiment, in a file that outlives the server.

    Args:
        path: the file; bindings of another experiment in it are ignored.
        experiment: the experiment's name.

    Raises:
        InvalidInput: the file cannot be read.
    """

    def __init__(self, path: Path, experiment: str) -> None:
        self._path, self._experiment = path, experiment
        self._keys: dict[int, str] = {}
        self._saved: dict[int, str] = {}
        try:
            content = loads(read_bytes(path, LARGEST, follow=False))
            if content["experiment"] == experiment:
                self._keys = {int(client): str(key) for client, key in content["keys"].items()}
        except FileNotFoundError:
            return
        except (OSError, *MALFORMED) as error:
            raise InvalidInput(
                f"{path} cannot be read ({type(error).__name__}): restore it, or delete it, and each client number "
                "belongs to the next node that claims it"
            ) from None
        self._saved = dict(self._keys)

    def key_of(self, client: int) -> str | None:
        """The key that a client number is bound to, None if it is not bound."""
        return self._keys.get(client)

    def clients_of(self, key: str) -> list[int]:
        """The client numbers that are bound to a key: one, or none."""
        return [client for client, bound in self._keys.items() if bound == key]

    def bind(self, client: int, key: str) -> None:
        """Bind a client number to a key, and that key to no other number."""
        for other in self.clients_of(key):
            del self._keys[other]
        self._keys[client] = key

    def save(self) -> None:
        """Write the bindings atomically, if they changed."""
        if self._keys != self._saved:
            keys = {str(client): self._keys[client] for client in sorted(self._keys)}
            content = json.dumps({"experiment": self._experiment, "keys": keys}, indent=1)
            write_atomically(self._path, content + "\n")
            self._saved = dict(self._keys)
