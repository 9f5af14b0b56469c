"""A loss on a batch of which some examples may be padding: its mean over those that count, and each one's own value."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from fedsolve.core.errors import InvalidInput
from fedsolve.core.trees import dtype_of
from fedsolve.core.types import Batch, Params, Scalar
from fedsolve.core.xla.convolutions import without_slow_convolutions
from fedsolve.engine.compute.clients import Loss
from fedsolve.tasks.loss_arguments import asked, call, mean_of


def mean_loss(
    loss: Loss,
    params: Params,
    batch: Batch,
    mask: Bool[Array, " n"] | None = None,
    key: Array | None = None,
    buffers: Any = None,
) -> tuple[Scalar, Any]:
    """The mean over the examples that count, and the new buffers (those given, where the loss has none).

    One pass over the whole batch, unless a loss gives its mean alone and some examples do not count: that one is
    applied to each example by itself.

    Args:
        loss: as `fedsolve.tasks.loss_arguments` has it.
        params: the model.
        batch: examples, arrays of shape (n, ...).
        mask: which of them count, None for all.
        key: for what is drawn; None in evaluation.
        buffers: what the model keeps beside `params`.
    """
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
    return jnp.sum(jnp.where(mask, each, 0)) / jnp.maximum(jnp.sum(mask), 1).astype(each.dtype), buffers


def per_example(
    loss: Loss, params: Params, batch: Batch, key: Array | None = None, buffers: Any = None
) -> Array:
    """Each example's own loss, shape (n,)."""
    return _each(loss, params, batch, key, buffers)[0]


def _each(loss: Loss, params: Params, batch: Batch, key: Array | None, buffers: Any) -> tuple[Array, Any]:
    """Each example's own value: by its method `each`, as it gives it itself, or of each example alone."""
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
    """`call`, with the loss's convolutions in their fast forms."""

    def function(params: Params, batch: Batch, key: Any, weights: Any, buffers: Any) -> tuple[Array, Any]:
        return call(loss, params, batch, key=key, weights=weights, buffers=buffers)

    return without_slow_convolutions(function)(params, batch, key, weights, buffers)
