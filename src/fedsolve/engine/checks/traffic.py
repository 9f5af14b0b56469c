"""What travels: the bytes of one client in a round, from the shapes of broadcast and message alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core import wire
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.oracle import Oracle, Outcome, WrappedOracle
from fedsolve.core.trees import dtype_of
from fedsolve.core.types import Params, Scalar, module, static
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
        bound = jnp.int32(self.work.max_steps)
        oracle = client_oracle(
            self.work, self.packed, self.key, self.packed.number(jnp.int32(0)), bound, jnp.int32(0)
        )
        return oracle if self.loss_type is None else _OfShapes(oracle, self.loss_type)


@dataclass(frozen=True)
class _OfShapes(WrappedOracle):
    """An oracle whose losses and gradients are zeros of the right shapes and types.

    A gradient has the model's: differentiating a network takes a third of a second, and the run's program does so
    again.
    """

    loss_type: Any

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        return self.full(params)

    def loss(self, params: Params, step: Scalar) -> Scalar:
        return self.full(params)[0]

    def full(self, params: Params) -> tuple[Scalar, Params]:
        return jnp.zeros((), self.loss_type), jax.tree.map(jnp.zeros_like, params)

    def trained(self, params: Params) -> Outcome:
        return Outcome(params, jnp.int32(1), jnp.int32(1), jnp.zeros((), self.loss_type))

    def remembering(self, memory: Any) -> Oracle:
        return self  # of a client's own training loop alone


def _loss_type(work: LocalWork, packed: PackedClients, params: Params) -> Any:
    # the type of a loss, traced as checks of a task do; None where it has buffers, which only calling it writes
    if hasattr(work.loss, "training_loop"):
        return dtype_of(params)
    if "buffers" in asked(work.loss):
        return None
    batch = jax.tree.map(lambda a: jax.ShapeDtypeStruct((ROWS, *a.shape[1:]), a.dtype), packed.examples)
    return of_call.eval_shape(work.loss, packed.model(params), batch).dtype
