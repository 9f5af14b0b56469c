"""Convolution and pooling in forms that are fast where XLA's own are not, once differentiated inside a loop.

* direct: on a CPU XLA's own convolution with gradients of the one form that its library takes, on a GPU products of
  patches (`fedsolve.core.xla.direct`);
* tiles: the minimal filtering algorithm F(2x2, 3x3) of Winograd. Each 2x2 tile of outputs needs 16 products
  per pair of channels instead of 36, as Y = A' ((G g G') * (B' d B)) A. It is an identity, not an
  approximation; rounding stays of the order of the direct sum's;
* patches: one product with all shifted images side by side (`patches`), for what the others do not take.

Which is the fastest where is measured in benchmarks/FINDINGS.md. On a TPU they are the ordinary operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedsolve.core.xla.direct import by_patches, direct

BACKENDS = ("cpu", "gpu")
"""Where these forms are used."""

_TILE_CHANNELS = 32  # below this the products of the tiles are too thin to pay for the transforms
_DIRECT_OUTPUTS = 16  # below this the library spends its time on cutting patches


def conv3x3(
    x: Float[Array, "batch h w c"], kernel: Float[Array, "3 3 c out"], bias: Float[Array, " out"]
) -> Float[Array, "batch h-2 w-2 out"]:
    """3x3 convolution without padding: x (batch, h, w, c), kernel (3, 3, c, out), bias (out,)."""
    if tiles_pay(x, kernel):
        return by_tiles(x, kernel) + bias
    return conv(x, kernel) + bias


def conv(x: Array, kernel: Array, *, stride: int = 1, padding: int = 0) -> Array:
    """Convolution of images x (n, h, w, c) with a kernel (h', w', c, out), the same stride and padding on both axes."""
    strides, pad = (stride, stride), [(padding, padding)] * 2
    if jax.default_backend() not in BACKENDS:
        return lax.conv_general_dilated(x, kernel, strides, pad, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return convolve(x, kernel, strides=strides, padding=pad, dilation=(1, 1))


def convolve(
    x: Array,
    kernel: Array,
    *,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Any convolution on a CPU or a GPU, direct or by patches: x (batch, *axes, c), kernel (*window, c, out)."""
    window, out = kernel.shape[:-2], kernel.shape[-1]
    library = x.dtype == kernel.dtype == jnp.float32 and preferred_element_type in (None, x.dtype)
    thin = jax.default_backend() == "cpu" and out < _DIRECT_OUTPUTS
    if library and 0 < len(window) <= 3 and prod(window) > 1 and not thin:
        return direct(x, kernel, strides=strides, padding=padding, dilation=dilation)
    return by_patches(
        x,
        kernel,
        strides=strides,
        padding=padding,
        dilation=dilation,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def tiles_pay(x: Array, kernel: Array) -> bool:
    """Whether `by_tiles` applies to x (batch, h, w, c) and kernel (h', w', c, out), and is the fastest form."""
    if jax.default_backend() != "cpu":
        return False
    *window, c, out = kernel.shape
    even = all(n % 2 == 0 and n > 2 for n in x.shape[1:-1])
    exact = jnp.promote_types(x.dtype, jnp.float32) == x.dtype  # its sums of entries lose digits of a half
    return window == [3, 3] and even and exact and min(c, out) >= _TILE_CHANNELS


def max_pool2x2(x: Float[Array, "batch h w c"]) -> Float[Array, "batch h/2 w/2 c"]:
    """Maximum of 2x2 windows, (batch, h, w, c) to (batch, h // 2, w // 2, c); ties share the gradient."""
    x = x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]
    rows = jnp.maximum(x[:, ::2], x[:, 1::2])
    return jnp.maximum(rows[:, :, ::2], rows[:, :, 1::2])


def by_tiles(x: Array, kernel: Array) -> Array:
    """Winograd's F(2x2, 3x3): 16 products of inner size c over the (h - 2) / 2 by (w - 2) / 2 tiles."""
    n, h, w, c = x.shape
    out, th, tw = kernel.shape[-1], (h - 2) // 2, (w - 2) // 2
    # Every second row and column from each of the four offsets of a 4x4 input tile; lists, not stacked
    # arrays: sixteen plain products run faster than one batched product.
    rows = _input_transform([x[:, i : i + 2 * th - 1 : 2] for i in range(4)])
    tiles = [
        tile.reshape(-1, c)
        for row in rows
        for tile in _input_transform([row[:, :, j : j + 2 * tw - 1 : 2] for j in range(4)])
    ]
    kernels = [u for row in _kernel_transform(kernel) for u in _kernel_transform(row)]
    products = [tile @ u for tile, u in zip(tiles, kernels, strict=True)]
    columns = [_output_transform(products[4 * i : 4 * i + 4]) for i in range(4)]
    outputs = [_output_transform([column[j] for column in columns]) for j in range(2)]  # [column][row]
    grid = [[outputs[j][i].reshape(n, th, tw, out) for j in range(2)] for i in range(2)]
    whole = jnp.stack([jnp.stack(row, axis=3) for row in grid], axis=2)  # (n, th, 2, tw, 2, out)
    return whole.reshape(n, 2 * th, 2 * tw, out)


def _input_transform(d: Sequence[Array]) -> list[Array]:
    """B' d for one axis of an input tile."""
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _kernel_transform(g: Array) -> list[Array]:
    """G g for the first axis of the kernel."""
    return [g[0], (g[0] + g[1] + g[2]) / 2, (g[0] - g[1] + g[2]) / 2, g[2]]


def _output_transform(m: Sequence[Array]) -> list[Array]:
    """A' m for one axis of a tile of products."""
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]
