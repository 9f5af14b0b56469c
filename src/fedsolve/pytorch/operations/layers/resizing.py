"""Images of another size; interpolation is a product with a matrix along each axis."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.pytorch.translation.registry import operation


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
