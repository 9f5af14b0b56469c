"""The dense autoencoder of Reddi et al. 2021."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.tasks.models.layers import Affine, as_numbers, dense, dense_of, flat


@dataclass(frozen=True)
class Autoencoder:
    """Dense autoencoder: sigmoid layers down to a linear code, and the mirrored layers back to values in [0, 1].

    The network of the EMNIST autoencoder of Reddi et al. 2021; 2,837,314 parameters by default. x is flattened, bytes
    are taken as x / 255; the reconstructions have its shape.

    Attributes:
        sizes: of the input, the hidden layers and the code: two numbers or more, each at least 1.

    Raises:
        InvalidInput: fewer than two sizes, or one that is no integer from 1.
    """

    sizes: tuple[int, ...] = (784, 1000, 500, 250, 30)

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, tuple | list) or len(self.sizes) < 2:
            raise InvalidInput(
                f"sizes = {self.sizes!r} must have at least an input and a code size, such as (784, 30)"
            )
        object.__setattr__(self, "sizes", tuple(check_integer("sizes", n, 1) for n in self.sizes))

    def init(self, key: Array) -> tuple[Affine, ...]:
        """Glorot normal weights: a layer has weight (out, in) and bias (out,)."""
        sizes = (*self.sizes, *self.sizes[-2::-1])
        keys = jax.random.split(key, len(sizes) - 1)
        glorot = jax.nn.initializers.glorot_normal()
        return tuple(dense_of(glorot, k, *pair) for k, pair in zip(keys, pairwise(sizes), strict=True))

    def __call__(self, params: tuple[Affine, ...], x: Array) -> Array:
        """Reconstructions of the shape of x."""
        code = len(self.sizes) - 2
        y = flat(as_numbers(x, params[0].weight))
        for i, layer in enumerate(params):
            y = dense(layer, y)
            y = y if i == code else jax.nn.sigmoid(y)
        return jnp.reshape(y, x.shape)
