"""Convolutions over any number of axes, padding, and images of another size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.pytorch.operations.operands import same_everywhere
from fedsolve.pytorch.translation.registry import operation

_LETTERS = "DHW"


@operation("aten.convolution.default")
def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    """A convolution, or the transpose of one.

    x is (batch, channels, *space), the weight (out, channels / groups, *window), of a transposed one
    (channels, out / groups, *window).
    """
    axes = weight.ndim - 2
    options = [same_everywhere(v, axes) for v in (stride, padding, dilation, output_padding)]
    steps, pads, spread, more = options
    window = [d * (n - 1) + 1 for d, n in zip(spread, weight.shape[2:], strict=True)]
    if transposed:
        weight, gaps, steps = _turned(weight, groups), steps, [1] * axes
        sides = [(w - 1 - p, w - 1 - p + m) for w, p, m in zip(window, pads, more, strict=True)]
    else:
        gaps, sides = [1] * axes, [(p, p) for p in pads]
    space = _LETTERS[-axes:]
    y = lax.conv_general_dilated(
        x,
        weight,
        steps,
        sides,
        lhs_dilation=gaps,
        rhs_dilation=spread,
        dimension_numbers=(f"NC{space}", f"OI{space}", f"NC{space}"),
        feature_group_count=groups,
    )
    return y if bias is None else y + bias.reshape(-1, *[1] * axes)


def _turned(weight: Array, groups: int) -> Array:
    """The kernel of a transposed convolution as that of a plain one: flipped, its channels exchanged in each group."""
    channels, out, *window = weight.shape
    weight = jnp.flip(weight, tuple(range(2, weight.ndim))).reshape(groups, channels // groups, out, *window)
    return jnp.swapaxes(weight, 1, 2).reshape(groups * out, channels // groups, *window)


def _pairs(pad: Sequence[int], ndim: int) -> list[tuple[int, int]]:
    """What to pad before and after each axis; PyTorch lists the last axis first."""
    given = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    return [(0, 0)] * (ndim - len(given)) + given


@operation("aten.constant_pad_nd.default")
def constant_pad(x: Array, pad: Sequence[int], value: float = 0) -> Array:
    """A number around x; a negative length takes entries away."""
    return lax.pad(x, jnp.asarray(value, x.dtype), [(a, b, 0) for a, b in _pairs(pad, x.ndim)])


@operation(*(f"aten.reflection_pad{n}d.default" for n in (1, 2, 3)))
def reflection_pad(x: Array, padding: Sequence[int]) -> Array:
    """x mirrored around its borders, which are not repeated."""
    return jnp.pad(x, _pairs(padding, x.ndim), mode="reflect")


@operation(*(f"aten.replication_pad{n}d.default" for n in (2, 3)))
def replication_pad(x: Array, padding: Sequence[int]) -> Array:
    """The border of x repeated."""
    return jnp.pad(x, _pairs(padding, x.ndim), mode="edge")


@operation("aten.col2im.default")
def col2im(
    x: Array,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Array:
    """The sum of windows put back where they were cut: (batch, channels window, places) to images."""
    pads, steps, window = list(padding), list(stride), list(kernel_size)
    full = [n + 2 * p for n, p in zip(output_size, pads, strict=True)]
    places = [
        (n - d * (w - 1) - 1) // t + 1 for n, d, w, t in zip(full, dilation, window, steps, strict=True)
    ]
    alone = x.ndim == 2
    x = x[None] if alone else x
    parts = x.reshape(x.shape[0], -1, *window, *places)
    y = jnp.zeros((*parts.shape[:2], *full), x.dtype)
    for at in product(*map(range, window)):
        own: list[Any] = [
            slice(a * d, a * d + (n - 1) * t + 1, t)
            for a, d, n, t in zip(at, dilation, places, steps, strict=True)
        ]
        y = y.at[(slice(None), slice(None), *own)].add(parts[(slice(None), slice(None), *at)])
    y = y[(slice(None), slice(None), *(slice(p, p + n) for p, n in zip(pads, output_size, strict=True)))]
    return y[0] if alone else y


@operation("aten.upsample_nearest2d.vec")
def upsample_nearest(
    x: Array, output_size: Sequence[int] | None, scale_factors: Sequence[float] | None
) -> Array:
    """The entry nearest to each new place, rounded down."""
    for axis, out, factor in _sizes(x, output_size, scale_factors):
        length = x.shape[axis]
        step = np.float32(1 / factor if factor else length / out)
        source = np.minimum(np.floor(np.arange(out, dtype=np.float32) * step).astype(int), length - 1)
        whole = out % length == 0 and np.array_equal(source, np.arange(out) // (out // length))
        x = jnp.repeat(x, out // length, axis) if whole else jnp.take(x, source, axis)
    return x


@operation("aten.upsample_bilinear2d.vec")
def upsample_linear(
    x: Array, output_size: Sequence[int] | None, align_corners: bool, scale_factors: Sequence[float] | None
) -> Array:
    """Linear between the two nearest entries of each axis."""
    for axis, out, factor in _sizes(x, output_size, scale_factors):
        length = x.shape[axis]
        if align_corners:
            source = np.arange(out) * ((length - 1) / (out - 1) if out > 1 else 0.0)
        else:
            source = np.maximum((np.arange(out) + 0.5) * (1 / factor if factor else length / out) - 0.5, 0)
        low = np.minimum(source.astype(int), length - 1)
        share = np.clip(source - low, 0, 1)
        weights = np.zeros((length, out))
        np.add.at(weights, (low, np.arange(out)), 1 - share)
        np.add.at(weights, (np.minimum(low + 1, length - 1), np.arange(out)), share)
        x = jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ jnp.asarray(weights, x.dtype), -1, axis)
    return x


def _sizes(
    x: Array, output_size: Sequence[int] | None, scale_factors: Sequence[float] | None
) -> list[tuple[int, int, float | None]]:
    """Each axis of space with its new length, and the factor where one is given."""
    space = x.shape[2:]
    factors = list(scale_factors) if scale_factors else [None] * len(space)
    if output_size is None:
        sizes = [int(n * f) for n, f in zip(space, factors, strict=True) if f is not None]
    else:
        sizes = list(output_size)
    return [(a, n, f) for a, (n, f) in enumerate(zip(sizes, factors, strict=True), 2)]
