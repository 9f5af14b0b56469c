"""The oracle over one client's rows inside the compiled engine: minibatches in shuffled order, masked where uneven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from fedsolve.core.buffers import Memory
from fedsolve.core.oracle import Oracle
from fedsolve.core.sampling import DIFFERENT_EPOCHS, shuffled
from fedsolve.core.types import Batch, Params, Scalar
from fedsolve.core.xla.products import with_half_products
from fedsolve.engine.compute.clients import LocalWork, PackedClients
from fedsolve.engine.compute.mean_loss import mean_loss
from fedsolve.tasks.loss_arguments import asked

TAG_CLIENT = 0xC11E0000  # beyond all counters at which cohorts are drawn from the round's key
TAG_STEP = 0x57E90000  # beyond all draws of the client's own noise


@dataclass(frozen=True)
class ClientOracle(Oracle):
    """One client's rows as an oracle; made by `client_oracle` inside the program, or outside as a pytree for it.

    Attributes:
        work: what is static.
        packed: all clients' examples.
        offset: the client's first row.
        order: its shuffled row numbers, shape (passes, positions); None if each step sees all of it.
        batches: minibatches of one pass.
        round_key: the key of the round.
        noise: a key for the client's own randomness; None if it follows from the round's.
        memory: the client's buffers, which gradients of minibatches write; None if the loss has none.
    """

    work: LocalWork
    packed: PackedClients
    offset: Any
    order: Int[Array, "passes positions"] | None
    batches: Any
    num_examples: Any
    steps: Any
    bound: Any
    client: Any
    round_key: Any
    noise: Any = None
    memory: Memory | None = None

    @property
    def key(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The key of the client's randomness in the round."""
        return own_key(self.round_key, self.client) if self.noise is None else self.noise

    @property
    def batch_size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Examples of a full minibatch."""
        return self.work.batch_size

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        """Loss and gradient on the minibatch of a local step."""
        buffers, value = self._buffers(), self._products(jax.value_and_grad(self._minibatch, has_aux=True))
        (loss, new), gradient = value(params, step, buffers)
        if self.memory is not None:  # clients with fewer steps than others of their chunk stand still
            self.memory.write(new, True if isinstance(self.steps, int) else step < self.steps)
        return loss, gradient

    def remembering(self, memory: Memory) -> ClientOracle:
        """This oracle with buffers."""
        return replace(self, memory=memory)

    def _buffers(self) -> Any:
        return None if self.memory is None else self.memory.read().given()

    def loss(self, params: Params, step: Scalar) -> Scalar:
        """Loss on the minibatch of a local step, with what is drawn there."""
        return self._products(self._minibatch)(params, step, self._buffers())[0]

    def full(self, params: Params) -> tuple[Scalar, Params]:
        """Loss and gradient on all of the client's examples, as in evaluation: nothing is drawn."""
        mean, rows = partial(self._mean, buffers=self._buffers()), jnp.arange(self.work.rows)
        (loss, _), gradient = self._products(jax.value_and_grad(mean, has_aux=True))(params, rows)
        return loss, gradient

    def _products(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with the products that the local work asks for."""
        return with_half_products(function) if self.work.half else function

    def step_key(self, step: Scalar) -> Array | None:
        """The key of a local step, the same for every look at it; None if the loss asks for none."""
        if "key" not in asked(self.work.loss):
            return None
        own = jax.random.fold_in(own_key(self.round_key, self.client), TAG_STEP)
        return jax.random.fold_in(own, step)

    def _minibatch(self, params: Params, step: Scalar, buffers: Any) -> tuple[Scalar, Any]:
        """Loss on the minibatch of a local step, and the new buffers."""
        key = self.step_key(step)
        if self.order is None:
            return self._mean(params, jnp.arange(self.work.rows), key=key, buffers=buffers)
        # a client that fits in one batch sees all of it each step, whatever the pass
        epoch = jnp.minimum(step // self.batches, self.work.passes - 1)
        if self.work.passes > DIFFERENT_EPOCHS:
            epoch = epoch % DIFFERENT_EPOCHS
        start = (step % self.batches) * self.work.batch_size
        index = start + jnp.arange(self.work.batch_size)
        rows = lax.dynamic_slice(self.order, (epoch, start), (1, len(index)))[0]
        return self._mean(params, index, rows, key, buffers)

    def _mean(
        self,
        params: Params,
        index: Array,
        rows: Array | None = None,
        key: Array | None = None,
        buffers: Any = None,
    ) -> tuple[Scalar, Any]:
        """Mean loss over the positions in the client's order that hold an example of it, and the new buffers."""
        rows, params = index if rows is None else rows, self.packed.model(params)
        if self.work.even:
            batch = _rows(self.packed.examples, self.offset + rows)
            return mean_loss(self.work.loss, params, batch, None, key, buffers)
        mask = index < self.num_examples
        batch = _rows(self.packed.examples, self.offset + jnp.where(mask, rows, 0))
        return mean_loss(self.work.loss, params, batch, mask, key, buffers)


def own_key(round_key: Array, client: Scalar) -> Array:
    """The key of a client's randomness in a round."""
    return jax.random.fold_in(jax.random.fold_in(round_key, TAG_CLIENT), client)


def _flatten(oracle: ClientOracle) -> tuple[list[Any], tuple[Any, ...]]:
    """Arrays are leaves; the work, and counts that all clients share, are part of the program."""
    values = [(f.name, getattr(oracle, f.name)) for f in fields(oracle)]
    fixed = tuple((name, v) for name, v in values if isinstance(v, LocalWork | int))
    rest = [(name, v) for name, v in values if not isinstance(v, LocalWork | int)]
    return [v for _, v in rest], (tuple(name for name, _ in rest), fixed)


def _unflatten(static: tuple[Any, ...], leaves: Any) -> ClientOracle:
    names, fixed = static
    return ClientOracle(**dict(zip(names, leaves, strict=True)), **dict(fixed))


jax.tree_util.register_pytree_node(ClientOracle, _flatten, _unflatten)


def client_oracle(
    work: LocalWork,
    packed: PackedClients,
    key: Array,
    client: Scalar,
    bound: Scalar,
    slot: Scalar | None = None,
) -> ClientOracle:
    """The oracle of one client in one round; its shuffles depend on the key and the client alone.

    The client is at `slot` among the packed ones, by default at its number, where all are packed.
    """
    slot = client if slot is None else slot
    count = packed.counts[slot]
    batch = work.batch_size
    order = None
    if work.passes:
        needed = -(-work.rows // batch) if work.passes > 1 else min(work.max_steps, -(-work.rows // batch))
        drawn = min(needed * batch, work.rows)
        inside = work.rows if work.even else count
        order = jax.vmap(lambda epoch: shuffled(key, client, epoch, work.rows, inside, drawn))(
            jnp.arange(min(work.passes, DIFFERENT_EPOCHS))
        )
        order = jnp.pad(order, ((0, 0), (0, needed * batch - drawn)))
    batches = work.rows // batch if work.even else -(-count // batch)
    steps = work.max_steps if work.in_step else packed.steps[slot]
    start = packed.offsets[slot]
    return ClientOracle(work, packed, start, order, batches, count, steps, bound, client, key)


def _rows(examples: Batch, rows: Array) -> Batch:
    return jax.tree.map(lambda a: a[rows], examples)
