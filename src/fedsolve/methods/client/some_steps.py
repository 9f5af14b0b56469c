"""Some of a client's local steps: up to a random one that all clients share, or after it."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core.oracle import Oracle, WrappedOracle
from fedsolve.core.types import Params, Scalar


@dataclass(frozen=True)
class SomeSteps(WrappedOracle):
    """The local steps of a client from `first` on, `count` of them, no more than `most`."""

    first: Any
    count: Any
    most: Any
    steps = property(attrgetter("count"))  # pyright: ignore[reportAssignmentType]
    bound = property(attrgetter("most"))  # pyright: ignore[reportAssignmentType]

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        """Loss and gradient on the minibatch of a later step."""
        return self.inner(params, step + self.first)

    def loss(self, params: Params, step: Scalar) -> Scalar:
        """Loss on the minibatch of a later step."""
        return self.inner.loss(params, step + self.first)

    def full(self, params: Params) -> tuple[Scalar, Params]:
        """Loss and gradient on all examples."""
        return self.inner.full(params)


def round_bits(round: Scalar) -> Any:
    """A random whole number below 2^16 that follows from the number of a round alone: all clients have the same."""
    return jax.random.bits(jax.random.fold_in(jax.random.key(0), round), dtype=jnp.uint32) >> 16


def tosses(round: Scalar, p: Scalar) -> Any:
    """The number of coin tosses up to the first success, each of probability p: the same for all clients of a round."""
    uniform = (round_bits(round) + 0.5) / 2**16
    return (jnp.log(uniform) / jnp.log1p(-jnp.asarray(p, uniform.dtype))).astype(jnp.int32) + 1


def split_steps(round: Scalar, oracle: Oracle) -> tuple[SomeSteps, SomeSteps]:
    """The steps of a client up to a random one, and those after it.

    Of K steps, the first part has each of 1 .. K with the same probability. It follows from the number of the round and
    from K alone; clients with other numbers of steps are divided at the same share of theirs. Whole numbers alone: the
    same in every precision.
    """
    bits = round_bits(round)

    def part(steps: Any) -> Any:
        return ((bits * jnp.asarray(steps, jnp.uint32) >> 16) + 1).astype(jnp.int32)

    first, most = part(oracle.steps), part(oracle.bound)
    return SomeSteps(oracle, 0, first, most), SomeSteps(
        oracle, first, oracle.steps - first, oracle.bound - most
    )
