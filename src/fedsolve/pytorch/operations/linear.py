"""Products of matrices, distances, Fourier transforms, and complex numbers."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.pytorch.operations.operands import Weights, filled, last_axis
from fedsolve.pytorch.operations.reductions import vector_norm
from fedsolve.pytorch.translation.registry import operation, operations


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


_POWERS = (0.0, -0.5, -1.0)
"""Of the number of entries, by which a transform is multiplied: ATen's codes 0, 1 and 2."""


@operation("aten._fft_c2c.default")
def c2c(x: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    """The transform, or its inverse, along some axes."""
    one = jnp.fft.fft if forward else jnp.fft.ifft
    size = 1
    for axis in dim:
        x, size = one(x, axis=axis, norm="backward" if forward else "forward"), size * x.shape[axis]
    return x * size ** _POWERS[normalization]


@operation("aten._fft_r2c.default")
def r2c(x: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    """The transform of a real x, of the last axis in `dim` only the frequencies that are not conjugates of others."""
    *others, last = dim
    y = jnp.fft.rfft(x, axis=last) if onesided else jnp.fft.fft(x, axis=last)
    return c2c(y * x.shape[last] ** _POWERS[normalization], others, normalization, True)


@operation("aten._fft_c2r.default")
def c2r(x: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    """The inverse of the one-sided transform, with `last_dim_size` entries along the last axis in `dim`."""
    *others, last = dim
    x = c2c(x, others, normalization, False)
    return jnp.fft.irfft(x, last_dim_size, last, "forward") * last_dim_size ** _POWERS[normalization]


operations(
    __name__,
    {
        "_conj": jnp.conj,
        "angle": jnp.angle,
        "complex": lambda real, imag: lax.complex(*jnp.broadcast_arrays(real, imag)),
        "conj_physical": jnp.conj,
        "polar": lambda size, angle: lax.complex(size * jnp.cos(angle), size * jnp.sin(angle)),
        "view_as_complex": lambda x: lax.complex(x[..., 0], x[..., 1]),
        "view_as_real": lambda x: jnp.stack([x.real, x.imag], -1),
    },
)
