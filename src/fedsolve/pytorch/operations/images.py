"""Convolutions over any number of axes, padding, and images of another size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.pytorch.operations.operands import index_dtype, is_floating, same_everywhere
from fedsolve.pytorch.translation.registry import operation


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
    # x: (batch, channels, *space); weight: (out, channels / groups, *window), of a transposed convolution
    # (channels, out / groups, *window)
    axes = weight.ndim - 2
    options = [same_everywhere(v, axes) for v in (stride, padding, dilation, output_padding)]
    steps, pads, spread, more = options
    window = [d * (n - 1) + 1 for d, n in zip(spread, weight.shape[2:], strict=True)]
    if transposed:
        weight, gaps, steps = _turned(weight, groups), steps, [1] * axes
        sides = [(w - 1 - p, w - 1 - p + m) for w, p, m in zip(window, pads, more, strict=True)]
    else:
        gaps, sides = [1] * axes, [(p, p) for p in pads]
    space = "DHW"[-axes:]
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
    # the kernel of a transposed convolution as that of a plain one: flipped, channels exchanged in each group
    channels, out, *window = weight.shape
    weight = jnp.flip(weight, tuple(range(2, weight.ndim))).reshape(groups, channels // groups, out, *window)
    return jnp.swapaxes(weight, 1, 2).reshape(groups * out, channels // groups, *window)


def _pairs(pad: Sequence[int], ndim: int) -> list[tuple[int, int]]:
    # PyTorch lists the last axis first, `jnp.pad` the first
    given = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    return [(0, 0)] * (ndim - len(given)) + given


@operation("aten.constant_pad_nd.default")
def constant_pad(x: Array, pad: Sequence[int], value: float = 0) -> Array:
    # a negative length takes entries away
    return lax.pad(x, jnp.asarray(value, x.dtype), [(a, b, 0) for a, b in _pairs(pad, x.ndim)])


for _axes in (1, 2, 3):
    operation(f"aten.reflection_pad{_axes}d.default")(
        lambda x, pad: jnp.pad(x, _pairs(pad, x.ndim), "reflect")
    )
for _axes in (2, 3):
    operation(f"aten.replication_pad{_axes}d.default")(lambda x, pad: jnp.pad(x, _pairs(pad, x.ndim), "edge"))


@operation("aten.col2im.default")
def col2im(
    x: Array,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Array:
    # x: (batch, channels * window, places); windows that overlap are added
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
    # for each spatial axis (from 2): the new length, and the scale factor where one is given
    space = x.shape[2:]
    factors = list(scale_factors) if scale_factors else [None] * len(space)
    if output_size is None:
        sizes = [int(n * f) for n, f in zip(space, factors, strict=True) if f is not None]
    else:
        sizes = list(output_size)
    return [(a, n, f) for a, (n, f) in enumerate(zip(sizes, factors, strict=True), 2)]


# Maxima and means over windows.


@dataclass(frozen=True)
class WithPlaces:
    """The pair of maxima and of their places, which are computed if they are asked for."""

    values: Array
    places: Callable[[], Array]

    def __getitem__(self, index: int) -> Array:
        return (self.values, self.places)[index] if index == 0 else self.places()

    def __len__(self) -> int:
        return 2


def max_pool(
    axes: int,
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> WithPlaces:
    # x: (..., *space); places are indices into the flattened space
    window, steps, _, spread, sides = _windows(x, axes, kernel_size, stride, padding, dilation, ceil_mode)
    outer = x.ndim - axes
    low = -np.inf if is_floating(x) else jnp.iinfo(x.dtype).min
    ones = [1] * outer

    def entries() -> Array:
        around = lax.pad(x, jnp.asarray(low, x.dtype), [(a, b, 0) for a, b in [*[(0, 0)] * outer, *sides]])
        return _shifts(around, outer, window, steps, spread)

    def places() -> Array:
        own = entries()
        flat = jnp.arange(prod(x.shape[outer:])).reshape(x.shape[outer:])
        numbers = _shifts(jnp.pad(flat, sides), 0, window, steps, spread)
        numbers = jnp.broadcast_to(numbers.reshape(len(numbers), *ones, *numbers.shape[1:]), own.shape)
        return jnp.take_along_axis(numbers, jnp.argmax(own, 0)[None], 0)[0].astype(index_dtype())

    if set(spread) == {1}:
        constant = np.asarray(low, x.dtype)  # by which JAX knows the gradient
        pads = [*[(0, 0)] * outer, *sides]
        values = lax.reduce_window(x, constant, lax.max, (*ones, *window), (*ones, *steps), pads)
    else:  # JAX has no gradient of dilated windows
        own = entries()
        values = jnp.take_along_axis(own, jnp.argmax(own, 0)[None], 0)[0]
    return WithPlaces(values, places)


def avg_pool(
    axes: int,
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    # whether padding counts is an argument; what `ceil_mode` adds never does
    window, steps, pads, spread, sides = _windows(x, axes, kernel_size, stride, padding, 1, ceil_mode)
    outer = x.ndim - axes
    sums = _summed(x, outer, window, steps, sides)
    if divisor_override:
        return sums / divisor_override
    inside = np.ones(x.shape[outer:])
    inside = np.pad(inside, [(p, p) for p in pads], constant_values=float(count_include_pad))
    inside = np.pad(inside, [(0, b - p) for (_, b), p in zip(sides, pads, strict=True)])
    counts = sum(np.asarray(part) for part in _slices(inside, 0, window, steps, spread))
    return sums / jnp.asarray(counts, x.dtype)


for _axes in (2, 3):
    operation(f"aten.max_pool{_axes}d_with_indices.default")(partial(max_pool, _axes))
    operation(f"aten.avg_pool{_axes}d.default")(partial(avg_pool, _axes))


def _summed(x: Array, outer: int, window: list[int], steps: list[int], sides: list[tuple[int, int]]) -> Array:
    if (
        window == steps
        and not any(map(any, sides))
        and all(n % w == 0 for n, w in zip(x.shape[outer:], window, strict=True))
    ):
        split = [part for n, w in zip(x.shape[outer:], window, strict=True) for part in (n // w, w)]
        return jnp.sum(
            x.reshape(*x.shape[:outer], *split), tuple(range(outer + 1, outer + 2 * len(window), 2))
        )
    ones = [1] * outer
    return lax.reduce_window(
        x, np.zeros((), x.dtype), lax.add, (*ones, *window), (*ones, *steps), [*[(0, 0)] * outer, *sides]
    )


@operation("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default")
def adaptive_avg_pool(x: Array, output_size: Sequence[int]) -> Array:
    # windows of about equal length, as many along each of the last axes as `output_size` says
    for axis, out in enumerate(output_size, x.ndim - len(output_size)):
        length = x.shape[axis]
        if length % out == 0:
            x = jnp.mean(x.reshape(*x.shape[:axis], out, length // out, *x.shape[axis + 1 :]), axis + 1)
        else:
            share = np.zeros((length, out))
            for i, (low, high) in enumerate(_adaptive(length, out)):
                share[low:high, i] = 1 / (high - low)
            x = jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ jnp.asarray(share, x.dtype), -1, axis)
    return x


@operation("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def adaptive_max_pool(x: Array, output_size: Sequence[int]) -> tuple[Array, Array]:
    # places are indices into the flattened space
    axes = len(output_size)
    space = x.shape[-axes:]
    spans = [_adaptive(n, out) for n, out in zip(space, output_size, strict=True)]
    values, places = [], []
    for ranges in product(*spans):
        part = x[(..., *(slice(*r) for r in ranges))]
        grid = np.arange(prod(space)).reshape(space)[tuple(slice(*r) for r in ranges)]
        part = part.reshape(*part.shape[:-axes], -1)
        best = jnp.argmax(part, -1)
        values.append(jnp.take_along_axis(part, best[..., None], -1)[..., 0])
        places.append(jnp.asarray(grid.reshape(-1), index_dtype())[best])
    shape = (*x.shape[:-axes], *output_size)
    return jnp.stack(values, -1).reshape(shape), jnp.stack(places, -1).reshape(shape)


def _adaptive(length: int, out: int) -> list[tuple[int, int]]:
    return [(i * length // out, -(-(i + 1) * length // out)) for i in range(out)]


def _windows(
    x: Array,
    axes: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    ceil_mode: bool,
) -> tuple[list[int], list[int], list[int], list[int], list[tuple[int, int]]]:
    # window, stride, padding, dilation, and what to pad on both sides (more in `ceil_mode`)
    window = same_everywhere(kernel_size, axes)
    steps = same_everywhere(stride, axes) if stride else window
    pads, spread = same_everywhere(padding, axes), same_everywhere(dilation, axes)
    sides = []
    for n, w, t, p, d in zip(x.shape[-axes:], window, steps, pads, spread, strict=True):
        free = n + 2 * p - d * (w - 1) - 1
        out = (-(-free // t) if ceil_mode else free // t) + 1
        out -= ceil_mode and (out - 1) * t >= n + p  # a window must start inside, or in the left padding
        sides.append((p, max((out - 1) * t + d * (w - 1) + 1 - n - p, 0 if ceil_mode else p)))
    return window, steps, pads, spread, sides


def _slices(
    x: Array | np.ndarray, outer: int, window: list[int], steps: list[int], spread: list[int]
) -> list[Array | np.ndarray]:
    # for each place in a window, the entries there, window after window
    last = [
        (n - d * (w - 1) - 1) // t * t
        for n, w, t, d in zip(x.shape[outer:], window, steps, spread, strict=True)
    ]
    parts = []
    for place in product(*map(range, window)):
        own = [
            slice(p * d, p * d + end + 1, t) for p, d, end, t in zip(place, spread, last, steps, strict=True)
        ]
        parts.append(x[(slice(None),) * outer + tuple(own)])
    return parts


def _shifts(x: Array, outer: int, window: list[int], steps: list[int], spread: list[int]) -> Array:
    return jnp.stack([jnp.asarray(part) for part in _slices(x, outer, window, steps, spread)])
