"""What a method sends, by tracing it on shapes: nothing is trained, no data are needed.

The simulation counts bytes by it, a deployment reads messages by it, and the page of what travels is made of it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.oracle import Oracle, Outcome
from fedsolve.core.types import Params, Scalar


class ShapeOracle(Oracle):
    """An oracle without data: its losses and gradients have the right shapes and types, not the values.

    The shape of a message may depend on `steps`; `bound` is the same.
    """

    num_examples = batch_size = 1
    client = 0

    def __init__(self, steps: int = 1, loss_type: Any = None) -> None:
        self.steps = self.bound = steps
        self.key, self._loss_type = jax.random.key(0), loss_type

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        return self.loss(params, step), params

    def loss(self, params: Params, step: Scalar) -> Scalar:
        return jnp.zeros((), self._loss_type or trees.dtype_of(params))

    def full(self, params: Params) -> tuple[Scalar, Params]:
        return self(params, 0)

    def trained(self, params: Params) -> Outcome:
        return Outcome(params, jnp.int32(1), jnp.int32(1), self.loss(params, 0))

    def remembering(self, memory: Any) -> Oracle:
        return self  # of a client's own training loop alone


def first_cohort(population: int) -> Cohort:
    """The cohort that the first broadcast is made for, from which clients' states start: all clients."""
    return Cohort(jnp.int32(0), jnp.int32(population), population)


def broadcast_shape(algorithm: Algorithm, params: Params, population: int) -> Any:
    """Shapes and types of a broadcast: server and clients know them, so that numbers alone travel."""
    cohort = first_cohort(population)
    return jax.eval_shape(lambda p: algorithm.broadcast(algorithm.init(p), cohort), params)


def message_shape(algorithm: Algorithm, broadcast: Any, client: Any, steps: int = 1) -> Any:
    """Shapes and types of what a client sends, from a broadcast and its state (arrays or their shapes)."""
    return jax.eval_shape(
        lambda down, client: algorithm.train(down, client, ShapeOracle(steps))[0], broadcast, client
    )


def received_shape(algorithm: Algorithm, broadcast: Any, message: Any, client: Any) -> Any:
    """Shapes and types of what `receive` makes of a message: what is reduced over the cohort."""
    return jax.eval_shape(lambda *x: algorithm.receive(*x)[0], broadcast, message, client)


def is_forwarded(algorithm: Algorithm, broadcast: Any, message: Any, client: Any) -> bool:
    """Whether messages are reduced as they are sent: `receive` returns them leaf for leaf and computes nothing."""
    traced = jax.make_jaxpr(lambda *x: algorithm.receive(*x)[0])(broadcast, message, client).jaxpr
    first, count = len(jax.tree.leaves(broadcast)), len(jax.tree.leaves(message))
    return list(traced.outvars) == list(traced.invars[first : first + count])


def tracks_clients(algorithm: Algorithm) -> bool:
    """Whether the server must follow the clients' states to read their messages (Frank-Wolfe's extreme points)."""
    if algorithm.traits.secure_sums:
        return False
    while (inner := getattr(algorithm, "inner", None)) is not None:
        algorithm = inner
    return type(algorithm).receive is not Algorithm.receive
