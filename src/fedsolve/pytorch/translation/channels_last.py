"""Pictures of a large module with their channels last from one convolution to the next.

PyTorch has (n, c, *space), and the convolutions of JAX programs here are computed on (n, *space, c). What lies between
two of them is computed on that order, too, where an operation is known to allow it. Otherwise arrays are turned around
twice for each normalisation: ResNet-18 with group norms took a quarter more time (benchmarks/FINDINGS.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.pytorch.operations import OPERATIONS


class ChannelsLast(NamedTuple):
    """An array that PyTorch has as (n, c, *space)."""

    array: Array  # (n, *space, c)


def plain(tree: Any) -> Any:
    # with every array as PyTorch has it
    return jax.tree.map(
        lambda v: jnp.moveaxis(v.array, -1, 1) if isinstance(v, ChannelsLast) else v, tree, is_leaf=_is_last
    )


def with_channels_last(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    # the value of an operation; None if it is not known to have one with channels last
    if name == "getitem":  # of an operation with several values
        return args[0][args[1]]
    if name in _WHOLE:
        return _WHOLE[name](*args, **options)
    if name not in _BY_ENTRY or not any(map(_is_last, args)):
        return None
    ndim = next(v.array.ndim for v in args if _is_last(v))
    if any(not _is_last(v) and np.ndim(v) not in (0, ndim) for v in args):
        return None
    return ChannelsLast(OPERATIONS[name].function(*map(_turned, args), **options))


def _is_last(value: Any) -> bool:
    return isinstance(value, ChannelsLast)


def _turned(value: Any) -> Any:
    # numbers as they are
    if isinstance(value, ChannelsLast):
        return value.array
    return jnp.moveaxis(value, 1, -1) if np.ndim(value) else value


_BY_ENTRY = {
    f"aten.{name}"
    for name in (
        *(
            "relu.default",
            "silu.default",
            "gelu.default",
            "hardtanh.default",
            "leaky_relu.default",
            "elu.default",
        ),
        *("sigmoid.default", "tanh.default", "hardswish.default", "hardsigmoid.default", "mish.default"),
        *("clone.default", "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor"),
    )
}


def _convolution(x: Any, weight: Array, bias: Array | None, *how: Any) -> ChannelsLast | None:
    stride, padding, dilation, transposed, _, groups = how
    axes = weight.ndim - 2
    if transposed or groups != 1 or any(len(v) != axes for v in (stride, padding, dilation)):
        return None
    space = "DHW"[-axes:]
    y = lax.conv_general_dilated(
        _turned(x),
        weight,
        stride,
        [(p, p) for p in padding],
        rhs_dilation=dilation,
        dimension_numbers=(f"N{space}C", f"OI{space}", f"N{space}C"),
    )
    return ChannelsLast(y if bias is None else y + bias)


def _group_norm(
    x: Any, groups: int, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5, *_: Any
) -> ChannelsLast | None:
    if not _is_last(x):
        return None
    y = _standardised(x.array.astype(jnp.promote_types(x.array.dtype, jnp.float32)), groups, eps)
    y = y if weight is None else y * weight
    return ChannelsLast((y if bias is None else y + bias).astype(x.array.dtype))


def _batch_norm(name: str, x: Any, *others: Any, weights: Any = None) -> tuple[Any, ...] | None:
    # of one row for each place of each example
    if not _is_last(x) or not set(weights or ()) <= {0}:
        return None
    n, *_, c = x.array.shape
    rows = x.array.reshape(-1, c)
    own = {"weights": {0: jnp.repeat(weights[0], len(rows) // n)}} if weights else {}
    y, *statistics = OPERATIONS[name].function(rows, *others, **own)
    return ChannelsLast(y.reshape(x.array.shape)), *statistics


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _standardised(x: Array, groups: int, eps: float) -> Array:
    # each example's groups of channels with mean 0 and variance 1. The derivative that JAX finds itself reads each
    # array twice as often
    return _scaled(x, groups, eps)[0]


@_standardised.defjvp
def _derivative(groups: int, eps: float, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x,), (change,) = primals, tangents
    y, scale = _scaled(x, groups, eps)
    return y, scale * (change - _means(change, groups) - y * _means(y * change, groups))


def _scaled(x: Array, groups: int, eps: float) -> tuple[Array, Array]:
    centred = x - _means(x, groups)
    scale = lax.rsqrt(_means(jnp.square(centred), groups) + eps)
    return centred * scale, scale


def _means(x: Array, groups: int) -> Array:
    # of each group, for each of its channels: (n, *1, c). Sums over the places of a channel come first
    n, *space, c = x.shape
    sums = jnp.sum(x, range(1, x.ndim - 1)).reshape(n, groups, -1)
    means = jnp.sum(sums, -1, keepdims=True) * (groups / max(x[0].size, 1))
    return jnp.broadcast_to(means, sums.shape).reshape(n, *[1] * len(space), c)


_WHOLE: dict[str, Callable[..., Any]] = {
    "aten.convolution.default": _convolution,
    "aten.group_norm.default": _group_norm,
    **{
        name: partial(_batch_norm, name)
        for name in (
            "aten._native_batch_norm_legit_functional.default",
            "aten._native_batch_norm_legit_no_training.default",
        )
    },
}
