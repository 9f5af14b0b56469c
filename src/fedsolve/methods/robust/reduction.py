"""The interface of a robust reduction, which combines a cohort's messages although some clients may be malicious."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fedsolve.core.types import Scalar, is_module, reductions, replace
from fedsolve.methods.robust.selection import medians


class Reduction(ABC):
    """Base class of robust reductions, which combine a cohort's messages into one.

    Concrete classes are modules: values that fix no shape are leaves.

    Attributes:
        uses_weights: whether clients count by the method's weights, or all alike.
        condition: in words, what its guarantee asks of the number n of clients whose messages are used.
        fewest: the least n of which that is true; `Robust` leaves the model as it is in a round with fewer.
    """

    uses_weights: ClassVar[bool] = False
    condition: ClassVar[str] = "n >= 1"

    @property
    def fewest(self) -> Scalar:
        """The smallest number of messages that the reduction accepts; 1 by default."""
        return 1

    def __call__(self, messages: Any, weight: Array, used: Array) -> Any:
        """The reduced message; zeros if no message is used.

        Args:
            messages: leaves of shape (clients, ...); rows that are not used may hold anything, NaN included.
            weight: of each client, shape (clients,).
            used: booleans of shape (clients,).

        Returns:
            One message, leaves of shape (...).
        """
        clean = jax.tree.map(lambda x: jnp.where(column(used, x), x, 0), messages)
        reduced_message = self.reduce(clean, jnp.where(used, weight, 0), used)
        some = jnp.any(used)
        return jax.tree.map(lambda x, m: jnp.where(some, x, 0).astype(m.dtype), reduced_message, messages)

    @abstractmethod
    def reduce(self, messages: Any, weight: Array, used: Array) -> Any:
        """Reduce messages in which unused rows are zero and have weight 0; any value if no row is used.

        Args:
            messages: leaves of shape (clients, ...).
            weight: of each client, shape (clients,), 0 where it is not used.
            used: booleans of shape (clients,).

        Returns:
            One message, leaves of shape (...).
        """


class OfVectors(Reduction):
    """A reduction that weighs clients by the vector they send, and combines these vectors.

    The vector is the client update, the field `delta`, all its leaves as one; of a message without one it is
    all that is reduced by a mean. Everything else in the message (losses, norms, steps) is reduced by its
    median, whatever its field says: a client whose vector passes could otherwise lie in a scalar that a
    server optimiser steps by.
    """

    @abstractmethod
    def combine(
        self, vectors: Float[Array, "clients d"], weight: Array, used: Bool[Array, " clients"]
    ) -> Float[Array, " d"]:
        """One vector out of the clients'; rows that are not used are zeros and weigh nothing."""

    def reduce(self, messages: Any, weight: Array, used: Array) -> Any:
        """Vectors combined, medians of the rest."""
        leaves, structure = jax.tree.flatten(messages)
        marks = jax.tree.leaves(vector_of(messages))
        own = [x for x, mark in zip(leaves, marks, strict=True) if mark]
        parts = iter(split(self.combine(joined(own), weight, used), own))
        leaves_reduced = [
            next(parts) if mark else middle(x, used) for x, mark in zip(leaves, marks, strict=True)
        ]
        return structure.unflatten(leaves_reduced)


def joined(leaves: Sequence[Array]) -> Float[Array, "clients d"]:
    """Leaves of shape (clients, ...) as one vector a client."""
    return jnp.concatenate([x.reshape(len(x), -1) for x in leaves], axis=1)


def split(vector: Float[Array, " d"], leaves: Sequence[Array]) -> list[Array]:
    """A vector as leaves of these shapes without their first axis: what `joined` has put together."""
    ends = np.cumsum([x[0].size for x in leaves])[:-1]
    parts = jnp.split(vector, ends)
    return [part.reshape(x.shape[1:]) for part, x in zip(parts, leaves, strict=True)]


def vector_of(message: Any) -> Any:
    """Which leaves of a message are its vector, truths in a pytree of the same structure: see `OfVectors`."""
    marked, has_delta = _deltas(message)
    if has_delta:
        return marked
    return jax.tree.map(lambda by: by != "max", reductions(message))


def _deltas(message: Any) -> tuple[Any, bool]:
    """True at the leaves of fields called `delta`, at any depth, and whether there are any."""
    if not is_module(message):
        return jax.tree.map(lambda _: False, message), False
    parts = {}
    for f in dataclasses.fields(message):
        value = getattr(message, f.name)
        if f.name == "delta":
            parts[f.name] = (jax.tree.map(lambda _: True, value), True)
        elif not f.metadata.get("static"):
            parts[f.name] = _deltas(value)
    marked = replace(message, **{name: marks for name, (marks, _) in parts.items()})
    return marked, any(has_delta for _, has_delta in parts.values())


def middle(x: Array, used: Array) -> Array:
    """The median over the first axis of the rows that are used, the mean of the middle two of an even number."""
    return medians(jnp.where(column(used, x), x, jnp.inf), jnp.maximum(jnp.sum(used), 1))


def first(count: Scalar, score: Array, ties: Array, used: Array) -> Array:
    """Booleans (clients,): the so many rows used of the smallest scores, of equal ones those of smaller `ties`."""
    finite = jnp.minimum(score, jnp.finfo(score.dtype).max)
    order = jnp.lexsort((ties, jnp.where(used, finite, jnp.inf)))
    return (jnp.argsort(order) < count) & used


def column(used: Array, like: Array) -> Array:
    """Who is used, shape (clients,), in a shape that broadcasts against a leaf of shape (clients, ...)."""
    return used.reshape(-1, *(1,) * (like.ndim - 1))
