"""Robust reductions of one coordinate at a time: median and trimmed mean (Yin et al. 2018)."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.errors import check_range
from fedsolve.core.types import Scalar, module, reductions
from fedsolve.methods.robust.reduction import Reduction, column, middle
from fedsolve.methods.robust.selection import of_rank, trimmed_means


@module
class Median(Reduction):
    """Coordinate-wise median of the cohort's messages (Yin et al. 2018, Definition 1).

    Every leaf alike, scalars and maxima included: an attacker must not set a maximum. Of an even number of
    clients it is the mean of the middle two. Weights are ignored. Fewer than half of the clients cannot move
    a coordinate beyond the values of the others: n >= 3 clients are needed, or no client is fewer than half.
    """

    condition: ClassVar[str] = "n >= 3"

    @property
    def fewest(self) -> Scalar:
        """At least 3 messages: the median of two is their mean."""
        return 3

    def reduce(self, messages: Any, weight: Array, used: Array) -> Any:
        """The median of each coordinate."""
        return jax.tree.map(lambda x: middle(x, used), messages)


def _floor(product: Scalar) -> Array:
    """The whole number below a product of two: 0.29 of 100 is 29 but for the rounding of 0.29 and of the product."""
    product = 1.0 * jnp.asarray(product)
    return jnp.floor(product * _above(product.dtype))


def _above(dtype: Any) -> float:
    """Beyond the rounding of a number and of its product with a count, relative to them."""
    return 1 + 4 * float(jnp.finfo(dtype).eps)


@module
class TrimmedMean(Reduction):
    """Trimmed mean: the mean of each coordinate without its extreme values (Yin et al. 2018, Definition 2).

        k = floor(trim n):  the mean of the n - 2k values that are left,  n clients used

    Every leaf alike, scalars included; of a maximum the largest value that is left. Weights are ignored.
    Up to k clients cannot move a coordinate beyond the values of the others: k >= 1 is needed, so n >= 1 / trim.
    trim = 0 is the plain mean, of any n, and guarantees nothing.

    Attributes:
        trim: share cut at each end, at least 0 and below 1/2; at least one value is always left.

    Raises:
        InvalidInput: a share out of its range.
    """

    condition: ClassVar[str] = "floor(trim n) >= 1"
    trim: Scalar = 0.1

    def __post_init__(self) -> None:
        check_range("trim", self.trim, at_least=0, below=0.5)

    @property
    def fewest(self) -> Scalar:
        """The smallest number of messages of which one value is cut at each end; 1 where trim is 0."""
        trim = 1.0 * jnp.asarray(self.trim)
        some = jnp.where(trim > 0, trim, 1)
        return jnp.where(trim > 0, jnp.ceil(1 / (some * _above(trim.dtype))), 1)

    def reduce(self, messages: Any, weight: Array, used: Array) -> Any:
        """The trimmed mean of each coordinate."""
        count = jnp.sum(used)
        cut = jnp.minimum(_floor(self.trim * count).astype(count.dtype), (count - 1) // 2)
        last = jnp.maximum(count - cut, 1) - 1

        def leaf(by: str, x: Array) -> Array:
            values = jnp.where(column(used, x), x, jnp.inf)
            return of_rank(values, last) if by == "max" else trimmed_means(values, cut, last)

        return jax.tree.map(leaf, reductions(messages), messages)
