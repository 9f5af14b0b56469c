"""Losses of margins between classes that PyTorch computes in one operation."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.pytorch.registry import operation

_MEAN, _SUM = 1, 2


@operation("aten.multilabel_margin_loss_forward.default")
def multilabel_margin_loss(x: Array, target: Array, reduction: int) -> tuple[Array, Array]:
    """max(0, 1 - x[own] + x[other]) over each example's classes and all others; then where its classes are.

    Each row of targets, of shape (classes,), names the example's own classes; a negative entry ends the list.
    """
    rows, named = jnp.atleast_2d(x), jnp.atleast_2d(target)
    classes = rows.shape[1]
    counts = jnp.cumprod(named >= 0, axis=1).astype(bool)  # up to the first negative entry
    own = counts[:, :, None] & (named[:, :, None] == jnp.arange(classes))
    among = jnp.any(own, axis=1)
    at = jnp.take_along_axis(rows, jnp.where(counts, named, 0), axis=1)
    margins = 1 - at[:, :, None] + rows[:, None, :]
    missed = jnp.where(counts[:, :, None] & ~among[:, None, :] & (margins > 0), margins, 0)
    each = jnp.sum(missed, axis=(1, 2)) / classes
    value = jnp.mean(each) if reduction == _MEAN else jnp.sum(each) if reduction == _SUM else each
    inside = among.astype(x.dtype).reshape(x.shape)
    return (value.reshape(()) if x.ndim == 1 else value), inside
