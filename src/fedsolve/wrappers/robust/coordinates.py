"""Robust reductions of one coordinate at a time: median and trimmed mean (Yin et al. 2018)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.checks import check_range
from fedsolve.types import Scalar, module, reductions
from fedsolve.wrappers.robust.base import Reduction, column, middle
from fedsolve.wrappers.robust.selection import of_rank, trimmed_means


@module
class Median(Reduction):
    """The coordinate-wise median of the cohort's messages (Yin et al. 2018, Definition 1).

    Every leaf alike, scalars and maxima included: an attacker must not set a maximum. Of an even number of
    clients it is the mean of the middle two. Weights are ignored. Fewer than half of the clients cannot move
    a coordinate beyond the values of the others.
    """

    def reduce(self, messages: Any, weight: Array, used: Array) -> Any:
        """The median of each coordinate."""
        return jax.tree.map(lambda x: middle(x, used), messages)


def _floor(product: Scalar) -> Array:
    """The whole number below a product of two: 0.29 of 100 is 29 but for the rounding of 0.29 and of the product."""
    product = 1.0 * jnp.asarray(product)
    return jnp.floor(product * (1 + 4 * jnp.finfo(product.dtype).eps))


@module
class TrimmedMean(Reduction):
    """The mean of each coordinate without its largest and smallest values (Yin et al. 2018, Definition 2).

        k = floor(trim n):  the mean of the n - 2k values that are left,  n clients used

    Every leaf alike, scalars included; of a maximum the largest value that is left. Weights are ignored.
    Up to k clients cannot move a coordinate beyond the values of the others. 0 is the plain mean.

    Attributes:
        trim: share cut at each end, at least 0 and below 1/2; at least one value is always left.

    Raises:
        InvalidInput: a share out of its range.
    """

    trim: Scalar = 0.1

    def __post_init__(self) -> None:
        check_range("trim", self.trim, at_least=0, below=0.5)

    def reduce(self, messages: Any, weight: Array, used: Array) -> Any:
        """The trimmed mean of each coordinate."""
        count = jnp.sum(used)
        cut = jnp.minimum(_floor(self.trim * count).astype(count.dtype), (count - 1) // 2)
        last = jnp.maximum(count - cut, 1) - 1

        def leaf(by: str, x: Array) -> Array:
            values = jnp.where(column(used, x), x, jnp.inf)
            return of_rank(values, last) if by == "max" else trimmed_means(values, cut, last)

        return jax.tree.map(leaf, reductions(messages), messages)
