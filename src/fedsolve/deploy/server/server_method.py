"""A method as a server runs it: cast to the run's type, with what its messages look like, found once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core import introspect, wire
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.types import Params
from fedsolve.deploy import verbs
from fedsolve.deploy.messages.signature import float_type
from fedsolve.engine.compute.cast import cast


@dataclass(frozen=True)
class ServerMethod:
    """A method on the server, and the shapes that follow from it and from the model.

    Attributes:
        algorithm: the method, its numbers of the run's floating-point type.
        dtype: that type, float32 or float64.
        first_broadcast: the broadcast of the first round, from which every client's state starts.
        initial_state: a client's state before it ever takes part, `()` if the method keeps none.
        zero_message: a client's message with zeros for numbers.
        tracks_clients: whether the server tracks the clients' states to read their messages.
        is_forwarded: whether messages are reduced as they are sent.
    """

    algorithm: Algorithm
    dtype: Any
    first_broadcast: Any
    initial_state: Any
    zero_message: Any
    tracks_clients: bool
    is_forwarded: bool

    @classmethod
    def prepare(cls, algorithm: Algorithm, params: Params, population: int) -> tuple[ServerMethod, Any]:
        """The method for this model and so many clients, and its server's first state."""
        dtype = float_type(params)
        with jax.enable_x64(dtype == jnp.float64):
            tracks_clients = introspect.tracks_clients(algorithm)
            algorithm = cast(algorithm, dtype)
            params = jax.tree.map(jnp.asarray, params)
            server = verbs.init(algorithm, params)
            broadcast = verbs.broadcast(algorithm, server, verbs.first_cohort(population))
            client = algorithm.enrol(broadcast, params)
            message = verbs.zero_message(algorithm, broadcast, client)
            is_forwarded = introspect.is_forwarded(algorithm, broadcast, message, client)
        return cls(algorithm, dtype, broadcast, client, message, tracks_clients, is_forwarded), server

    def precision(self) -> Any:
        """The context in which the run's floating-point type exists."""
        return jax.enable_x64(self.dtype == jnp.float64)

    @property
    def max_message_bytes(self) -> int:
        """Bytes of the longest message that a client may send."""
        return max(wire.variants(self.zero_message).sizes)

    @property
    def is_stateful(self) -> bool:
        """Whether clients keep a state of their own."""
        return bool(jax.tree.leaves(self.initial_state))

    def receive(self, broadcast: Any, message: Any, tracked_state: Any) -> tuple[Any, Any]:
        """A message as it is reduced, and the client's next state where the server tracks it, else `()`."""
        if self.is_forwarded and not self.tracks_clients:
            return message, ()
        before = tracked_state if self.tracks_clients else self.initial_state
        received, after = verbs.receive(self.algorithm, broadcast, message, before)
        return jax.device_get((received, after if self.tracks_clients else ()))

    def reduce(self, messages: Iterable[Any], weights: Sequence[float]) -> Any:
        """The messages of a round reduced over its cohort; zeros of the same shapes for an empty one."""
        if not weights:
            return verbs.zero_reduced(
                self.algorithm, self.first_broadcast, self.zero_message, self.initial_state
            )
        return verbs.reduce(self.algorithm, messages, weights, self.dtype)
