"""The error of a reconstruction."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks.losses.losses import Model, OfOutputs
from fedsolve.tasks.models.layers import as_numbers, flat


@dataclass(frozen=True)
class ReconstructionError(OfOutputs):
    """Reconstruction error: the mean of (model(x) - y)^2 over all entries of the images y, numbers or bytes / 255.

    Attributes:
        model: (params, x of shape (n, ...)) -> reconstructions of that shape, such as `Autoencoder`.
    """

    model: Model

    def of(self, outputs: Array, y: Array) -> Array:
        """The mean squared error over the entries of each example."""
        if outputs.shape != y.shape:
            raise InvalidInput(
                f"reconstructions have shape {outputs.shape}, images {y.shape}: they must agree"
            )
        return jnp.mean(flat(jnp.square(outputs - as_numbers(y, outputs))), axis=1)
