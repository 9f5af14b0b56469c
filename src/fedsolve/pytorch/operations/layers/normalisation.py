"""Normalisation of each example by means and variances, of a layer or of groups of channels.

Statistics of halves are in float32, as PyTorch's are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

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
