"""The two models of an evaluation: the last iterate, and the mean of the last two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core.types import Params


def middle(last: Params, previous: Params) -> Params:
    """The mean of two iterates, at which metrics with suffix `_averaged` are computed."""
    return jax.tree.map(lambda a, b: (a + (b - a) / 2).astype(a.dtype), last, previous)


def both_iterates(last: Params, previous: Params) -> Params:
    """The last iterate and the middle of the last two, stacked."""
    return jax.tree.map(lambda a, b: jnp.stack([a, b]), last, middle(last, previous))


def of_each(function: Callable[[Params], Any], models: Params) -> Any:
    """The function's results of stacked models; where all are the same, as at the start, of the first alone."""
    first, *_ = leaves = jax.tree.leaves(models)
    same = jnp.stack([jnp.all(a == a[:1]) for a in leaves]).all()
    shapes = jax.eval_shape(function, jax.tree.map(lambda a: a[0], models))
    empty = jax.tree.map(lambda s: jnp.zeros((len(first), *s.shape), s.dtype), shapes)

    def one(i: Array, found: Any) -> Any:
        values = function(jax.tree.map(lambda a: a[i], models))
        return jax.tree.map(lambda of_all, v: of_all.at[i].set(v), found, values)

    found = lax.fori_loop(0, jnp.where(same, 1, len(first)), one, empty)
    return jax.tree.map(lambda v: jnp.where(same, v[:1], v), found)
