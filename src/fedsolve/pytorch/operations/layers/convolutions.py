"""Convolutions over any number of axes."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.pytorch.operations.tensors.promotion import same_everywhere
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
