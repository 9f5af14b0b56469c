"""Low rank: the nuclear norm of a matrix."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_range
from fedsolve.core.types import Scalar, module
from fedsolve.core.xla.products import singular_values, svd
from fedsolve.geometry.regularizer import Penalty


@module
class NuclearNorm(Penalty):
    """Nuclear norm penalty, weight times the sum of the singular values of a matrix: low-rank solutions.

    The prox costs one singular value decomposition of the smaller side, O(m n min(m, n)). Its derivative
    in w, which JAX takes through that decomposition, is not finite where singular values coincide.

    Attributes:
        weight: lambda >= 0, in units of the loss per unit of the nuclear norm.

    Raises:
        InvalidInput: a weight that is negative or not finite.

    >>> NuclearNorm(1.0).value(jnp.array([[3.0, 0.0], [0.0, -4.0]])).item()
    7.0
    """

    weight: Scalar

    def __post_init__(self) -> None:
        check_range("weight of NuclearNorm", self.weight, at_least=0)

    def check(self, shape: tuple[int, ...], where: str) -> None:
        """Raise `InvalidInput` unless it is a matrix.

        Raises:
            InvalidInput: any other number.
        """
        if len(shape) != 2:
            raise InvalidInput(
                f"NuclearNorm needs a matrix, {where} has shape {shape}: put it on matrices, such as "
                "NuclearNorm(0.1).on('weight')"
            )

    def value(self, w: Array) -> Scalar:
        """weight sum_i sigma_i(w)."""
        return self.weight * jnp.sum(singular_values(quiet(w)))

    def subgradient(self, w: Array) -> Array:
        """weight U V' over the singular values above rounding: the shortest subgradient, 0 at 0."""
        u, s, v = svd(quiet(w))
        nonzero = s > jnp.finfo(w.dtype).eps * max(w.shape) * jnp.max(s)
        return (self.weight * (u * nonzero) @ v).astype(w.dtype)

    def prox(self, w: Array, step: Scalar) -> Array:
        """U max(S - step weight, 0) V' (Cai, Candes and Shen 2010); w itself at step 0."""
        threshold = step * self.weight
        # the Gram matrix of the smaller side would be cheaper, but halves the digits of small singular values
        u, s, v = svd(quiet(w))
        shrunk = (u * jnp.maximum(s - threshold, 0)) @ v
        return jnp.where(threshold > 0, shrunk, w).astype(w.dtype)


def quiet(w: Array) -> Array:
    """w, or NaN everywhere if it holds an infinity: of one LAPACK complains aloud, NaN it passes on."""
    return jnp.where(jnp.max(jnp.abs(w)) < jnp.inf, w, jnp.nan)
