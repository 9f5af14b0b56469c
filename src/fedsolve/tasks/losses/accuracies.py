"""What is right of a model's outputs, as a share of 1: hashable callables of (params, batch), each a mean over it."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.data.examples import SparseRows
from fedsolve.tasks.losses.losses import Model, OfOutputs, check_shapes
from fedsolve.tasks.models.models import dense_rows


@dataclass(frozen=True)
class BinaryAccuracy(OfOutputs):
    """Accuracy of two classes: the fraction of examples with label 1 and model(x) > 0, or label 0 and model(x) <= 0.

    Attributes:
        model: (params, x of shape (n, ...)) -> outputs, a model of `fedsolve.tasks` or any hashable function.
    """

    model: Model

    def of(self, outputs: Array, y: Array) -> Array:
        """1 if the margin has the label's sign, otherwise 0."""
        check_shapes(outputs, y)
        return ((outputs > 0) == (y > 0)).astype(outputs.dtype)


@dataclass(frozen=True)
class Accuracy(OfOutputs):
    """Accuracy: the fraction of examples whose largest logit is the label's (of equal logits, the first).

    Attributes:
        model: (params, x of shape (n, ...)) -> outputs, a model of `fedsolve.tasks` or any hashable function.
    """

    model: Model

    def of(self, outputs: Array, y: Array) -> Array:
        """1 if the largest logit is the label's, otherwise 0."""
        return (jnp.argmax(outputs, axis=-1) == y).astype(outputs.dtype)


@dataclass(frozen=True)
class _AmongLargest(OfOutputs):
    """What counts the k largest outputs of each example."""

    model: Model
    k: int = 5

    def __post_init__(self) -> None:
        check_integer("k", self.k, 1)

    def largest(self, outputs: Array, what: str) -> Array:
        """Where the k largest outputs are, (n, k); of equal ones the first count."""
        if self.k > outputs.shape[-1]:
            raise InvalidInput(f"k = {self.k} is more than the {outputs.shape[-1]} {what}")
        return jax.lax.top_k(outputs, self.k)[1]


@dataclass(frozen=True)
class TopK(_AmongLargest):
    """Top-k accuracy: the fraction of examples whose label is among the k largest logits (of equal logits, the first).

    Attributes:
        model: (params, x of shape (n, ...)) -> outputs, a model of `fedsolve.tasks` or any hashable function.
        k: how many logits, from 1 to the classes.

    Raises:
        InvalidInput: a k that is no integer from 1; when it is used, one above the classes.
    """

    def of(self, outputs: Array, y: Array) -> Array:
        """1 if the label is among the k largest logits, otherwise 0."""
        return jnp.any(self.largest(outputs, "classes") == y[:, None], axis=-1).astype(outputs.dtype)


@dataclass(frozen=True)
class RecallAt(_AmongLargest):
    """Recall at k: the mean fraction of an example's tags among the k largest outputs; y is (n, tags), 0 or 1.

    An example counts alike however many tags it has; none to find is all found. (Keras' `Recall(top_k=k)` pools
    the tags of all examples instead.) Of equal outputs the first count. y may be `fs.SparseRows`.

    Attributes:
        model: (params, x of shape (n, ...)) -> outputs, a model of `fedsolve.tasks` or any hashable function.
        k: how many outputs, from 1 to the tags.

    Raises:
        InvalidInput: a k that is no integer from 1; when it is used, one above the tags.
    """

    def of(self, outputs: Array, y: Array) -> Array:
        """The tags among the k largest outputs, divided by all tags, for each example."""
        if isinstance(y, SparseRows):
            y = dense_rows(y, outputs.shape[-1], outputs.dtype)
        check_shapes(outputs, y)
        best = self.largest(outputs, "tags")
        tags = (y > 0).astype(outputs.dtype)
        hits, total = jnp.sum(jnp.take_along_axis(tags, best, axis=-1), axis=-1), jnp.sum(tags, axis=-1)
        return jnp.where(total > 0, hits / jnp.maximum(total, 1), 1)


@dataclass(frozen=True)
class LikeliestSet(OfOutputs):
    """Set accuracy: the fraction of examples whose tags are the most probable of all sets of tags that occur.

    Tags count as independent.

    The outputs are log odds, so the likeliest set has the largest sum of its tags' outputs (of equal ones the
    first). That makes a classifier of tags that are parts of class names.

    Attributes:
        model: (params, x of shape (n, ...)) -> outputs, a model of `fedsolve.tasks` or any hashable function.
        sets: the tags of each set, as numbers.
    """

    model: Model
    sets: tuple[tuple[int, ...], ...]

    def of(self, outputs: Array, y: Array) -> Array:
        """1 if the most probable set is the example's, otherwise 0."""
        check_shapes(outputs, y)
        members = np.zeros((len(self.sets), outputs.shape[-1]), bool)
        for row, tags in zip(members, self.sets, strict=True):
            row[list(tags)] = True
        best = jnp.argmax(members.astype(outputs.dtype) @ outputs.T, axis=0)
        return jnp.all(jnp.asarray(members)[best] == (y > 0), axis=-1).astype(outputs.dtype)
