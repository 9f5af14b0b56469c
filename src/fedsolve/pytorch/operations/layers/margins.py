"""Losses of margins between classes that PyTorch computes in one operation."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.pytorch.translation.registry import operation

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
    value = _reduced(jnp.sum(missed, axis=(1, 2)) / classes, x, reduction)
    return value, among.astype(x.dtype).reshape(x.shape)


@operation("aten.multi_margin_loss.default")
def multi_margin_loss(
    x: Array,
    target: Array,
    p: float = 1,
    margin: float = 1,
    weight: Array | None = None,
    reduction: int = _MEAN,
) -> Array:
    """max(0, margin - x[own] + x[other])^p over the classes other than an example's own, over their number."""
    rows, own = jnp.atleast_2d(x), jnp.atleast_1d(target)
    classes = rows.shape[1]
    margins = margin - jnp.take_along_axis(rows, own[:, None], axis=1) + rows
    missed = jnp.where((own[:, None] != jnp.arange(classes)) & (margins > 0), margins, 0) ** int(p)
    scaled = missed if weight is None else missed * weight[own][:, None]
    return _reduced(jnp.sum(scaled, axis=1) / classes, x, reduction)


def _reduced(each: Array, x: Array, reduction: int) -> Array:
    value = jnp.mean(each) if reduction == _MEAN else jnp.sum(each) if reduction == _SUM else each
    return value.reshape(()) if x.ndim == 1 else value
