"""Decompositions of a matrix, which on a CPU are done one after another where they are vmapped.

XLA spreads a batch of LAPACK calls over the threads of its pool and waits for them there. Where several programs do so
at once, as batches of a sweep do on two cores, all threads wait and none works: the process stands still for good (JAX
0.10.2). Derivatives are JAX's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Float


def _one_by_one(decompose: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """A decomposition of one matrix that is never a batch of them on a CPU."""
    in_turn = sequential_vmap(decompose)

    @jax.custom_jvp
    def one(w: Array) -> Any:
        return in_turn(w) if jax.default_backend() == "cpu" else decompose(w)

    @one.defjvp
    def _(w: Any, change: Any) -> Any:
        return jax.jvp(decompose, w, change)

    return one


_svd = _one_by_one(lambda w: tuple(jnp.linalg.svd(w, full_matrices=False)))
_singular_values = _one_by_one(lambda w: jnp.linalg.svd(w, compute_uv=False))
_orthonormal = _one_by_one(lambda w: jnp.linalg.qr(w)[0])
_eigh = _one_by_one(lambda w: tuple(jnp.linalg.eigh(w)))


def svd(w: Float[Array, "m n"]) -> tuple[Array, Array, Array]:
    """U of shape (m, k), the singular values from the largest, and V' of shape (k, n), k = min(m, n)."""
    return _svd(w)


def singular_values(w: Float[Array, "m n"]) -> Array:
    """The singular values from the largest, shape (min(m, n),)."""
    return _singular_values(w)


def orthonormal(w: Float[Array, "m n"]) -> Array:
    """Orthonormal columns that span those of a matrix, shape (m, min(m, n))."""
    return _orthonormal(w)


def eigh(w: Float[Array, "n n"]) -> tuple[Array, Array]:
    """The eigenvalues of a symmetric matrix from the least, and its eigenvectors as columns."""
    return _eigh(w)
