"""More entries around, and sums of overlapping windows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.pytorch.translation.registry import operation


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
