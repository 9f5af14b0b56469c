"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.pytorch.operations.layers.padding_rows import Weights, filled, last_axis
from fedsolve.pytorch.operations.tensors.reductions import vector_norm
from fedsolve.pytorch.translation.registry import operation


@operation("aten.mm.default", "aten.bmm.default", mixing=last_axis)
def matmul(x: Array, other: Array, *, weights: Weights = None) -> Array:
    """The product of vectors, matrices or batches of them."""
    return jnp.matmul(filled(x, weights, (x.ndim - 1,), 0), other)


@operation("aten.addmm.default", "aten.addmv.default")
def addmm(x: Array, mat1: Array, mat2: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    """beta x + alpha mat1 mat2; beta 0 leaves x out, NaN and all."""
    product = jnp.matmul(mat1, mat2)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else (x if beta == 1 else x * beta) + product


@operation("aten._trilinear.default")
def trilinear(
    i1: Array,
    i2: Array,
    i3: Array,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Array:
    """The sum over some axes of the product of three tensors, each with new axes of length 1."""
    a, b, c = (jnp.expand_dims(x, tuple(e)) for x, e in ((i1, expand1), (i2, expand2), (i3, expand3)))
    return _summed_product(a, b, c, sumdim)


def _summed_product(a: Array, b: Array, c: Array, axes: Sequence[int]) -> Array:
    """By `einsum`, which leaves out the axes of length 1 and so never forms the product of all three."""
    shape = jnp.broadcast_shapes(a.shape, b.shape, c.shape)
    terms: list[object] = []
    for x in (a, b, c):
        long = [i for i, n in enumerate(x.shape) if n > 1]
        terms += [x.reshape([x.shape[i] for i in long]), long]
    present = {i for term in terms[1::2] for i in term}  # pyright: ignore[reportGeneralTypeIssues]
    kept = [i for i in range(len(shape)) if i not in axes]
    y = jnp.einsum(*terms, [i for i in kept if i in present], optimize="optimal")  # pyright: ignore
    return y.reshape([shape[i] for i in kept])


@operation("aten._cdist_forward.default")
def cdist(x1: Array, x2: Array, p: float = 2, compute_mode: int | None = None) -> Array:
    """Distances between the rows of two matrices, by a norm; the gradient of one that is 0 is 0."""
    return vector_norm(x1[..., :, None, :] - x2[..., None, :, :], p, (-1,))


@operation("aten._pdist_forward.default")
def pdist(x: Array, p: float = 2) -> Array:
    """Distances between all pairs of rows, each pair once."""
    first, second = np.triu_indices(x.shape[0], 1)
    return vector_norm(x[first] - x[second], p, (-1,))
