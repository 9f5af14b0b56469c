"""Activations of networks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.pytorch.operations.layers.padding_rows import Weights, along_dim, filled
from fedsolve.pytorch.operations.tensors.promotion import axes_of, floating
from fedsolve.pytorch.translation.dtypes import jax_dtype
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
