"""Penalties that are sums over entries, or see a whole vector: l1, elastic net, squared l2, l-infinity."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.errors import check_range
from fedsolve.geometry.regularizer import Penalty
from fedsolve.types import Scalar, module


@module
class L1(Penalty):
    """weight |w|_1: sparse solutions (the lasso)."""

    weight: Scalar
    separable = True

    def __post_init__(self) -> None:
        check_range("weight of L1", self.weight, at_least=0)

    def value(self, w: Array) -> Scalar:
        """weight sum |w_j|."""
        return self.weight * jnp.sum(jnp.abs(w))

    def subgradient(self, w: Array) -> Array:
        """weight sign(w)."""
        return (self.weight * jnp.sign(w)).astype(w.dtype)

    def prox(self, w: Array, step: Scalar) -> Array:
        """Soft threshold by step weight."""
        return soft_threshold(w, step * self.weight)


def soft_threshold(w: Array, threshold: Scalar) -> Array:
    """sign(w) max(|w| - threshold, 0), as w minus its part within the threshold: one clip, no sign."""
    return (w - jnp.clip(w, -threshold, threshold)).astype(w.dtype)
