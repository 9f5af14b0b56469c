"""Clients with models of their own: each example is evaluated with the model of its client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.buffers import Memory, WithBuffers
from fedsolve.core.types import Batch, Params, Scalar, module, static
from fedsolve.engine.compute.client_oracle import client_oracle
from fedsolve.engine.compute.clients import LocalWork, PackedClients

OnRows = Callable[[Params, Batch], Any]
"""What a model gives for each of a few examples, leading axis (examples,)."""


@module
class Owned:
    """Examples by their owners.

    Attributes:
        packed: the examples, owner after owner.
        ids: the owners' numbers in the population, ascending, shape (clients,).
        rows: examples of the one with most.
    """

    packed: PackedClients
    ids: Any
    rows: int = static()

    @classmethod
    def of(cls, packed: PackedClients, ids: np.ndarray) -> Owned:
        """Clients that are packed already."""
        return cls(packed, ids, int(np.asarray(packed.counts).max()))

    @classmethod
    def by_owner(cls, examples: Batch, owners: np.ndarray, frozen: Params) -> Owned:
        """Examples with the number of each one's owner, shape (examples,)."""
        in_order, ids, counts = ordered_by_owner(examples, owners)
        offsets, counts, steps = (
            jnp.asarray(a, jnp.int32) for a in (np.cumsum(counts) - counts, counts, np.zeros_like(counts))
        )
        return cls.of(PackedClients(in_order, offsets, counts, steps, frozen), ids)


@module
class Own:
    """The models of some clients.

    Attributes:
        algorithm: whose `own_model` they are.
        states: the clients' states, leaves of shape (clients, ...), in the order of the clients that are evaluated.
        rows: examples of the one with most, at least.
    """

    algorithm: Algorithm
    states: Any
    rows: int = static()

    def model(self, exported: Params, place: Scalar) -> Params:
        """Of the client at a place."""
        return self.algorithm.own_model(exported, jax.tree.map(lambda x: x[place], self.states))

    def on_all(self, function: OnRows, packed: PackedClients, exported: Params, most: int) -> Any:
        """What a function gives for each example by its owner's model; at most so many rows at a time."""
        total = jax.tree.leaves(packed.examples)[0].shape[0]
        size = min(total, self.rows, most)

        def client(place: Scalar, found: Any) -> Any:
            model = packed.model(self.model(exported, place))
            first, stop = packed.offsets[place], packed.offsets[place] + packed.counts[place]

            def block(j: Scalar, found: Any) -> Any:
                start = jnp.minimum(first + j * size, total - size)  # may reach back to others' rows
                here = start + jnp.arange(size)
                rows = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, size), packed.examples)
                return _put(found, function(model, rows), start, (here >= first) & (here < stop))

            return lax.fori_loop(0, -(-packed.counts[place] // size), block, found)

        one = jax.tree.map(lambda a: a[:1], packed.examples)
        shapes = jax.eval_shape(lambda: function(packed.model(self.model(exported, 0)), one))
        empty = jax.tree.map(lambda s: jnp.zeros((total, *s.shape[1:]), s.dtype), shapes)
        return lax.fori_loop(
            0, jnp.sum(packed.counts > 0), client, empty
        )  # places that nobody takes come last


@module
class Tuned(Own):
    """The models of some clients after local steps from them.

    Attributes:
        solver: a local solver, which takes the steps.
        train: the clients' training examples.
        slots: the clients' places there.
        key: their shuffles follow from it.
        work: what is static of the steps.
    """

    solver: Any
    train: PackedClients
    slots: Any
    key: Array
    work: LocalWork = static()

    def model(self, exported: Params, place: Scalar) -> Params:
        """Of the client at a place; buffers are those that its steps leave."""
        slot, start, steps = self.slots[place], super().model(exported, place), self.work.max_steps
        client = self.train.number(slot)
        oracle = client_oracle(self.work, self.train, self.key, client, jnp.int32(steps), slot)
        if not isinstance(start, WithBuffers):
            return self.solver.solve(start, oracle, 0).params
        memory = Memory(start.buffers)
        params = self.solver.solve(start.params, oracle.remembering(memory), 0).params
        return WithBuffers(params, memory.read())


def ordered_by_owner(examples: Batch, owners: np.ndarray) -> tuple[Batch, np.ndarray, np.ndarray]:
    """Examples owner after owner, the owners' numbers, ascending, and how many examples each has."""
    order = np.argsort(owners, kind="stable")
    return jax.tree.map(lambda a: a[order], examples), *np.unique(owners, return_counts=True)


def _put(found: Any, values: Any, start: Scalar, mine: Array) -> Any:
    """Values in their place and those that follow, where they are mine."""

    def rows(a: Array, v: Array) -> Array:
        old = lax.dynamic_slice_in_dim(a, start, len(v))
        keep = mine.reshape(-1, *(1,) * (v.ndim - 1))
        return lax.dynamic_update_slice_in_dim(a, jnp.where(keep, v, old), start, 0)

    return jax.tree.map(rows, found, values)
