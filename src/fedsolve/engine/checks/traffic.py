"""What travels: the bytes of one client in a round, from the shapes of broadcast and message alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core import wire
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.introspect import ShapeOracle
from fedsolve.core.oracle import Oracle
from fedsolve.core.trees import dtype_of
from fedsolve.core.types import Params, module, static
from fedsolve.engine.checks.gathers import ROWS
from fedsolve.engine.checks.losses import of_call
from fedsolve.engine.checks.methods import check_interface
from fedsolve.engine.compute.clients import LocalWork, PackedClients, client_oracle
from fedsolve.tasks.loss_arguments import asked


@dataclass(frozen=True)
class Traffic:
    """Bytes of one client in a round, as `fedsolve.wire` encodes them; up those of each variant of its message."""

    up: tuple[int, ...]
    down: int


def traffic(
    algorithm: Algorithm, work: LocalWork, packed: PackedClients, key: Any, server: Any, params: Params
) -> Traffic:
    """The traffic of a method on a task, which is checked on the way; nothing is computed."""
    first = _FirstClient(packed, key, _loss_type(work, packed, params), work)
    sent = check_interface(algorithm, server, params, packed.population, first)
    return Traffic(wire.variants(sent.up).sizes, wire.size(sent.down))


@module
class _FirstClient:
    # makes the first client's oracle, of shapes alone where the type of the loss is given
    packed: PackedClients
    key: Any
    loss_type: Any = static()
    work: LocalWork = static()

    def __call__(self) -> Oracle:
        if self.loss_type is not None:
            # differentiating a network takes a third of a second, and the run's program does so again
            return ShapeOracle(self.work.max_steps, self.loss_type)
        bound, first = jnp.int32(self.work.max_steps), jnp.int32(0)
        return client_oracle(self.work, self.packed, self.key, self.packed.number(first), bound, first)


def _loss_type(work: LocalWork, packed: PackedClients, params: Params) -> Any:
    # the type of a loss, traced as checks of a task do; None where it has buffers, which only calling it writes
    if hasattr(work.loss, "training_loop"):
        return dtype_of(params)
    if "buffers" in asked(work.loss):
        return None
    batch = jax.tree.map(lambda a: jax.ShapeDtypeStruct((ROWS, *a.shape[1:]), a.dtype), packed.examples)
    return of_call.eval_shape(work.loss, packed.model(params), batch).dtype
