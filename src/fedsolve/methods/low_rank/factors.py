"""Factors of low rank: which leaves of a model have them, how they begin, and a client's oracle seen from them.

Trees of factors have the model's structure with `Factors` in the place of the chosen leaves; the chosen leaves alone
have the model's structure with None for all others, so that paths stay what they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import WrappedOracle
from fedsolve.core.trees import all_matching, named_leaves
from fedsolve.core.types import Params, Scalar, module

_SEED = 0x10A4  # of random numbers that nobody need hide: the same in simulation and deployment
_NAMED = 3  # paths that an error names


@module
class Factors:
    """What is trained in place of a matrix: B, shape (rows, rank), and A, shape (rank, columns) or None where fixed."""

    b: Array
    a: Any


def chosen_leaves(params: Params, patterns: Sequence[str], rank: int) -> Params:
    """The leaves that have factors: matrices that a pattern matches, and that are larger than their factors.

    A leaf is the matrix of its first axis and all others.

    Raises:
        InvalidInput: a pattern that matches no leaf, or patterns that match vectors and numbers alone.
    """
    paths, leaves = named_leaves(params)
    matched = all_matching("leaves", paths, patterns)
    if all(jnp.ndim(leaves[i]) < 2 for i in matched):
        names = ", ".join(paths[i] for i in sorted(matched)[:_NAMED])
        raise InvalidInput(f"leaves: {names} are no matrices, and LowRank has factors of matrices alone")
    has = [i in matched and _is_larger(leaf.shape, rank) for i, leaf in enumerate(leaves)]
    return jax.tree.structure(params).unflatten(
        [x if here else None for x, here in zip(leaves, has, strict=True)]
    )


def _is_larger(shape: tuple[int, ...], rank: int) -> bool:
    """Whether a leaf is a matrix with more entries than its factors."""
    rows, columns = shape[0] if shape else 0, math.prod(shape[1:])
    return len(shape) > 1 and rank * (rows + columns) < rows * columns


def random_factors(chosen: Params, rank: int, *numbers: Any) -> Params:
    """First factors of the chosen leaves: B = 0, and A uniform in [-1, 1] / sqrt(columns), as in LoRA's public code.

    Args:
        chosen: the chosen leaves, or their shapes.
        rank: of the factors.
        numbers: of a round and a client, say: other numbers, other draws.
    """
    leaves, structure = jax.tree.flatten(chosen)
    key = jax.random.key(_SEED)
    for number in numbers:
        key = jax.random.fold_in(key, jnp.asarray(number, jnp.uint32))
    factors = []
    for i, w in enumerate(leaves):
        rows, columns = w.shape[0], math.prod(w.shape[1:])
        bound = 1 / math.sqrt(columns)
        bits = jax.random.bits(jax.random.fold_in(key, i), (rank, columns), jnp.uint32) >> 8
        a = (2.0**-23 * bits.astype(w.dtype) - 1) * bound  # of the same 24 bits in every type
        factors.append(Factors(jnp.zeros((rows, rank), w.dtype), a.astype(w.dtype)))
    return structure.unflatten(factors)


def at_chosen(function: Callable[..., Any], chosen: Params, tree: Params, *others: Params) -> Params:
    """`function(leaf, part, *parts)` of each chosen leaf, the part of `tree` in its place and those of `others`.

    Where no leaf is chosen the result is the part of `tree` itself.
    """
    return jax.tree.map(
        lambda w, part, *parts: part if w is None else function(w, part, *parts),
        chosen,
        tree,
        *others,
        is_leaf=lambda x: x is None,
    )


def of_chosen(function: Callable[..., Any], chosen: Params, tree: Params) -> Params:
    """`function(leaf, part)` of each chosen leaf and the part of `tree` in its place; None elsewhere."""
    return jax.tree.map(
        lambda w, part: None if w is None else function(w, part), chosen, tree, is_leaf=lambda x: x is None
    )


@dataclass(frozen=True)
class FactorOracle(WrappedOracle):
    """A client's loss as a function of factors.

    Attributes:
        inner: the oracle of the whole model.
        whole: factors -> the model; linear in each factor.
    """

    whole: Callable[[Params], Params]

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        """Loss and gradient of the factors on the minibatch of a local step."""
        return self._back(params, lambda model: self.inner(model, step))

    def loss(self, params: Params, step: Scalar) -> Scalar:
        """Loss alone on the same minibatch."""
        return self.inner.loss(self.whole(params), step)

    def full(self, params: Params) -> tuple[Scalar, Params]:
        """Loss and gradient of the factors on all examples."""
        return self._back(params, self.inner.full)

    def _back(
        self, params: Params, of_model: Callable[[Params], tuple[Scalar, Params]]
    ) -> tuple[Scalar, Params]:
        """The chain rule: from the gradient G of W, s G A' of B and s B' G of A."""
        model, pull = jax.vjp(self.whole, params)
        loss, gradient = of_model(model)
        return loss, pull(gradient)[0]
