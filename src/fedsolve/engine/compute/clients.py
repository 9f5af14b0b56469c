"""Clients inside the compiled engine: packed data, local work, their oracle, and the loss of a batch with padding.

What is the same for all clients is decided here before anything is compiled: whether all minibatches are
full (then no mask is needed) and whether a step sees the whole client (then nothing is shuffled).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from fedsolve.core import trees
from fedsolve.core.buffers import Memory, with_buffers
from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.core.oracle import Oracle
from fedsolve.core.sampling import DIFFERENT_EPOCHS, Sampling, shuffled
from fedsolve.core.trees import dtype_of, first_beyond
from fedsolve.core.types import Batch, Params, Scalar, module, static
from fedsolve.core.xla.convolutions import without_slow_convolutions
from fedsolve.core.xla.narrow import Narrow, with_late_widening
from fedsolve.core.xla.products import with_half_products
from fedsolve.data.federated import FederatedData
from fedsolve.tasks.leaf_types import is_half
from fedsolve.tasks.leaves import with_frozen
from fedsolve.tasks.loss_arguments import asked, call, mean_of
from fedsolve.tasks.losses.weights import value_or_zero
from fedsolve.tasks.torch_modules.losses import why_in_one_piece

Loss = Callable[..., Any]
"""(params, batch) and what it asks for by name (`fedsolve.tasks.loss_arguments`) -> mean, or each example's own."""

MOST_STEPS = 10**7
"""Local steps of one client in a round: a round is one compiled call, which nothing interrupts."""


@module
class Window:
    """Which clients of a population are packed, and for the cohorts of which rounds, from `first` on, that is enough.

    `slots` are each round's cohort as places among the packed clients; `numbers` are these clients' own, from which
    everything random follows, ascending, and the population's size where a place is empty.
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
    """All clients' examples on the device, arrays of shape (total, ...), client after client."""

    # `frozen` are leaves of the model that do not train, `()` if all do: arguments of the program, not constants in
    # it. Where a `window` says which clients these are, places and numbers of clients differ.

    examples: Batch
    offsets: Int[Array, " clients"]
    counts: Int[Array, " clients"]
    steps: Int[Array, " clients"]
    frozen: Params = ()
    window: Window | None = None

    @property
    def population(self) -> int:
        return self.counts.shape[0] if self.window is None else self.window.population

    def cohort(self, sampling: Sampling, key: Array, round: Scalar) -> tuple[Array, Array]:
        """The places here of a round's cohort, padded to a fixed capacity, and who is present."""
        ids, present = sampling.draw(key, round, self.population)
        # who is present is not told by the window: where all always are, the program knows it from the sampling
        return ids if self.window is None else self.window.slots[round - self.window.first], present

    def number(self, slot: Scalar) -> Scalar:
        return slot if self.window is None else self.window.numbers[slot]

    def model(self, params: Params) -> Any:
        """What the task's loss and metrics take: the parameters, with the frozen leaves where there are any."""
        return with_frozen(params, self.frozen)

    def first_model(self, params: Params, buffers: Any) -> Any:
        """The same of an initial model, with a task's buffers (None if it has none)."""
        return self.model(with_buffers(params, buffers))


@dataclass(frozen=True)
class LocalWork:
    """What the compiled program knows of local work; equal works share a program."""

    # `rows` are the examples of the largest client, `max_steps` the steps of the busiest, `passes` the shuffled
    # passes over the data that any client needs: 0 if each step sees all of it. `even`: all clients have as many
    # examples and all minibatches are full; `in_step`: all take as many local steps; `half`: products take operands
    # in bfloat16; `parts`: in which a minibatch is worked through, one after another.

    loss: Loss
    batch_size: int
    rows: int
    max_steps: int
    passes: int
    even: bool
    in_step: bool
    half: bool = False
    parts: int = 1

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
    microbatches: int = 1,
    frozen: Params = (),
) -> tuple[PackedClients, LocalWork]:
    """Put the data and the frozen leaves on the device in the run's type, and derive the local work."""
    given: Any = {"batch_size": batch_size, "epochs": epochs, "local_steps": local_steps}
    work, steps = local_work(data.counts, loss, **given, microbatches=microbatches)
    first, counts, steps = (jnp.asarray(a, jnp.int32) for a in (data.offsets, data.counts, steps))
    data.check_ranges(jax.tree.leaves(data.examples))
    examples = on_device(data.examples, dtype, data.place)
    return PackedClients(examples, first, counts, steps, frozen_on_device(frozen, dtype)), work


def local_work(
    counts: np.ndarray,
    loss: Loss,
    *,
    batch_size: int | None,
    epochs: int | None,
    local_steps: int | None,
    microbatches: int = 1,
) -> tuple[LocalWork, np.ndarray]:
    """The local work of clients with so many examples each, and the steps of each, shape (clients,)."""
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
    # passes are shuffled orders; a client of one batch sees all of its examples in each step and needs none
    many = per_epoch > 1
    passes = math.ceil((steps[many] / per_epoch[many]).max()) if many.any() else 0
    # then no minibatch is padded, and losses need no mask
    even = bool((counts == rows).all()) and rows % batch == 0
    work = LocalWork(loss, batch, rows, int(steps.max()), passes, even, bool((steps == steps.max()).all()))
    return replace(work, parts=_parts(loss, batch_size, microbatches)), steps


def _parts(loss: Loss, batch_size: int | None, microbatches: int) -> int:
    parts = check_integer("microbatches", microbatches, 1)
    if (batch_size or 0) % parts:
        raise InvalidInput(f"batch_size = {batch_size} must be a multiple of microbatches = {parts}")
    if parts > 1 and (why := why_in_one_piece(loss)):
        raise InvalidInput(
            f"microbatches = {parts}: {why}, so that a batch is one piece: leave microbatches out"
        )
    return parts


def shapes_of_two(examples: Batch) -> Batch:
    """The shapes of two examples: what takes any batch is traced with so many."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct((2, *a.shape[1:]), a.dtype), examples)


def on_device(examples: Batch, dtype: Any, place: Callable[[int], str] = "row {}".format) -> Batch:
    """Arrays on the device, floating-point ones in the run's type, integers of 64 bits in 32 where that is float32."""
    # place: row -> where it stands, for an error

    def put(path: Any, a: Any) -> Array:
        if not trees.is_not_traced(a):
            return jnp.asarray(a, dtype if jnp.issubdtype(a.dtype, jnp.floating) else None)
        a = np.asarray(a)
        floating = np.issubdtype(a.dtype, np.floating)
        to = jnp.dtype(dtype) if floating else jax.dtypes.canonicalize_dtype(a.dtype)
        # a narrower type makes infinity of a number that it cannot hold, or another integer, without a word
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


def frozen_on_device(frozen: Params, dtype: Any) -> Params:
    # those of 16 bits are stored as these, and widened where they are used
    return jax.tree.map(lambda x: Narrow.of_half(x) if is_half(x) else on_device(x, dtype), frozen)


# A loss on a batch of which some examples may be padding: its mean over those that count, and each one's own value.


def mean_loss(
    loss: Loss,
    params: Params,
    batch: Batch,
    mask: Bool[Array, " n"] | None = None,
    key: Array | None = None,
    buffers: Any = None,
) -> tuple[Scalar, Any]:
    """The mean over the examples that count, and the new buffers (those given, where the loss has none)."""
    # one pass over the whole batch, unless a loss gives its mean alone and some examples do not count: that one
    # is applied to each example by itself
    # loss: as `fedsolve.tasks.loss_arguments` has it
    # batch: examples, arrays of shape (n, ...)
    # mask: which of them count, None for all
    # key: for what is drawn; None in evaluation
    # buffers: what the model keeps beside `params`
    if mask is None:
        value, buffers = _called(loss, params, batch, key=key, buffers=buffers)
        return mean_of(value), buffers
    if "weights" in asked(loss):
        weights = mask.astype(dtype_of(params))
        each, buffers = _called(loss, params, batch, key=key, weights=weights, buffers=buffers)
        if each.ndim == 0:
            return each, buffers
    else:
        each, buffers = _each(loss, params, batch, key, buffers)
    # (n,) each; where, and not a product: padding may have a loss that is not finite
    return jnp.sum(jnp.where(mask, each, 0)) / jnp.maximum(jnp.sum(mask), 1).astype(each.dtype), buffers


def per_example(loss: Loss, params: Params, batch: Batch) -> Array:
    return _each(loss, params, batch, None, None)[0]


def _each(loss: Loss, params: Params, batch: Batch, key: Array | None, buffers: Any) -> tuple[Array, Any]:
    # each example's own value: by its method `each`, as it gives it itself, or of each example alone
    loss = getattr(loss, "each", loss)
    if _shape(loss, params, batch, key, buffers) != ():
        return _called(loss, params, batch, key=key, buffers=buffers)
    if key is not None and "buffers" in asked(loss):
        raise InvalidInput(
            "a loss with buffers gives its mean only, and clients have unequal sizes, so that some examples of a batch "
            "are padding: give each example's own loss, shape (n,), or an argument `weights`"
        )

    def alone(example: Batch, key: Array | None) -> Array:
        one = jax.tree.map(lambda a: a[None], example)
        return _called(loss, params, one, key=key, buffers=buffers)[0]

    if key is None or "key" not in asked(loss):
        return jax.vmap(lambda example: alone(example, None))(batch), buffers
    rows = jnp.arange(jax.tree.leaves(batch)[0].shape[0])
    return jax.vmap(alone)(batch, jax.vmap(lambda row: jax.random.fold_in(key, row))(rows)), buffers


def _shape(loss: Loss, params: Params, batch: Batch, key: Array | None, buffers: Any) -> tuple[int, ...]:
    def value(params: Params, batch: Batch, key: Array | None, buffers: Any) -> Array:
        return call(loss, params, batch, key=key, buffers=buffers)[0]

    return jax.eval_shape(value, params, batch, key, buffers).shape


def _called(
    loss: Loss,
    params: Params,
    batch: Batch,
    *,
    key: Array | None = None,
    weights: Array | None = None,
    buffers: Any = None,
) -> tuple[Array, Any]:
    # `call`, with the loss's convolutions in their fast forms
    def function(params: Params, batch: Batch, key: Any, weights: Any, buffers: Any) -> tuple[Array, Any]:
        return call(loss, params, batch, key=key, weights=weights, buffers=buffers)

    return without_slow_convolutions(function)(params, batch, key, weights, buffers)


# The oracle over one client's rows inside the compiled engine: minibatches in shuffled order, masked where uneven.

TAG_CLIENT = 0xC11E0000  # beyond all counters at which cohorts are drawn from the round's key
TAG_STEP = 0x57E90000  # beyond all draws of the client's own noise


@dataclass(frozen=True)
class ClientOracle(Oracle):
    """One client's rows as an oracle; made by `client_oracle` inside the program, or outside as a pytree for it.

    `order` has its shuffled row numbers by pass, None if each step sees all; `batches` counts the minibatches of one
    pass. `noise` is a key for the client's own randomness, None if it follows from the round's. Gradients of
    minibatches write to `memory`, the client's buffers.
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
        return own_key(self.round_key, self.client) if self.noise is None else self.noise

    @property
    def batch_size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.work.batch_size

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        # loss and gradient on the minibatch of a local step
        (loss, new), gradient = self._compute(ClientOracle._slope, params, step, self._buffers())
        if self.memory is not None:  # clients with fewer steps than others of their chunk stand still
            self.memory.write(new, True if isinstance(self.steps, int) else step < self.steps)
        return loss, gradient

    def remembering(self, memory: Memory) -> ClientOracle:
        return replace(self, memory=memory)

    def _buffers(self) -> Any:
        return None if self.memory is None else self.memory.read().given()

    def loss(self, params: Params, step: Scalar) -> Scalar:
        return self._compute(ClientOracle._minibatch, params, step, self._buffers())[0]

    def full(self, params: Params) -> tuple[Scalar, Params]:
        """Loss and gradient on all of the client's examples, as in evaluation: nothing is drawn."""

        def value(own: ClientOracle, params: Params, buffers: Any) -> Any:
            rows = jnp.arange(self.work.rows)
            return jax.value_and_grad(own._mean, has_aux=True)(params, rows, rows, None, buffers)

        (loss, _), gradient = self._compute(value, params, self._buffers())
        return loss, gradient

    def _compute(self, function: Callable[..., Any], params: Params, *given: Any) -> Any:
        # function(oracle, params, ...), with the products that the local work asks for; where frozen leaves are narrow
        # it has an oracle with wide ones
        def of_frozen(frozen: Params, *given: Any) -> Any:
            return function(replace(self, packed=replace(self.packed, frozen=frozen)), *given)

        products = with_half_products(of_frozen) if self.work.half else of_frozen
        return with_late_widening(products, dtype_of(params))(self.packed.frozen, params, *given)

    def step_key(self, step: Scalar) -> Array | None:
        """The key of a local step, the same for every look at it; None if the loss asks for none."""
        if "key" not in asked(self.work.loss):
            return None
        own = jax.random.fold_in(own_key(self.round_key, self.client), TAG_STEP)
        return jax.random.fold_in(own, step)

    def _slope(self, params: Params, step: Scalar, buffers: Any) -> tuple[tuple[Scalar, Any], Params]:
        # loss on the minibatch of a local step, the new buffers, and the gradient
        if self.work.parts == 1:
            return jax.value_and_grad(self._minibatch, has_aux=True)(params, step, buffers)
        loss, gradient = self._in_parts(params, step, True)
        return (loss, buffers), gradient

    def _minibatch(self, params: Params, step: Scalar, buffers: Any) -> tuple[Scalar, Any]:
        # loss on the minibatch of a local step, and the new buffers
        if self.work.parts > 1:
            return self._in_parts(params, step, False)[0], buffers
        return self._mean(params, *self._places(step), self.step_key(step), buffers)

    def _places(self, step: Scalar) -> tuple[Array, Array]:
        # positions in the client's order of the minibatch of a local step, and the rows there
        if self.order is None:
            index = jnp.arange(self.work.rows)
            return index, index
        # a client that fits in one batch sees all of it each step, whatever the pass
        epoch = jnp.minimum(step // self.batches, self.work.passes - 1)
        if self.work.passes > DIFFERENT_EPOCHS:
            epoch = epoch % DIFFERENT_EPOCHS
        start = (step % self.batches) * self.work.batch_size
        index = start + jnp.arange(self.work.batch_size)
        return index, lax.dynamic_slice(self.order, (epoch, start), (1, len(index)))[0]

    def _in_parts(self, params: Params, step: Scalar, slope: bool) -> tuple[Scalar, Any]:
        # loss on the minibatch of a local step, and its gradient if `slope`; one part after another
        parts, key = self.work.parts, self.step_key(step)
        loss: Any = self.work.loss
        index, rows = self._places(step)
        gap = -len(index) % parts  # of a client smaller than its minibatch
        counts = jnp.pad(index < self.num_examples, (0, gap)).reshape(parts, -1)
        rows = jnp.pad(rows, (0, gap)).reshape(parts, -1)
        full, model = self.work.even and not gap, self.packed.model

        def added(params: Params, part: Array) -> Array:
            # what a part adds to the sums from which the loss follows, (k,)
            own, mask = None if key is None else jax.random.fold_in(key, part), counts[part]
            batch = _rows(self.packed.examples, self.offset + jnp.where(mask, rows[part], 0))
            if hasattr(loss, "of_sums"):
                given = {} if own is None else {"key": own}
                return jnp.sum(jnp.where(mask[:, None], loss.each(model(params), batch, **given), 0), axis=0)
            mean = mean_loss(loss, model(params), batch, None if full else mask, own)[0]
            return jnp.stack([mean, jnp.ones_like(mean)]) * jnp.sum(mask)

        def value(sums: Array) -> Scalar:
            return (
                value_or_zero(loss, sums) if hasattr(loss, "of_sums") else sums[0] / jnp.maximum(sums[1], 1)
            )

        every = jnp.arange(parts)
        moving = getattr(loss, "moving", None) if hasattr(loss, "of_sums") else 0
        form = jax.eval_shape(added, params, every[0])
        total = jnp.zeros(form.shape, form.dtype)
        if not slope or moving is None:
            total = lax.fori_loop(0, parts, lambda part, total: total + added(params, part), total)
        if not slope:
            return value(total), None
        # where one sum alone depends on the model, what its gradient is multiplied by is known at the end
        weights = jax.grad(value)(total) if moving is None else jnp.zeros_like(total).at[moving].set(1)

        def one(sums: tuple[Array, Params], part: Array) -> tuple[Any, None]:
            own, slope = jax.vjp(lambda params: added(params, part), params)
            return (sums[0] + own, trees.add(sums[1], slope(weights)[0])), None

        (sums, gradient), _ = lax.scan(one, (jnp.zeros_like(total), trees.zeros_like(params)), every)
        scale = 1 if moving is None else jax.grad(value)(sums)[moving]
        return value(sums), trees.scale(scale, gradient)

    def _mean(
        self, params: Params, index: Array, rows: Array, key: Array | None = None, buffers: Any = None
    ) -> tuple[Scalar, Any]:
        # mean loss over the positions in the client's order that hold an example of it, and the new buffers
        params = self.packed.model(params)
        if self.work.even:
            batch = _rows(self.packed.examples, self.offset + rows)
            return mean_loss(self.work.loss, params, batch, None, key, buffers)
        mask = index < self.num_examples
        batch = _rows(self.packed.examples, self.offset + jnp.where(mask, rows, 0))
        return mean_loss(self.work.loss, params, batch, mask, key, buffers)


def own_key(round_key: Array, client: Scalar) -> Array:
    return jax.random.fold_in(jax.random.fold_in(round_key, TAG_CLIENT), client)


def _flatten(oracle: ClientOracle) -> tuple[list[Any], tuple[Any, ...]]:
    # arrays are leaves; the work, and counts that all clients share, are part of the program
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
    """The oracle of one client in one round; its shuffles depend on the key and the client alone."""
    # the client is at `slot` among the packed ones, by default at its number, where all are packed
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
