"""What a method without a reduction of its own does, as a reduction: something to reduce by before or after another."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core.types import module, reductions
from fedsolve.methods.robust.reduction import Reduction, column


@module
class Mean(Reduction):
    """As each field of the message says: what a method without a reduction of its own does."""

    uses_weights: ClassVar[bool] = True

    def reduce(self, messages: Any, weight: Array, used: Array) -> Any:
        """Means by weight, means of all alike, maxima."""

        def leaf(by: str, x: Array) -> Array:
            if by == "max":
                return jnp.max(jnp.where(column(used, x), x, -jnp.inf), axis=0)
            share = (weight if by == "mean" else used).astype(x.dtype)
            total = jnp.sum(share)
            return jnp.tensordot(
                share / jnp.where(total > 0, total, 1), x, 1, precision=lax.Precision.HIGHEST
            )

        return jax.tree.map(leaf, reductions(messages), messages)
