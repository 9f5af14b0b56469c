"""Activations of networks, attention, and losses of margins."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.pytorch.operations.creation import dropout
from fedsolve.pytorch.operations.operands import Weights, along_dim, axes_of, filled, floating
from fedsolve.pytorch.translation.arrays import jax_dtype
from fedsolve.pytorch.translation.registry import operation


@operation("aten.relu.default")
def relu(x: Array) -> Array:
    """max(x, 0); the gradient at 0 is 0."""
    return jnp.where(x <= 0, jnp.zeros((), x.dtype), x)


@operation("aten.gelu.default")
def gelu(x: Array, *, approximate: str = "none") -> Array:
    """x times the normal distribution function of x, or its approximation by `tanh`."""
    if approximate == "tanh":
        return jax.nn.gelu(x, approximate=True)
    return x * (0.5 * jax.lax.erf(x * (0.5**0.5)) + 0.5)


@operation("aten.elu.default")
def elu(x: Array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Array:
    """scale x above 0, scale alpha (exp(input_scale x) - 1) elsewhere."""
    negative = jnp.where(x > 0, 0, x)
    return jnp.where(x > 0, x * scale, jnp.expm1(negative * input_scale) * (alpha * scale))


@operation("aten.leaky_relu.default")
def leaky_relu(x: Array, negative_slope: float = 0.01) -> Array:
    """x above 0, a small slope elsewhere."""
    return jnp.where(x > 0, x, x * negative_slope)


@operation("aten.hardtanh.default")
def hardtanh(x: Array, min_val: float = -1, max_val: float = 1) -> Array:
    """x between two bounds; at a bound the gradient is 0."""
    low, high = jnp.asarray(min_val, x.dtype), jnp.asarray(max_val, x.dtype)
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x))


@operation("aten.hardsigmoid.default")
def hardsigmoid(x: Array) -> Array:
    """x / 6 + 1/2 between 0 and 1; at x = -3 and 3 the gradient is 0."""
    low, high = jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
    # bounds of x itself: a compiler may fuse x / 6 + 1/2, which is then not 0 at -3
    return jnp.where(x <= -3, low, jnp.where(x >= 3, high, x / 6 + 0.5))


@operation("aten.hardswish.default")
def hardswish(x: Array) -> Array:
    """0 up to -3, x from 3 on, x (x + 3) / 6 between; at x = -3 the gradient is 0, at 3 it is 1."""
    return jnp.where(x <= -3, jnp.zeros((), x.dtype), jnp.where(x >= 3, x, x * (x + 3) / 6))


@operation("aten._softmax.default", mixing=along_dim)
def softmax(x: Array, dim: int, half_to_float: bool = False, *, weights: Weights = None) -> Array:
    """exp(x) over its sum along an axis."""
    x = floating(x.astype(jnp.float32) if half_to_float else x)
    x = filled(x, weights, axes_of(dim, x.ndim), -jnp.inf)
    return jax.nn.softmax(x, dim) if x.ndim else jnp.ones_like(x)


def safe_softmax(x: Array, dim: int, dtype: Any = None) -> Array:
    """The softmax; 0 along axes that are minus infinity throughout."""
    x = x if dtype is None else x.astype(jax_dtype(dtype))
    empty = jnp.all(x == -jnp.inf, axis=dim, keepdims=True)
    return jnp.where(empty, 0, jax.nn.softmax(jnp.where(empty, 0, x), dim))


@operation("aten._log_softmax.default", mixing=along_dim)
def log_softmax(x: Array, dim: int, half_to_float: bool = False, *, weights: Weights = None) -> Array:
    """The logarithm of the softmax."""
    x = floating(x.astype(jnp.float32) if half_to_float else x)
    if not x.ndim:
        return jnp.zeros_like(x)
    axes = axes_of(dim, x.ndim)
    # what does not count is finite, as its gradient must be
    return filled(jax.nn.log_softmax(filled(x, weights, axes, -jnp.inf), dim), weights, axes, 0)


@operation("aten.scaled_dot_product_attention.default", random=True)
def scaled_dot_product_attention(
    query: Array,
    keys: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    key: Array | None = None,
) -> Array:
    """Softmax of scaled products of queries and keys, times values: (..., length, features).

    A mask is True where a key counts, or is added to the products; a query without any key gives 0. With `enable_gqa`
    several query heads share one of keys.
    """
    if enable_gqa:
        shared = query.shape[-3] // keys.shape[-3]
        keys, value = jnp.repeat(keys, shared, -3), jnp.repeat(value, shared, -3)
    factor = float(query.shape[-1]) ** -0.5 if scale is None else scale
    scores = jnp.matmul(query * factor, jnp.swapaxes(keys, -1, -2))
    if is_causal:
        attn_mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if attn_mask is None:
        weights = softmax(scores, -1)
    else:
        scores = jnp.where(attn_mask, scores, -jnp.inf) if attn_mask.dtype == bool else scores + attn_mask
        weights = safe_softmax(scores, -1)
    return jnp.matmul(dropout(weights, dropout_p, True, key=key), value)


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
