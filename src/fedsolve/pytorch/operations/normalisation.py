"""Normalisation of each example by its means and variances, and of batches, with statistics of what was seen.

Statistics of halves are in float32, as PyTorch's are, where examples stand alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.pytorch.operations.operands import Weights, all_but_channels, counted
from fedsolve.pytorch.translation.registry import operation


@operation("aten.native_layer_norm.default")
def native_layer_norm(
    x: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """Each example by the mean and variance of its last axes; then those, as mean and 1 / deviation."""
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    around, mean, scale = _standardised(x, axes, eps)
    return _scaled(around, weight, bias).astype(x.dtype), mean, scale


@operation("aten.layer_norm.default")
def layer_norm(
    x: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Array:
    """Each example by the mean and variance of its last axes."""
    return native_layer_norm(x, normalized_shape, weight, bias, eps)[0]


@operation("aten.native_group_norm.default")
def native_group_norm(
    x: Array, weight: Array | None, bias: Array | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Array, Array, Array]:
    """Each group of channels of each example by its own mean and variance; then mean and 1 / deviation."""
    grouped = x.reshape(N, group, C // group, HxW)
    around, mean, scale = _standardised(grouped, (2, 3), eps)
    y = _scaled(around.reshape(x.shape), _along(weight, x), _along(bias, x))
    return y.astype(x.dtype), mean.reshape(N, group), scale.reshape(N, group)


@operation("aten.group_norm.default")
def group_norm(
    x: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Array:
    """Each group of channels of each example by its own mean and variance."""
    n, c, *space = x.shape
    return native_group_norm(x, weight, bias, n, c, prod(space), num_groups, eps)[0]


def _standardised(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array, Array]:
    """x with mean 0 and variance 1 along axes; the mean and 1 / deviation, their axes kept."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = jnp.mean(x, axes, keepdims=True)
    around = x - mean
    scale = lax.rsqrt(jnp.mean(jnp.square(around), axes, keepdims=True) + eps)
    return around * scale, mean, scale


def _scaled(x: Array, weight: Array | None, bias: Array | None) -> Array:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _along(values: Array | None, x: Array) -> Array:
    """One value for each channel, the second axis of x."""
    return None if values is None else values.reshape(-1, *[1] * (x.ndim - 2))  # pyright: ignore


@operation("aten._native_batch_norm_legit_functional.default", mixing=all_but_channels)
def functional(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: float,
    eps: float,
    *,
    weights: Weights = None,
) -> tuple[Array, ...]:
    """Normalised x, the mean and 1/deviation it took, and the new running statistics."""
    running_mean, running_var = lax.stop_gradient((running_mean, running_var))
    if not training:
        return (
            *no_training(x, weight, bias, running_mean, running_var, momentum, eps),
            running_mean,
            running_var,
        )
    mean, var, count = _statistics(x, weights)
    out, rstd = _normalised(x, weight, bias, mean, var, eps)
    unbiased = lax.stop_gradient(var * (count / jnp.maximum(count - 1, 1)))
    return (
        out,
        mean,
        rstd,
        (1 - momentum) * running_mean + momentum * lax.stop_gradient(mean),
        (1 - momentum) * running_var + momentum * unbiased,
    )


@operation("aten._native_batch_norm_legit.no_stats", mixing=all_but_channels)
def no_stats(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    training: bool,
    momentum: float,
    eps: float,
    *,
    weights: Weights = None,
) -> tuple[Array, ...]:
    """Normalised by the batch's own statistics, in evaluation too; InstanceNorm comes as this, examples as channels."""
    mean, var, _ = _statistics(x, weights)
    out, rstd = _normalised(x, weight, bias, mean, var, eps)
    return out, mean, rstd


@operation("aten._native_batch_norm_legit_no_training.default")
def no_training(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, ...]:
    """Normalised by the running statistics, which get no gradient."""
    running_mean, running_var = lax.stop_gradient((running_mean, running_var))
    out, _ = _normalised(x, weight, bias, running_mean, running_var, eps)
    none = jnp.zeros(0, x.dtype)  # PyTorch gives empty statistics
    return out, none, none


def _statistics(x: Array, weights: Weights) -> tuple[Array, Array, Any]:
    """Mean and biased variance of each channel over the examples that count, and how many numbers those are."""
    axes = (0, *range(2, x.ndim))
    counts = counted(weights, axes, x.ndim)
    if counts is None:
        mean = jnp.mean(x, axes)
        return mean, jnp.mean(jnp.square(x - _channel(mean, x)), axes), x.size / x.shape[1]
    w = counts.astype(x.dtype)
    count = jnp.maximum(jnp.sum(w), 1) * (x.size // x.shape[1] // w.size)
    mean = jnp.sum(w * x, axes) / count
    return mean, jnp.sum(w * jnp.square(x - _channel(mean, x)), axes) / count, count


def _normalised(
    x: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, eps: float
) -> tuple[Array, Array]:
    rstd = lax.rsqrt(var + eps)
    scale = rstd if weight is None else rstd * weight
    out = (x - _channel(mean, x)) * _channel(scale, x)
    return (out if bias is None else out + _channel(bias, x)), rstd


def _channel(values: Array, x: Array) -> Array:
    """Values of channels, shape (c,), against x of shape (n, c, ...)."""
    return lax.expand_dims(values, range(1, x.ndim - 1))
