"""Group sparsity: the l2,1 norm, which sets whole rows, columns or channels to zero."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_range, is_integer
from fedsolve.core.types import Scalar, module, static
from fedsolve.geometry.regularizer import Penalty


@module
class GroupL1(Penalty):
    """Group lasso (Yuan and Lin 2006): weight times the sum over groups of their l2 norms.

    A group is the entries along `axis`: with -1 each row of a matrix, with 0 each column, with (0, 1) each
    output channel's kernel of a convolution stored as height x width x channels.

    Attributes:
        weight: lambda >= 0.
        axis: the axis, or axes, within a group; at least one axis must be left.

    Raises:
        InvalidInput: a weight that is negative or not finite, an axis that is no integer and no tuple of them.

    >>> GroupL1(1.0).prox(jnp.array([[3.0, 4.0], [0.3, 0.4]]), 1.0).round(3).tolist()
    [[2.4000000953674316, 3.200000047683716], [0.0, 0.0]]
    """

    weight: Scalar
    axis: int | tuple[int, ...] = static(default=-1)

    def __post_init__(self) -> None:
        check_range("weight of GroupL1", self.weight, at_least=0)
        axes = _axes(self.axis)
        if not axes or not all(map(is_integer, axes)):
            raise InvalidInput(f"axis of GroupL1 = {self.axis!r} must be an integer or a tuple of integers")

    def check(self, shape: tuple[int, ...], where: str) -> None:
        """Raise `InvalidInput` unless there are two axes or more, of which `axis` names some but not all.

        Raises:
            InvalidInput: otherwise.
        """
        if len(shape) < 2:
            raise InvalidInput(
                f"GroupL1 needs two axes or more, {where} has shape {shape}: put it on matrices, such as "
                "GroupL1(0.1).on('weight')"
            )
        axes = _axes(self.axis)
        if not all(-len(shape) <= a < len(shape) for a in axes):
            raise InvalidInput(f"GroupL1 has axis {self.axis}, {where} has shape {shape}: no such axis")
        distinct = {a % len(shape) for a in axes}
        if len(distinct) < len(axes) or len(distinct) == len(shape):
            raise InvalidInput(
                f"GroupL1 has axis {self.axis}, {where} has shape {shape}: name different axes, and leave one"
            )

    def value(self, w: Array) -> Scalar:
        """weight sum_g |w_g|_2; its derivative is 0 in groups that are 0."""
        return self.weight * jnp.sum(self._norms(w))

    def subgradient(self, w: Array) -> Array:
        """weight w_g / |w_g|_2, 0 in groups that are 0."""
        norms = self._norms(w)
        return (self.weight * w / jnp.where(norms > 0, norms, 1)).astype(w.dtype)

    def prox(self, w: Array, step: Scalar) -> Array:
        """Each group shortened by step weight: w_g max(1 - step weight / |w_g|_2, 0)."""
        norms, threshold = self._norms(w), step * self.weight
        long = norms > threshold
        return (w * jnp.where(long, 1 - threshold / jnp.where(long, norms, 1), 0)).astype(w.dtype)

    def _norms(self, w: Array) -> Array:
        """The groups' l2 norms, with the axes kept; the inner `where` keeps derivatives finite at 0."""
        square = jnp.sum(w * w, axis=self.axis, keepdims=True)
        return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)


def _axes(axis: int | tuple[int, ...]) -> tuple[int, ...]:
    return axis if isinstance(axis, tuple) else (axis,)
