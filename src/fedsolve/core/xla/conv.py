"""Convolution and pooling in forms that are fast where XLA's own are not, once differentiated inside a loop.

* direct: on a CPU XLA's own convolution, or minimal filtering where that has fewer products to pay for
  (`fedsolve.core.xla.tiles`), with gradients of the same kind; on a GPU products of patches
  (`fedsolve.core.xla.direct`);
* patches: one product with all shifted images side by side (`patches`), for what that does not take.

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

_DIRECT_OUTPUTS = 16  # below this the library spends its time on cutting patches


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


def max_pool2x2(x: Float[Array, "batch h w c"]) -> Float[Array, "batch h/2 w/2 c"]:
    """Maximum of 2x2 windows, (batch, h, w, c) to (batch, h // 2, w // 2, c); ties share the gradient."""
    x = x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]
    rows = jnp.maximum(x[:, ::2], x[:, 1::2])
    return jnp.maximum(rows[:, :, ::2], rows[:, :, 1::2])
