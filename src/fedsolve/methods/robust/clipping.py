"""Centred clipping: a centre plus the mean of the vectors' clipped differences from it."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core.errors import check_integer, check_range
from fedsolve.core.types import Scalar, module, static
from fedsolve.methods.robust.reduction import OfVectors, middle
from fedsolve.methods.robust.vectors import combination, lengths


@module
class CentredClipping(OfVectors):
    """Centred clipping (Karimireddy, He and Jaggi 2021, Section 4): a centre moved by the mean of clipped differences.

        v <- v + sum_i p_i (D_i - v) min(1, radius / |D_i - v|)

    Weights are used, as the method says. The paper starts v at the last round's reduction; a reduction here keeps
    nothing between rounds, so v starts at the coordinate-wise median. From zero, one iteration would be
    `NormClipping`. The paper's guarantee also asks for momentum on the clients, which is the method's business,
    and that at most a tenth attack. What holds here: a client moves v by at most p_i radius an iteration, from a
    median that fewer than half cannot carry off; so n >= 3 clients are needed.

    Attributes:
        radius: the largest length of a difference, > 0, in units of the client update; None is the cohort's median
            |D_i - v| of each iteration, which needs no tuning.
        iterations: at least 1.

    Raises:
        InvalidInput: a number out of its range.
    """

    uses_weights: ClassVar[bool] = True
    condition: ClassVar[str] = "n >= 3"
    radius: Scalar | None = None
    iterations: int = static(default=3)

    def __post_init__(self) -> None:
        check_range("radius", self.radius, above=0, optional=True)
        check_integer("iterations", self.iterations, 1, bits=31)

    @property
    def fewest(self) -> Scalar:
        """At least 3 messages: the median of two is their mean."""
        return 3

    def combine(self, vectors: Array, weight: Array, used: Array) -> Array:
        """The centre after the last iteration."""

        def closer(_: Any, v: Array) -> Array:
            length = lengths(vectors - v)
            radius = middle(length, used) if self.radius is None else self.radius
            factor = jnp.minimum(1, radius / jnp.where(length > 0, length, 1))
            step = jnp.where(used & (length > 0), factor, 1).astype(v.dtype)
            return v + combination(weight, step[:, None] * (vectors - v))

        start = jnp.where(jnp.any(used), middle(vectors, used), 0)
        return lax.fori_loop(0, self.iterations, closer, start)
