"""Metrics that follow from sums over examples: what examples add, their sums, and the columns that these make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_flag
from fedsolve.core.types import Batch, Params
from fedsolve.tasks.leaves import WithFrozen
from fedsolve.tasks.loss_arguments import asked, call

_MOST = 2.0**53
"""Sums up to which examples are counted exactly."""


@dataclass(frozen=True, kw_only=True)
class SumMetric(ABC):
    """A metric of a model's outputs and the targets.

    `weighted`: whether examples count by their weights, the third field of a batch (x, y, weight); else alike.
    `columns`: what the names of its columns have behind the metric's name.
    """

    weighted: bool = False
    columns: ClassVar[tuple[str, ...]] = ("",)
    more_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_flag("weighted", self.weighted)

    @property
    @abstractmethod
    def width(self) -> int:
        """How many sums there are."""

    @abstractmethod
    def each(self, outputs: Array, targets: Array, weights: Array | None = None) -> Array:
        """What is to be known of each example, floats (n, c).

        Of outputs (n, ...), targets (n,) or (n, 1), and weights >= 0, (n,), or None; `InvalidInput` for other shapes.
        """

    @abstractmethod
    def totals(self, each: Array, group: Array, groups: int) -> Array:
        """The sums over the examples of each group, such as a client, floats (groups, width).

        Of what `each` gave, (n, c), and the number of each example's group, (n,).
        """

    @abstractmethod
    def of_sums(self, sums: Array) -> Array:
        """The columns, from sums (width,) over any examples; NaN where nothing counts, as F1 without positives."""

    @abstractmethod
    def counted(self, sums: np.ndarray) -> np.ndarray:
        """Weights of examples that sums stand for, in each of the ways in which the sums count them."""

    def check_sums(self, sums: np.ndarray, examples: int) -> None:
        """Raise `InvalidInput` unless sums are some over at most so many examples."""
        if sums.shape != (self.width,):
            raise InvalidInput(f"{sums.size} sums, not the {self.width} of {self!r}")
        if not np.isfinite(sums).all() or (sums < 0).any():
            wrong = sums[~np.isfinite(sums) | (sums < 0)][0]
            raise InvalidInput(f"a sum of {wrong:.6g}, not a number of at least 0")
        counted = float(np.max(self.counted(sums)))
        if counted > (_MOST if self.weighted else examples):
            raise InvalidInput(f"sums over {counted:.6g} examples, of {examples}")


@dataclass(frozen=True)
class OnModel:
    """A metric of a model's outputs as one of parameters and a batch, as tasks have them."""

    metric: SumMetric  # of outputs and targets
    model: Callable[..., Any]  # (params, inputs) -> outputs

    @property
    def columns(self) -> tuple[str, ...]:
        return self.metric.columns

    @property
    def width(self) -> int:
        return self.metric.width

    @property
    def asks(self) -> frozenset[str]:
        return asked(self.model, "the model") & {"buffers"}

    @property
    def of(self) -> Callable[[Array, Array], Array]:
        # `each` from outputs and targets; an `AttributeError` where weights are due, too
        if self.metric.weighted:
            raise AttributeError("of")
        return self.metric.each

    def each(self, params: Params, batch: Batch, buffers: Any = None) -> Array:
        needed = 3 if self.metric.weighted else 2
        if not isinstance(batch, tuple | list) or len(batch) < needed:
            raise InvalidInput(
                f"{self.metric!r} takes examples ({', '.join(('x', 'y', 'weight')[:needed])}): give a client's arrays "
                "as such a tuple"
            )
        outputs = call(self.model, params, batch[0], buffers=buffers)[0]
        return self.metric.each(outputs, batch[1], batch[2] if self.metric.weighted else None)

    def totals(self, each: Array, group: Array, groups: int) -> Array:
        return self.metric.totals(each, group, groups)

    def of_sums(self, sums: Array) -> Array:
        return self.metric.of_sums(sums)

    def __call__(self, params: Params, batch: Batch, buffers: Any = None) -> Array:
        each = self.each(params, batch, buffers)
        return self.of_sums(self.totals(each, jnp.zeros(len(each), jnp.int32), 1)[0])[0]


@dataclass(frozen=True)
class _OfAssembled:
    """A function of assembled parameters as one of those that train."""

    outputs: Callable[..., Any]  # (assembled parameters, inputs) -> outputs
    assemble: Callable[[Params], Params]  # trained parameters -> the assembled ones

    @property
    def asks(self) -> frozenset[str]:
        return asked(self.outputs, "the model")

    def __call__(self, params: Params, x: Any, **given: Any) -> Any:
        trained = params.trained if isinstance(params, WithFrozen) else params
        return self.outputs(self.assemble(trained), x, **given)


def outputs_of(outputs: Callable[..., Any] | None, assemble: Callable[[Params], Params]) -> Any:
    # what `Task.outputs` says, as losses and metrics call it
    return outputs and _OfAssembled(outputs, assemble)


def on_model(metrics: Any, model: Callable[..., Any] | None, remedy: str) -> Any:
    # metrics of `fs.metrics` are put on a model; `remedy` says what to give where there is none
    if not isinstance(metrics, Mapping) or not any(isinstance(m, SumMetric) for m in metrics.values()):
        return metrics
    if model is None:
        name = next(name for name, m in metrics.items() if isinstance(m, SumMetric))
        raise InvalidInput(f"metric {name} = {metrics[name]!r} takes the model's outputs: give {remedy}")
    return {name: OnModel(m, model) if isinstance(m, SumMetric) else m for name, m in metrics.items()}


def refuse_weighted(metrics: Mapping[str, Any]) -> None:
    # a batch of (inputs, targets) has no weights
    for name, metric in metrics.items():
        if isinstance(metric, SumMetric) and metric.weighted:
            raise InvalidInput(
                f"metric {name} = {metric!r} takes weights of examples, and a batch is (inputs, targets): leave "
                "weighted out"
            )


def scores_of(outputs: Array, targets: Array, what: str) -> tuple[Array, Array]:
    # the score for the second of two classes, (n,), and whether that is the example's class
    if outputs.ndim == 2 and outputs.shape[1] == 2:
        score = outputs[:, 1] - outputs[:, 0]
    elif outputs.size == outputs.shape[0]:
        score = outputs.reshape(-1)
    else:
        raise InvalidInput(
            f"{what} is a metric of two classes: the model has outputs of shape {outputs.shape}, not (n,), (n, 1) or "
            "(n, 2)"
        )
    return score, labels_of(outputs, targets, what) > 0


def labels_of(outputs: Array, targets: Array, what: str) -> Array:
    # shape (n,)
    if targets.size != outputs.shape[0]:
        raise InvalidInput(
            f"{what} takes one label an example: targets have shape {targets.shape} for {outputs.shape[0]} examples"
        )
    return targets.reshape(-1)


def columns_of_each(score: Array, other: Array, weights: Array | None) -> Array:
    # (n, 3); the last is the example's weight
    dtype = score.dtype if jnp.issubdtype(score.dtype, jnp.floating) else jnp.zeros(()).dtype
    weight = jnp.ones(len(score), dtype) if weights is None else weights.reshape(-1)
    return jnp.stack([score.astype(dtype), other.astype(dtype), weight.astype(dtype)], axis=1)
