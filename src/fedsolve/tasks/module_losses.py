"""Losses and metrics of a PyTorch module that runs as a JAX function (`fedsolve.pytorch`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.errors import InvalidInput
from fedsolve.tasks.losses import OfOutputs
from fedsolve.tasks.task import Examples

if TYPE_CHECKING:
    from fedsolve.pytorch.model import Model, OnRows

Values = Mapping[str, Any]


@dataclass(frozen=True)
class OfModule(OfOutputs):
    """A mean over examples of something of a module's outputs and the targets.

    Attributes:
        model: the module.
        rows: (outputs, targets) -> the value of each example.
    """

    model: Model  # pyright: ignore[reportIncompatibleMethodOverride]
    rows: OnRows

    def of(self, outputs: Any, y: Any) -> Array:
        """The value of each example, shape (n,), from outputs and targets."""
        return self.rows(outputs, y)


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
        outputs, after = self.model.apply(params, buffers, batch.x, key, weights)
        each = self.rows(outputs, batch.y)
        if weights is None:
            return each, after
        own = weights.astype(each.dtype)
        return jnp.sum(jnp.where(own > 0, each, 0)) / jnp.maximum(jnp.sum(own), 1), after


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
        outputs, _ = self.model.apply(params, buffers or self.model.buffers, batch.x, None)
        return self.rows(outputs, batch.y)
