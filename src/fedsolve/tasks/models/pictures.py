"""Models of images (ResNet-18, augmentation), and fine-tuning by updates of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.core.trees import matching, named_leaves
from fedsolve.core.types import Params
from fedsolve.core.xla.convolutions import conv
from fedsolve.tasks.loss_arguments import asked
from fedsolve.tasks.models.models import Affine, as_numbers, dense, group_norm, he, he_dense, unit_norm


@dataclass(frozen=True)
class Augmented:
    """A model with data augmentation: random crop and flip, then standardisation of each image, from bytes.

    With a key, in training, every image is cropped at a random place and mirrored with probability 1/2; without,
    in evaluation, the middle is taken as it is. Then each has its mean subtracted and is divided by its standard
    deviation, or by 1 / sqrt(numbers) where that is larger (TensorFlow's `per_image_standardization`). This is the
    preprocessing of CIFAR in the code of Reddi et al. 2021.

    Attributes:
        model: with init and call, of images (n, crop, crop, channels) as floats.
        crop: side of the crop in pixels, at least 1 and at most the image's; None for the whole image.
        mirror: whether training mirrors.

    Raises:
        InvalidInput: a crop that is no integer from 1.
    """

    model: Any
    crop: int | None = 24
    mirror: bool = True

    def __post_init__(self) -> None:
        if self.crop is not None:
            check_integer("crop", self.crop, 1)

    @property
    def asks(self) -> frozenset[str]:
        return frozenset({"key"})

    def init(self, key: Array) -> Params:
        return self.model.init(key)

    def __call__(self, params: Params, x: Array, key: Array | None = None) -> Array:
        # x: integers from 0 to 255, (n, height, width, channels)
        if key is None:
            return self.model(params, standardised(self._middle(x), params))
        draw, rest = jax.random.split(key)
        given = {"key": rest} if asked(self.model, "the model") else {}
        return self.model(params, standardised(self._drawn(x, draw), params), **given)

    def _middle(self, x: Array) -> Array:
        if self.crop is None:
            return x
        top, left = ((side - self.crop) // 2 for side in x.shape[1:3])
        return x[:, top : top + self.crop, left : left + self.crop]

    def _drawn(self, x: Array, key: Array) -> Array:
        # each image by itself; rows and columns are chosen, which is one gather each. Draws of 32 bits are
        # the same where JAX allows float64; by default they would be others
        n, height, width, _ = x.shape
        offset_key, mirror_key = jax.random.split(key)
        if self.crop is not None:
            rows, columns = jax.random.split(offset_key)
            x = _cut(x, jax.random.randint(rows, (n,), 0, height - self.crop + 1, jnp.int32), self.crop, 1)
            x = _cut(x, jax.random.randint(columns, (n,), 0, width - self.crop + 1, jnp.int32), self.crop, 2)
        if self.mirror:
            x = jnp.where(jax.random.bernoulli(mirror_key, jnp.float32(0.5), (n, 1, 1, 1)), x[:, :, ::-1], x)
        return x


def standardised(x: Array, params: Params) -> Array:
    # each image: zero mean, unit variance, as floats of the parameters' type
    x = as_numbers(x, jax.tree.leaves(params)[0])
    axes, numbers = tuple(range(1, x.ndim)), x[0].size
    centred = x - jnp.mean(x, axes, keepdims=True)
    spread = jnp.sqrt(jnp.mean(jnp.square(centred), axes, keepdims=True))
    return centred / jnp.maximum(spread, numbers**-0.5)


def _cut(x: Array, start: Array, size: int, axis: int) -> Array:
    # `size` entries of each x[i] along an axis of x, from start[i] on
    indices = start[:, None] + jnp.arange(size)
    shape = [len(x), *(1,) * (x.ndim - 1)]
    shape[axis] = size
    return jnp.take_along_axis(x, indices.reshape(shape), axis=axis)


# Fine-tuning by updates: matrices W0 + D of a model that stays as it is, D any matrix or LoRA's product of two.


class Factors(NamedTuple):
    """The low-rank factors of LoRA, D = up down (Hu et al. 2022, with alpha = r: no further scale).

    Attributes:
        up: their B, (out, rank), zeros at first.
        down: their A, (rank, in).
    """

    up: Any
    down: Any


class UpdatedParams(NamedTuple):
    """Parameters of `Updated`."""

    base: Any  # the model as it was given
    updates: Mapping[str, Any]  # path of a matrix of `base` -> D, or `Factors`


@dataclass(frozen=True)
class Updated:
    """A model with matrices W0 + D and trainable updates D, which start at zero.

    A mean of D over clients is what its product with an input needs: it averages exactly. A mean of factors is not: the
    product of means is not the mean of products.

    Attributes:
        model: (params, x) -> outputs.
        patterns: which matrices, by the ends of their paths as `fedsolve.geometry` takes them.
        rank: of LoRA's factors, at least 1; None for whole matrices D.

    Raises:
        InvalidInput: a rank that is no integer from 1.
    """

    model: Any
    patterns: tuple[str, ...]
    rank: int | None = None

    def __post_init__(self) -> None:
        check_integer("rank", self.rank, 1, none="whole matrices")

    def start(self, key: Array, base: Params) -> UpdatedParams:
        """Make the model with updates of 0: D = 0, or up = 0 and down uniform within 1 / sqrt(in).

        Args:
            key: for the factors' random halves.
            base: the model's own parameters, W0 among them.

        Returns:
            Parameters with `base` and `updates`.

        Raises:
            InvalidInput: a pattern that matches no leaf, or one that is no matrix.
        """
        paths, leaves = named_leaves(base)
        updates = {}
        for pattern in self.patterns:
            matched = matching(paths, pattern)
            if not matched:
                raise InvalidInput(
                    f"no leaf of the model is called '{pattern}'; it has {', '.join(paths[:5])} ..."
                )
            for i in matched:
                if jnp.ndim(leaves[i]) != 2:
                    raise InvalidInput(
                        f"{paths[i]} has shape {jnp.shape(leaves[i])}: updates are of matrices"
                    )
                updates[paths[i]] = self._zero(jax.random.fold_in(key, i), leaves[i])
        return UpdatedParams(base, updates)

    def _zero(self, key: Array, matrix: Any) -> Any:
        out, inputs = matrix.shape
        dtype = jax.dtypes.canonicalize_dtype(matrix.dtype)
        if self.rank is None:
            return jnp.zeros((out, inputs), dtype)
        bound = inputs**-0.5
        down = jax.random.uniform(key, (self.rank, inputs), dtype, -bound, bound)
        return Factors(jnp.zeros((out, self.rank), dtype), down)

    def merged(self, params: UpdatedParams) -> Any:
        """The model's parameters with W0 + D as matrices.

        Args:
            params: with `base` and `updates`.

        Returns:
            A pytree of the structure of `base`.
        """
        paths, leaves = named_leaves(params.base)
        for path, update in params.updates.items():
            i = paths.index(path)
            leaves[i] = leaves[i] + (update.up @ update.down if isinstance(update, Factors) else update)
        return jax.tree.structure(params.base).unflatten(leaves)

    def __call__(self, params: UpdatedParams, x: Any) -> Array:
        return self.model(self.merged(params), x)


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
            _conv_layer(first, 3, self.inputs, self.width), blocks, he_dense(last, sizes[-1], self.classes)
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


def _conv_layer(key: Array, size: int, into: int, out: int) -> Convolution:
    return Convolution(he(key, (size, size, into, out), size * size * into).weight, unit_norm(out))


def _block(key: Array, into: int, out: int) -> Block:
    k1, k2, k3 = jax.random.split(key, 3)
    shortcut = None if into == out else _conv_layer(k3, 1, into, out)
    return Block(_conv_layer(k1, 3, into, out), _conv_layer(k2, 3, out, out), shortcut)
