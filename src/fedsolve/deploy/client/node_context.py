"""What the owner of a client app is told of the node that it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsolve.core.errors import InvalidInput

STATE_FOLDER = "fedsolve-state"
"""Where clients' states are unless the node says otherwise: below the folder that the SuperNode was started in."""


def states_of(node_config: Mapping[str, Any]) -> Path:
    """Where a node keeps its clients' states."""
    return Path(str(node_config.get("state-dir", STATE_FOLDER)))


@dataclass(frozen=True)
class NodeContext:
    """The node on which a client app runs; it is passed to `oracle_for`.

    Attributes:
        client: the client's number, from 0 (`client-id`, or else `partition-id`, of the node's configuration).
        site: the name that the server knows it by: `site` of the node's configuration, or the name of its CSV file
            without `.csv`; '' where there is neither.
        node_config: the node's configuration, as `--node-config` gave it.
        run_config: the run's configuration.
    """

    client: int
    site: str
    node_config: dict[str, Any]
    run_config: dict[str, Any]

    @property
    def data(self) -> Path:
        """The location of the node's data: `data` in its configuration.

        Raises:
            InvalidInput: the configuration does not say.
        """
        if "data" not in self.node_config:
            raise InvalidInput(
                "the node does not say where its data are: start it with --node-config 'data=\"/data/north.csv\"'"
            )
        return Path(str(self.node_config["data"]))
