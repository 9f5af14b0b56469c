"""What a multilayer perceptron needs."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.pytorch.registry import operation


@operation("aten.permute.default")
def permute(x: Array, dims: Sequence[int]) -> Array:
    """The axes in another order."""
    return jnp.transpose(x, dims)


@operation("aten.addmm.default")
def addmm(x: Array, mat1: Array, mat2: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    """beta x + alpha mat1 mat2."""
    product = mat1 @ mat2
    return (x if beta == 1 else beta * x) + (product if alpha == 1 else alpha * product)


@operation("aten.relu.default")
def relu(x: Array) -> Array:
    """max(x, 0)."""
    return jax.nn.relu(x)
