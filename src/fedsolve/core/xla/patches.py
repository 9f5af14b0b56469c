"""A convolution as one product of the patches of its input with the kernel: any type, any number of axes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array


def by_patches(
    x: Array,
    kernel: Array,
    *,
    strides: Sequence[int] | None = None,
    padding: Sequence[tuple[int, int]] | None = None,
    dilation: Sequence[int] | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """One product of the patches, (batch places, window c), with the kernel.

    x is (batch, *axes, c), the kernel (*window, c, out), the result (batch, *places, out).
    """
    *window, c, out = kernel.shape
    strides, dilation = strides or [1] * len(window), dilation or [1] * len(window)
    if padding is not None and any(map(any, padding)):
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *[(a, b, 0) for a, b in padding], (0, 0, 0)])
    spans = [d * (w - 1) + 1 for w, d in zip(window, dilation, strict=True)]
    positions = [(n - s) // t + 1 for n, s, t in zip(x.shape[1:-1], spans, strides, strict=True)]
    shifts = []
    for position in product(*map(range, window)):
        start = [p * d for p, d in zip(position, dilation, strict=True)]
        stop = [s + (n - 1) * t + 1 for s, n, t in zip(start, positions, strides, strict=True)]
        shifts.append(lax.slice(x, (0, *start, 0), (x.shape[0], *stop, c), (1, *strides, 1)))
    patches = jnp.concatenate(shifts, axis=-1).reshape(-1, len(shifts) * c)
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    return jnp.matmul(patches, kernel.reshape(-1, out), **options).reshape(x.shape[0], *positions, out)
