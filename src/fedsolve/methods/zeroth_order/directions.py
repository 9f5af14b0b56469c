"""Random directions that follow from whole numbers alone, so that a scalar says a step along one of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedsolve.core import trees
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Scalar, Traced
from fedsolve.methods.client.some_steps import SomeSteps

_SEED = 0x5EED  # of directions, which nobody need hide: the same on the server and on every client


def key_of(*numbers: Any) -> Any:
    """The key that follows from whole numbers of 0 .. 2^32 - 1, such as those of a round and a step."""
    key = jax.random.key(_SEED)
    for number in numbers:
        key = jax.random.fold_in(key, jnp.asarray(number, jnp.uint32))
    return key


def gaussian(key: Any, like: Params) -> Params:
    """A direction of independent standard normal numbers, of the shapes and types of a model.

    They follow from the same 23 bits each in every type: those in float32 are `jax.random.normal`'s.
    """
    leaves, structure = jax.tree.flatten(like)
    keys = [jax.random.fold_in(key, i) for i in range(len(leaves))]
    return structure.unflatten(_normal(k, x) for k, x in zip(keys, leaves, strict=True))


def _normal(key: Any, like: Any) -> Any:
    bits = jax.random.bits(key, like.shape, jnp.uint32) >> 9
    uniform = bits.astype(like.dtype) * 2.0**-22 + (2.0**-24 - 1)  # between -1 and 1, never either
    return (math.sqrt(2) * lax.erf_inv(uniform)).astype(like.dtype)


def slope(oracle: Oracle, params: Params, step: Scalar, direction: Params, mu: Scalar) -> Traced:
    """(f(w + mu z) - f(w - mu z)) / (2 mu) on the minibatch of a local step: two losses, shape ()."""
    ahead = oracle.loss(trees.axpy(mu, direction, params), step)
    behind = oracle.loss(trees.axpy(-mu, direction, params), step)
    return jnp.asarray((ahead - behind) / (2 * mu), trees.dtype_of(params))


def walk(params: Params, lengths: Any, key: Callable[[Any], Any]) -> Params:
    """w - sum_j a_j z_j, one direction after another: in this order, the same bits wherever it is computed.

    Args:
        params: w.
        lengths: a_j, shape (n,). A direction of length 0 is not drawn.
        key: j -> the key of z_j.
    """
    moves = lengths != 0
    order = jnp.argsort(~moves, stable=True)

    def one(i: Any, w: Params) -> Params:
        j = order[i]
        return trees.axpy(-lengths[j], gaussian(key(j), w), w)

    return lax.fori_loop(0, moves.sum(), one, params)


def first_steps(oracle: Oracle, most: int) -> Oracle:
    """An oracle whose client takes no more than so many local steps."""
    if isinstance(oracle.steps, int) and oracle.steps <= most:
        return oracle
    return SomeSteps(oracle, 0, jnp.minimum(oracle.steps, most), jnp.minimum(oracle.bound, most))
