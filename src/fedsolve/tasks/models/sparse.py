"""Linear models of sparse examples: only the weights that an example has entries for are read, and get a gradient."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.checks import check_integer
from fedsolve.data.examples import SparseRows
from fedsolve.tasks.models.layers import Affine


@dataclass(frozen=True)
class SparseLinear:
    """W^T x + b of sparse x, `fs.SparseRows`, to (n, outputs): of tags with `BinaryCrossEntropy`, of classes with
    `CrossEntropy`; starts at zero.

    W is (features, outputs), the transpose of `Softmax`'s, so that what belongs to a word lies in one place. An index
    outside makes its example's outputs NaN.

    Attributes:
        features: columns of x, at least 1.
        outputs: at least 1.

    Raises:
        InvalidInput: a number below those.
    """

    features: int
    outputs: int

    def __post_init__(self) -> None:
        check_integer("features", self.features, 1)
        check_integer("outputs", self.outputs, 1)

    def init(self, key: Array) -> Affine:
        """Zeros: weight (features, outputs), bias (outputs,)."""
        return Affine(jnp.zeros((self.features, self.outputs)), jnp.zeros(self.outputs))

    def __call__(self, params: Affine, x: SparseRows) -> Array:
        """Outputs of shape (n, outputs)."""
        own = params.weight.at[x.indices].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
        # a sum, not a matrix product: it is fused with the reading, whose (n, entries, outputs) are never written
        return jnp.sum(x.values[..., None] * own, axis=1) + params.bias


def dense_rows(rows: SparseRows, columns: int, dtype: jnp.dtype) -> Array:
    """The rows as they are, shape (n, columns); one with an index outside is NaN."""
    count = rows.indices.shape[0]
    outside = jnp.any((rows.indices < 0) | (rows.indices >= columns), axis=1, keepdims=True)
    dense = jnp.zeros((count, columns), dtype)
    dense = dense.at[jnp.arange(count)[:, None], rows.indices].add(rows.values.astype(dtype))
    return jnp.where(outside, jnp.nan, dense)
