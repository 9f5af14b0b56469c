"""The two models of an evaluation, the last iterate and the mean of the last two, and their diagnostics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.buffers import bare
from fedsolve.core.types import Batch, Params, Scalar, Traced, module
from fedsolve.core.xla.compiler import compiled
from fedsolve.engine.compute.clients import Loss, PackedClients, per_example
from fedsolve.geometry.diagnostics import Diagnostic, Point
from fedsolve.tasks.losses.weights import value_or_zero


def middle(last: Params, previous: Params) -> Params:
    """The mean of two iterates, at which metrics with suffix `_averaged` are computed."""
    return jax.tree.map(lambda a, b: (a + (b - a) / 2).astype(a.dtype), last, previous)


@module
class Iterates:
    """The last iterate and the middle of the last two; the last alone where `previous` is None."""

    last: Params
    previous: Params | None

    def values(self, function: Callable[[Params], Any]) -> Any:
        """The function's results of both, first axis (2,), or (1,); where all are the same, of the last alone."""
        if self.previous is None:
            return jax.tree.map(lambda v: v[None], function(self.last))
        pairs = zip(*map(jax.tree.leaves, (self.last, middle(self.last, self.previous))), strict=True)
        same = jnp.stack([jnp.all(a == b) for a, b in pairs]).all()
        shapes = jax.eval_shape(function, self.last)
        empty = jax.tree.map(lambda s: jnp.zeros((2, *s.shape), s.dtype), shapes)

        def one(i: Array, found: Any) -> Any:
            # behind a barrier, as the compiler would compute the middle before the loop and keep it: a model has one
            # copy here, not three
            i, last, previous = lax.optimization_barrier((i, self.last, self.previous))
            model = jax.tree.map(partial(jnp.where, i == 0), last, middle(last, previous))
            return jax.tree.map(lambda of_all, v: of_all.at[i].set(v), found, function(model))

        found = lax.fori_loop(0, jnp.where(same, 1, 2), one, empty)
        return jax.tree.map(lambda v: jnp.where(same, v[:1], v), found)


# The diagnostics of a model: the full objective and its gradient in one pass, then every diagnostic.

_BYTES_AT_ONCE = 2**24  # of examples: enough for whole matrix products, little beside the data


def compute_diagnostics(
    diagnostics: tuple[Diagnostic, ...], loss: Loss, uniform: bool, packed: PackedClients, params: Params
) -> dict[str, float]:
    """All diagnostics of a model; F weighs clients alike (`uniform`) or by their examples."""
    if not diagnostics:
        return {}
    values = trees.on_host(_compiled_measured(loss, uniform, diagnostics, packed, params))
    return {name: float(value) for name, value in values.items()}


def measured(
    loss: Loss, uniform: bool, diagnostics: tuple[Diagnostic, ...], packed: PackedClients, params: Params
) -> dict[str, Array]:
    """The body of `compute_diagnostics`; of two of one name the first counts, the task's before the method's."""
    needs_gradient = any(m.needs_gradient for m in diagnostics)
    value, gradient = objective(loss, uniform, packed, params, needs_gradient)
    point = Point(bare(params), value, bare(gradient))
    values: dict[str, Array] = {}
    for diagnostic in diagnostics:
        values = diagnostic(point) | values
    return values


_compiled_measured = compiled(measured, static_argnums=(0, 1))


def objective(
    loss: Loss, uniform: bool, packed: PackedClients, params: Params, needs_gradient: bool
) -> tuple[Traced, Params]:
    """F = sum_i p_i f_i over all examples, and its gradient if it is needed; a few rows at a time."""
    total = jax.tree.leaves(packed.examples)[0].shape[0]
    dtype = trees.dtype_of(params)
    if hasattr(loss, "of_sums"):
        return _of_sums(loss, uniform, packed, params, needs_gradient)
    if uniform:
        # p_i = 1/N: each of the n_i rows has 1 / (N n_i)
        share = 1 / (packed.counts.shape[0] * packed.counts.astype(dtype))
        weight = jnp.repeat(share, packed.counts, total_repeat_length=total)
    else:
        weight = jnp.full(total, 1 / total, dtype)

    def part(params: Params, rows: Batch, here: Array, new: Array) -> Scalar:
        # the last rows come twice where the size does not divide: only new ones count
        share = jnp.where(new, lax.dynamic_slice_in_dim(weight, here[0], len(here)), 0)
        return jnp.sum(share * per_example(loss, packed.model(params), rows))

    def add(carry: tuple[Scalar, Params], *rows: Any) -> tuple[Scalar, Params]:
        if not needs_gradient:
            return carry[0] + part(params, *rows), carry[1]
        return jax.tree.map(jnp.add, carry, jax.value_and_grad(part)(params, *rows))

    zero = jnp.zeros((), weight.dtype)
    return _over_rows(add, packed, (zero, trees.zeros_like(params) if needs_gradient else None))


def _of_sums(
    loss: Any, uniform: bool, packed: PackedClients, params: Params, needs_gradient: bool
) -> tuple[Scalar, Params]:
    # the same where f_i follows from the sums of what client i's examples add; they are made first
    clients, dtype = packed.counts.shape[0], trees.dtype_of(params)
    total = jax.tree.leaves(packed.examples)[0].shape[0]
    owner = jnp.repeat(jnp.arange(clients), packed.counts, total_repeat_length=total)
    one = jax.tree.map(lambda a: a[:1], packed.examples)
    width = jax.eval_shape(lambda: per_example(loss, packed.model(params), one)).shape[1]

    def add(sums: Array, rows: Batch, here: Array, new: Array) -> Array:
        each = jnp.where(new[:, None], per_example(loss, packed.model(params), rows), 0)
        return sums + jax.ops.segment_sum(each, owner[here], clients)

    share = jnp.full(clients, 1 / clients, dtype) if uniform else packed.counts.astype(dtype) / total
    sums = _over_rows(add, packed, jnp.zeros((clients, width), dtype))
    value, slope = jax.value_and_grad(lambda s: share @ jax.vmap(lambda t: value_or_zero(loss, t))(s))(sums)
    if not needs_gradient:
        return value, None

    def part(params: Params, rows: Batch, here: Array, new: Array) -> Scalar:
        return jnp.sum(
            jnp.where(new[:, None], slope[owner[here]] * per_example(loss, packed.model(params), rows), 0)
        )

    def step(gradient: Params, *rows: Any) -> Params:
        return jax.tree.map(jnp.add, gradient, jax.grad(part)(params, *rows))

    return value, _over_rows(step, packed, trees.zeros_like(params))


def _over_rows(add: Callable[..., Any], packed: PackedClients, start: Any) -> Any:
    # `add(carry, rows, their numbers, which of them are new)` over all examples, a few rows at a time
    total = jax.tree.leaves(packed.examples)[0].shape[0]
    width = sum(trees.nbytes(a) for a in jax.tree.leaves(packed.examples)) // total
    size = min(total, max(1, _BYTES_AT_ONCE // max(width, 1)))

    def one(i: Scalar, carry: Any) -> Any:
        start = jnp.minimum(i * size, total - size)
        rows = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, size), packed.examples)
        here = start + jnp.arange(size)
        return add(carry, rows, here, here >= i * size)  # the last block overlaps the one before

    return lax.fori_loop(0, -(-total // size), one, start)
