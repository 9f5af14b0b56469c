"""ResNet-18 with group normalisation, for small images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.core.xla.convolutions import conv
from fedsolve.tasks.models.models import Affine, as_numbers, dense, group_norm, he, he_dense, unit_norm

_STAGES, _BLOCKS = 4, 2


class Convolution(NamedTuple):
    """A convolution without a bias and the norm behind it."""

    kernel: Any  # (height, width, in, out)
    norm: Affine  # scale and shift, (out,) each


class Block(NamedTuple):
    """Two convolutions around which the input goes; `shortcut` where its shape changes, else None."""

    first: Convolution
    second: Convolution
    shortcut: Convolution | None


class ResNetParams(NamedTuple):
    """The parameters of `ResNet18`: `blocks` are the eight blocks in their order."""

    stem: Convolution
    blocks: tuple[Block, ...]
    output: Affine


@dataclass(frozen=True)
class ResNet18:
    """ResNet-18 (He et al. 2016) with group normalisation, and a 3 x 3 stem without pooling for small images.

    Four stages of two blocks, of 1, 2, 4 and 8 times `width` channels, the side halved between stages; means over
    places; logits. x has shape (n, height, width, inputs), numbers or bytes (taken as x / 255).

    Attributes:
        classes: outputs, at least 1.
        width: channels of the first stage; 64 is the usual network (11,173,962 parameters with 10 classes).
        groups: of each norm, at most its channels; must divide them.
        inputs: channels of an image: 1 for grey, 3 for colours; at least 1.

    Raises:
        InvalidInput: a number out of its range, or groups that do not divide the width.
    """

    classes: int = 10
    width: int = 64
    groups: int = 32
    inputs: int = 3

    def __post_init__(self) -> None:
        for name in ("classes", "width", "groups", "inputs"):
            check_integer(name, getattr(self, name), 1)
        if self.width % min(self.groups, self.width):
            raise InvalidInput(
                f"groups = {self.groups} does not divide width = {self.width}: give a divisor of it, or a multiple "
                "of both"
            )

    def init(self, key: Array) -> ResNetParams:
        first, last, *keys = jax.random.split(key, 2 + _STAGES * _BLOCKS)
        sizes = [self.width * 2**stage for stage in range(_STAGES) for _ in range(_BLOCKS)]
        before = [self.width, *sizes[:-1]]
        blocks = tuple(map(_block, keys, before, sizes))
        return ResNetParams(
            _convolution(first, 3, self.inputs, self.width), blocks, he_dense(last, sizes[-1], self.classes)
        )

    def __call__(self, params: ResNetParams, x: Array) -> Array:
        x = self._apply(params.stem, as_numbers(x, params.output.weight), 1)
        x = jax.nn.relu(x)
        for block in params.blocks:
            stride = 1 if block.shortcut is None else 2
            y = jax.nn.relu(self._apply(block.first, x, stride))
            y = self._apply(block.second, y, 1)
            x = jax.nn.relu(y + (x if block.shortcut is None else self._apply(block.shortcut, x, stride)))
        return dense(params.output, jnp.mean(x, axis=(1, 2)))

    def _apply(self, layer: Convolution, x: Array, stride: int) -> Array:
        size, channels = layer.kernel.shape[0], layer.kernel.shape[-1]
        y = conv(x, layer.kernel, stride=stride, padding=size // 2)
        return group_norm(layer.norm, y, min(self.groups, channels))


def _convolution(key: Array, size: int, into: int, out: int) -> Convolution:
    return Convolution(he(key, (size, size, into, out), size * size * into).weight, unit_norm(out))


def _block(key: Array, into: int, out: int) -> Block:
    k1, k2, k3 = jax.random.split(key, 3)
    shortcut = None if into == out else _convolution(k3, 1, into, out)
    return Block(_convolution(k1, 3, into, out), _convolution(k2, 3, out, out), shortcut)
