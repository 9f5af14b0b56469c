"""The server's side of asynchronous rounds: orders of several versions of the model, and how late each reply is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core import wire
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.deploy.messages.message import TrainRequest
from fedsolve.deploy.messages.spec import to_spec
from fedsolve.deploy.server.coordinator import Coordinator
from fedsolve.deploy.server.server_state import Accepted
from fedsolve.engine.reacting import with_reacting
from fedsolve.results.columns import Columns


class BufferedCoordinator(Coordinator):
    """A coordinator of a method that takes late messages (`Buffered`, `Mixing`).

    An order tells a client the inner method, the newest model and the key of its round, the *version*; a client has one
    order at a time. What the method makes of a late reply is computed here, when the server updates.
    """

    def __init__(self, algorithm: Any, *given: Any, **options: Any) -> None:
        super().__init__(algorithm, *given, **options)
        self._method_spec = to_spec(algorithm.inner)
        self._versions: dict[int, int] = {}  # of each client's order
        self._broadcasts: dict[int, tuple[Any, Any]] = {}  # by version: as it is, and encoded

    @property
    def buffer(self) -> int:
        """Replies of an update."""
        return self.algorithm.traits.buffer

    def react(self, evaluations: Columns) -> None:
        """Go on at the rates that follow from all evaluations so far; orders tell clients the inner method's."""
        super().react(evaluations)
        if self.reacts:
            given: Any = with_reacting(self._given, self.method.algorithm)
            self._method_spec = to_spec(given.inner)
            self._broadcasts.pop(self.state.round, None)

    def train_request(self, client: int) -> TrainRequest:
        """An order for a client that has none, with the newest model."""
        version = self.state.round
        with self.precision():
            broadcast, encoded = self._broadcast(version)
            self._round = (self._cohorts.key(version), broadcast, encoded)
        self._versions[client] = version
        return super().train_request(client)

    def withdraw(self, client: int) -> None:
        """A client's order is over, without a reply that counts."""
        self._versions.pop(client, None)

    def version_of(self, client: int) -> int:
        """The version of a client's order."""
        return self._versions[client]

    def broadcast_of(self, version: int) -> Any:
        """The broadcast of a version that an order has."""
        return self._broadcasts[version][0]

    def message_of(self, client: int) -> Any:
        """A client's message, weighed by how late it is."""
        version, now = self._versions[client], self.state.round
        late = jnp.int32(now - version)
        broadcasts = self.broadcast_of(version), self._broadcast(now)[0]
        return _late_message()(self.algorithm, super().message_of(client), *broadcasts, late)

    def finish_round(self, accepted: Mapping[int, Accepted], drawn: int) -> dict[str, float]:
        """Update with the replies of a full buffer; their clients have no order afterwards."""
        entry = super().finish_round(accepted, drawn)
        for client in accepted:
            self.withdraw(client)
        needed = set(self._versions.values())
        self._broadcasts = {v: sent for v, sent in self._broadcasts.items() if v in needed}
        return entry

    def _broadcast(self, version: int) -> tuple[Any, Any]:
        """The newest broadcast, made once."""
        if version not in self._broadcasts:
            broadcast = self.method.broadcast(self.state.server, version, self.buffer)
            self._broadcasts[version] = (broadcast, wire.encode(broadcast))
        return self._broadcasts[version]


@cache
def _late_message() -> Any:
    """`Asynchronous.late_message` as a program."""

    def late_message(algorithm: Any, *given: Any) -> Any:
        return algorithm.late_message(*given)

    return jax.jit(late_message, compiler_options=compiler_options())
