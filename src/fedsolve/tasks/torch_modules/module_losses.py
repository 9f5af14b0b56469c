"""Losses and metrics of a PyTorch module that runs as a JAX function (`fedsolve.pytorch`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks.losses.losses import OfOutputs
from fedsolve.tasks.task import Examples

if TYPE_CHECKING:
    from fedsolve.pytorch.translation.model import Model, OnRows

Values = Mapping[str, Any]


class OfTranslated(OfOutputs):
    """Something of a translated module's outputs and the targets, by example."""

    model: Model  # pyright: ignore[reportIncompatibleMethodOverride]

    def each(self, params: Values, batch: Examples, key: Array | None = None) -> Array:
        """That of each example, shape (n, ...)."""
        if key is None and self.model.mixing_evaluated:
            return alone(self.model, self.of, params, {}, batch)
        return super().each(params, batch, key)


@dataclass(frozen=True)
class OfModule(OfTranslated):
    """A mean over examples of something of a module's outputs and the targets.

    Attributes:
        model: the module.
        rows: (outputs, targets) -> the value of each example.
    """

    model: Model  # pyright: ignore[reportIncompatibleMethodOverride]
    rows: OnRows

    @property
    def asks(self) -> frozenset[str]:
        """The arguments that it asks for: weights where padding would count."""
        return frozenset((*self.model.asks, *(("weights",) if self.model.mixing else ())))

    def of(self, outputs: Any, y: Any) -> Array:
        """The value of each example, shape (n,), from outputs and targets."""
        return self.rows(outputs, y)

    def __call__(
        self, params: Values, batch: Examples, key: Array | None = None, weights: Array | None = None
    ) -> Array:
        """The mean over the batch, weighted where weights are given, shape ()."""
        outputs, _ = self.model.apply(params, {}, batch.x, key, weights)
        each = self.rows(outputs, batch.y)
        return jnp.mean(each) if weights is None else _weighted(each, weights)


@dataclass(frozen=True)
class LossWithBuffers:
    """The loss of a module that keeps running statistics, with their new values.

    Attributes:
        model, rows: as in `OfModule`.
    """

    model: Model
    rows: OnRows
    asks = ("key", "weights", "buffers")

    def __call__(
        self,
        params: Values,
        batch: Examples,
        key: Array | None = None,
        weights: Array | None = None,
        buffers: Values | None = None,
    ) -> tuple[Array, Values]:
        """The weighted mean over the batch, shape (), or the values of its examples, (n,), without weights."""
        if buffers is None:
            raise InvalidInput("a module with running statistics was evaluated without its buffers")
        if key is None and weights is None and self.model.mixing_evaluated:
            return alone(self.model, self.rows, params, buffers, batch), buffers
        outputs, after = self.model.apply(params, buffers, batch.x, key, weights)
        each = self.rows(outputs, batch.y)
        return (each if weights is None else _weighted(each, weights)), after


@dataclass(frozen=True)
class MetricWithBuffers:
    """A metric of a module that keeps running statistics.

    Attributes:
        model, rows: as in `OfModule`.
    """

    model: Model
    rows: OnRows
    asks = ("buffers",)

    def __call__(self, params: Values, batch: Examples, buffers: Values | None = None) -> Array:
        """The value of each example in evaluation mode, shape (n,)."""
        own = buffers or self.model.buffers
        if self.model.mixing_evaluated:
            return alone(self.model, self.rows, params, own, batch)
        outputs, _ = self.model.apply(params, own, batch.x, None)
        return self.rows(outputs, batch.y)


def _weighted(each: Array, weights: Array) -> Array:
    own = weights.astype(each.dtype)
    return jnp.sum(jnp.where(own > 0, each, 0)) / jnp.maximum(jnp.sum(own), 1)


def alone(
    model: Model,
    rows: Callable[[Any, Any], Array],
    params: Values,
    buffers: Values,
    batch: Examples,
) -> Array:
    """The value of each example in evaluation mode in a batch of its own, of a module that mixes examples then too.

    Args:
        model: the module.
        rows: (outputs, targets) -> the value of each example.
        params, buffers: by name.
        batch: inputs and targets.
    """

    def one(example: Examples) -> Array:
        x, y = jax.tree.map(lambda a: a[None], tuple(example))
        return rows(model.apply(params, buffers, x, None)[0], y)[0]

    return jax.vmap(one)(batch)
