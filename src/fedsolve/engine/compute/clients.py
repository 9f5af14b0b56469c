"""Clients inside the compiled engine: their data packed on the device, and how much they work.

What is the same for all clients is decided here before anything is compiled: whether all minibatches are
full (then no mask is needed) and whether a step sees the whole client (then nothing is shuffled).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedsolve.core import trees
from fedsolve.core.buffers import with_buffers
from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.core.sampling import Sampling
from fedsolve.core.trees import first_beyond
from fedsolve.core.types import Batch, Params, Scalar, module, static
from fedsolve.data.federated import FederatedData
from fedsolve.tasks.leaves import with_frozen

Loss = Callable[..., Any]
"""(params, batch) and what it asks for by name (`fedsolve.tasks.loss_arguments`) -> mean, or each example's own."""

MOST_STEPS = 10**7
"""Local steps of one client in a round: a round is one compiled call, which nothing interrupts."""


@module
class Window:
    """Which clients of a population are packed, and for which rounds' cohorts that is enough.

    Everything random still follows from the clients' own numbers.

    Attributes:
        first: the first round that the window serves.
        slots: the cohort of each of its rounds, as places among the packed clients.
        numbers: the packed clients' own numbers, ascending; the population's size where a place is empty.
        population: clients in all.
    """

    first: Scalar
    slots: Int[Array, "rounds capacity"]
    numbers: Int[Array, " clients"]
    population: int = static()

    @classmethod
    def of_no_round(cls, numbers: np.ndarray, population: int) -> Window:
        """Clients by their numbers, for what is done with them outside rounds."""
        return cls(np.int32(0), jnp.zeros((0, 0), jnp.int32), jnp.asarray(numbers, jnp.int32), population)


@module
class PackedClients:
    """All clients' examples on the device.

    Attributes:
        examples: pytree of arrays (total, ...), client after client.
        offsets, counts, steps: first row, examples and local steps of each client, shape (clients,).
        frozen: leaves of the model that do not train, `()` if all do: arguments of the program, not constants in it.
        window: which clients these are, None if all; where it is given, places and numbers of clients differ.
    """

    examples: Batch
    offsets: Int[Array, " clients"]
    counts: Int[Array, " clients"]
    steps: Int[Array, " clients"]
    frozen: Params = ()
    window: Window | None = None

    @property
    def population(self) -> int:
        """Clients in all."""
        return self.counts.shape[0] if self.window is None else self.window.population

    def cohort(self, sampling: Sampling, key: Array, round: Scalar) -> tuple[Array, Array]:
        """The places here of a round's cohort, padded to a fixed capacity, and who is present."""
        ids, present = sampling.draw(key, round, self.population)
        # who is present is not told by the window: where all always are, the program knows it from the sampling
        return ids if self.window is None else self.window.slots[round - self.window.first], present

    def number(self, slot: Scalar) -> Scalar:
        """The number in the population of the client at a place."""
        return slot if self.window is None else self.window.numbers[slot]

    def model(self, params: Params) -> Any:
        """What the task's loss and metrics take: the parameters, with the frozen leaves where there are any."""
        return with_frozen(params, self.frozen)

    def first_model(self, params: Params, buffers: Any) -> Any:
        """The same of an initial model, with a task's buffers (None if it has none)."""
        return self.model(with_buffers(params, buffers))


@dataclass(frozen=True)
class LocalWork:
    """What the compiled program knows of local work; equal works share a program.

    Attributes:
        loss: of a minibatch, as `fedsolve.tasks.loss_arguments` has it.
        batch_size: examples of a full minibatch.
        rows: examples of the largest client.
        max_steps: local steps of the busiest client.
        passes: shuffled passes over the data that any client needs; 0 if each step sees all of it.
        even: all clients have as many examples, all minibatches are full.
        in_step: all clients take as many local steps.
        half: products of local training take operands in bfloat16.
    """

    loss: Loss
    batch_size: int
    rows: int
    max_steps: int
    passes: int
    even: bool
    in_step: bool
    half: bool = False

    @property
    def equal_steps(self) -> int | None:
        """Local steps of every client in a round, None where clients differ."""
        return self.max_steps if self.in_step else None


def pack(
    data: FederatedData,
    loss: Loss,
    dtype: Any,
    *,
    batch_size: int | None,
    epochs: int | None,
    local_steps: int | None,
    frozen: Params = (),
) -> tuple[PackedClients, LocalWork]:
    """Put the data and the frozen leaves on the device in the run's type, and derive the local work.

    Raises:
        InvalidInput: both or neither of epochs and local_steps, or one that is not a positive integer.
    """
    work, steps = local_work(data.counts, loss, batch_size=batch_size, epochs=epochs, local_steps=local_steps)
    first, counts, steps = (jnp.asarray(a, jnp.int32) for a in (data.offsets, data.counts, steps))
    data.check_ranges(jax.tree.leaves(data.examples))
    examples, frozen = on_device(data.examples, dtype, data.place), on_device(frozen, dtype)
    return PackedClients(examples, first, counts, steps, frozen), work


def local_work(
    counts: np.ndarray, loss: Loss, *, batch_size: int | None, epochs: int | None, local_steps: int | None
) -> tuple[LocalWork, np.ndarray]:
    """The local work of clients with so many examples each, and the steps of each, shape (clients,).

    Raises:
        InvalidInput: both or neither of epochs and local_steps, one that is not a positive integer, or more steps
            than `MOST_STEPS`.
    """
    if (epochs is None) == (local_steps is None):
        raise InvalidInput(f"epochs = {epochs}, local_steps = {local_steps}: give exactly one of them")
    for name, value in (("epochs", epochs), ("local_steps", local_steps), ("batch_size", batch_size)):
        if value is not None:
            check_integer(name, value, 1)
    rows = int(counts.max())
    batch = rows if batch_size is None else min(batch_size, rows)
    per_epoch = -(-counts // batch)
    most = local_steps if local_steps is not None else (epochs or 1) * int(per_epoch.max())
    if most > MOST_STEPS:
        name, value = ("epochs", epochs) if local_steps is None else ("local_steps", local_steps)
        raise InvalidInput(
            f"{name} = {value}: {most:,} local steps of a client in one round are more than {MOST_STEPS:,}: "
            "take fewer, and more rounds"
        )
    steps = np.full_like(counts, local_steps) if local_steps is not None else (epochs or 1) * per_epoch
    many = per_epoch > 1
    passes = math.ceil((steps[many] / per_epoch[many]).max()) if many.any() else 0
    even = bool((counts == rows).all()) and rows % batch == 0
    work = LocalWork(loss, batch, rows, int(steps.max()), passes, even, bool((steps == steps.max()).all()))
    return work, steps


def on_device(examples: Batch, dtype: Any, place: Callable[[int], str] = "row {}".format) -> Batch:
    """Arrays on the device, floating-point ones in the run's type, integers of 64 bits in 32 where that is float32.

    Args:
        examples: arrays.
        dtype: the run's type.
        place: row -> where it stands, for an error.

    Raises:
        InvalidInput: a number that does not fit its type there.
    """

    def put(path: Any, a: Any) -> Array:
        if not trees.is_not_traced(a):
            return jnp.asarray(a, dtype if jnp.issubdtype(a.dtype, jnp.floating) else None)
        a = np.asarray(a)
        floating = np.issubdtype(a.dtype, np.floating)
        to = jnp.dtype(dtype) if floating else jax.dtypes.canonicalize_dtype(a.dtype)
        if a.size and to.itemsize < a.dtype.itemsize and a.dtype.kind in "iuf":
            row = first_beyond(a, to)
            if row is not None:
                where = jax.tree_util.keystr(path) or "a field"
                raise InvalidInput(
                    f"{where} of the examples holds a number in {place(row)} that {to} cannot: give smaller numbers "
                    "(ids from 0, another unit), or run in float64"
                )
        return jnp.asarray(a, to)

    return jax.tree_util.tree_map_with_path(put, examples)
