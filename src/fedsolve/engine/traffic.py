"""What travels: the bytes of one client in a round, from the shapes of broadcast and message alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve import wire
from fedsolve.algorithm import Algorithm, Cohort
from fedsolve.engine.clients import LocalWork, PackedClients, client_oracle


@dataclass(frozen=True)
class Traffic:
    """Bytes of one client in a round, as `fedsolve.wire` encodes them.

    Attributes:
        up: of each variant of its message (most methods have one).
        down: of the broadcast.
    """

    up: tuple[int, ...]
    down: int


def traffic(algorithm: Algorithm, work: LocalWork, packed: PackedClients, key: Any, server: Any) -> Traffic:
    """The traffic of a method on a task; nothing is computed."""
    population = packed.counts.shape[0]
    first = Cohort(jnp.int32(0), jnp.int32(population), population)

    def message(server: Any) -> Any:
        oracle = client_oracle(work, packed, key, jnp.int32(0), jnp.int32(work.max_steps))
        broadcast = algorithm.broadcast(server, first)
        return algorithm.train(broadcast, algorithm.enroll(broadcast), oracle)[0]

    down = jax.eval_shape(lambda s: algorithm.broadcast(s, first), server)
    return Traffic(wire.variants(jax.eval_shape(message, server)).sizes, wire.size(down))
