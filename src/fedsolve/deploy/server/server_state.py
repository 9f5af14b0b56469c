"""What the server of a deployment carries from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from fedsolve.deploy.host_arrays import Buffers


@dataclass(frozen=True)
class Accepted:
    """A reply that counts; its message waits in the reply store.

    Attributes:
        weight: the client's number of examples, or 1 where the method weights clients alike.
        norm: Euclidean norm of the message.
        parts: norms of its fields and of what is averaged beside the model, by name.
        buffers: what is averaged beside the model, by name.
    """

    weight: float
    norm: float
    parts: Mapping[str, float]
    buffers: Buffers


@dataclass(frozen=True)
class ServerState:
    """Everything that a server carries from round to round, and what a checkpoint holds.

    Attributes:
        server: the method's own state.
        buffers: what is averaged beside the model, by name.
        last_used_round: the last round in which each client's update was used, -1 for none, shape (clients,).
        tracked: the clients' states as the server tracks them from messages, leaves of shape (clients, ...); `()`
            where the method's server need not.
        round: rounds done.
        usual: the norms that are usual so far, by field of a message.
    """

    server: Any
    buffers: Buffers
    last_used_round: np.ndarray
    tracked: Any
    round: int
    usual: Mapping[str, float] = field(default_factory=dict)

    def tracked_state(self, client: int) -> Any:
        """One client's state as the server tracks it."""
        return jax.tree.map(lambda x: x[client], self.tracked)

    def store_tracked(self, client: int, state: Any) -> None:
        """Write one client's new state in place: together they are the largest thing that a server holds."""
        store_row(self.tracked, client, state)


def repeated(state: Any, population: int) -> Any:
    """The tracked states at the start: every client's is this one."""
    return jax.tree.map(lambda x: np.stack([np.asarray(x)] * population), state)


def store_row(stacked: Any, client: int, state: Any) -> None:
    """Write one client's state into the arrays of all clients, in place."""
    for rows, row in zip(jax.tree.leaves(stacked), jax.tree.leaves(state), strict=True):
        rows[client] = row
