"""What travels: the bytes of one client in a round, from the shapes of broadcast and message alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from fedsolve.core import wire
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, module, static
from fedsolve.engine.checks.shape_checks import check_interface
from fedsolve.engine.compute.client_oracle import client_oracle
from fedsolve.engine.compute.clients import LocalWork, PackedClients


@dataclass(frozen=True)
class Traffic:
    """Bytes of one client in a round, as `fedsolve.wire` encodes them.

    Attributes:
        up: of each variant of its message (most methods have one).
        down: of the broadcast.
    """

    up: tuple[int, ...]
    down: int


def traffic(
    algorithm: Algorithm, work: LocalWork, packed: PackedClients, key: Any, server: Any, params: Params
) -> Traffic:
    """The traffic of a method on a task, which is checked on the way; nothing is computed."""
    sent = check_interface(algorithm, server, params, packed.population, _FirstClient(packed, key, work))
    return Traffic(wire.variants(sent.up).sizes, wire.size(sent.down))


@module
class _FirstClient:
    """Makes the first client's oracle."""

    packed: PackedClients
    key: Any
    work: LocalWork = static()

    def __call__(self) -> Oracle:
        bound = jnp.int32(self.work.max_steps)
        return client_oracle(
            self.work, self.packed, self.key, self.packed.number(jnp.int32(0)), bound, jnp.int32(0)
        )
