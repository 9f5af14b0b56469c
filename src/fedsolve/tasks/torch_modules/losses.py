"""Losses, metrics and predictions of a PyTorch module: means, sums over examples, or of whole sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks.leaves import Merged
from fedsolve.tasks.loss_arguments import asked
from fedsolve.tasks.losses.losses import OfOutputs
from fedsolve.tasks.losses.weights import Whole, of_batch
from fedsolve.tasks.task import Examples

if TYPE_CHECKING:
    from fedsolve.pytorch.callback import HostLoss, Outputs
    from fedsolve.pytorch.translation.batch_sums import OnSums
    from fedsolve.pytorch.translation.model import Model, OnRows

Values = Mapping[str, Any]


class OfTranslated(OfOutputs):
    """Something of a translated module's outputs and the targets, by example."""

    model: Model  # pyright: ignore[reportIncompatibleMethodOverride]

    def each(self, params: Values, batch: Examples, key: Array | None = None) -> Array:
        if key is None and self.model.mixing_evaluated:
            return one_by_one(self.model, self.of, params, {}, batch)
        return super().each(params, batch, key)


@dataclass(frozen=True)
class OfModule(OfTranslated):
    """A mean over examples of something of a module's outputs and the targets."""

    # the module
    model: Model  # pyright: ignore[reportIncompatibleMethodOverride]
    rows: OnRows  # (outputs, targets) -> the value of each example

    @property
    def asks(self) -> frozenset[str]:
        # weights where padding would count
        return frozenset((*self.model.asks, *(("weights",) if self.model.mixing else ())))

    def of(self, outputs: Any, y: Any) -> Array:
        return self.rows(outputs, y)

    def __call__(
        self, params: Values, batch: Examples, key: Array | None = None, weights: Array | None = None
    ) -> Array:
        outputs, _ = self.model.apply(params, {}, batch.x, key, weights)
        each = self.rows(outputs, batch.y)
        return jnp.mean(each) if weights is None else _weighted(each, weights)


@dataclass(frozen=True)
class OfBatch:
    """The loss of a module of a batch whose examples depend on one another."""

    model: Model  # model, rows: as in `OfModule`
    rows: OnRows

    @property
    def asks(self) -> tuple[str, ...]:
        return self.model.asks

    def each(self, params: Values, batch: Examples, key: Array | None = None) -> Array:
        return jnp.full(len(jax.tree.leaves(batch)[0]), self(params, batch, key))

    def __call__(self, params: Values, batch: Examples, key: Array | None = None) -> Array:
        return self.rows.of_batch(self.model.apply(params, {}, batch.x, key)[0], batch.y)


@dataclass(frozen=True)
class LossWithBuffers:
    """The loss of a module that keeps running statistics, with their new values."""

    model: Model  # model, rows: as in `OfModule`
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
        # the weighted mean, shape (), or without weights the values of the examples, (n,)
        if buffers is None:
            raise InvalidInput("a module with running statistics was evaluated without its buffers")
        if key is None and weights is None and self.model.mixing_evaluated:
            return one_by_one(self.model, self.rows, params, buffers, batch), buffers
        outputs, after = self.model.apply(params, buffers, batch.x, key, weights)
        each = self.rows(outputs, batch.y)
        return (each if weights is None else _weighted(each, weights)), after


@dataclass(frozen=True)
class MetricWithBuffers:
    """A metric of a module that keeps running statistics."""

    model: Model  # model, rows: as in `OfModule`
    rows: OnRows
    asks = ("buffers",)

    def __call__(self, params: Values, batch: Examples, buffers: Values | None = None) -> Array:
        # shape (n,), in evaluation mode
        own = buffers or self.model.buffers
        if self.model.mixing_evaluated:
            return one_by_one(self.model, self.rows, params, own, batch)
        outputs, _ = self.model.apply(params, own, batch.x, None)
        return self.rows(outputs, batch.y)


def _weighted(each: Array, weights: Array) -> Array:
    own = weights.astype(each.dtype)
    return jnp.sum(jnp.where(own > 0, each, 0)) / jnp.maximum(jnp.sum(own), 1)


def one_by_one(
    model: Model, rows: Callable[[Any, Any], Array], params: Values, buffers: Values, batch: Examples
) -> Array:
    # each example in a batch of its own, in evaluation mode, of a module that mixes examples then too

    def one(example: Examples) -> Array:
        x, y = jax.tree.map(lambda a: a[None], tuple(example))
        return rows(model.apply(params, buffers, x, None)[0], y)[0]

    return jax.vmap(one)(batch)


# Losses and metrics of a PyTorch module that follow from sums over examples, or are of whole sets.


class _OfSums:
    """What follows from the sums of `sums` (see `fedsolve.tasks.losses.weights`)."""

    sums: OnSums

    def of_sums(self, sums: Array) -> Array:
        return self.sums.of_sums(sums)

    @property
    def moving(self) -> int | None:
        return self.sums.moving

    @property
    def size(self) -> Callable[[Array], Array] | None:
        # how much a set of examples counts for in an average of several; None where none is right
        return self.sums.size


@dataclass(frozen=True)
class SumsOfModule(_OfSums, OfTranslated):
    """A loss or metric of a translated module without buffers."""

    # the module
    model: Model  # pyright: ignore[reportIncompatibleMethodOverride]
    sums: OnSums  # (outputs, targets) -> what each example adds

    @property
    def asks(self) -> frozenset[str]:
        return super().asks | {"weights"}

    def of(self, outputs: Any, y: Any) -> Array:
        return self.sums(outputs, y)

    def __call__(
        self, params: Values, batch: Examples, key: Array | None = None, weights: Array | None = None
    ) -> Array:
        outputs, _ = self.model.apply(params, {}, batch.x, key, weights)
        return of_batch(self, self.sums(outputs, batch.y), weights)


@dataclass(frozen=True)
class SumsWithBuffers(_OfSums):
    """A loss or metric of a translated module that keeps running statistics."""

    model: Model  # model, sums: as in `SumsOfModule`
    sums: OnSums
    asks = ("key", "weights", "buffers")

    def each(
        self, params: Values, batch: Examples, key: Array | None = None, buffers: Values | None = None
    ) -> Array:
        own = buffers or self.model.buffers
        if key is None and self.model.mixing_evaluated:
            return one_by_one(self.model, self.sums, params, own, batch)
        return self.sums(self.model.apply(params, own, batch.x, key)[0], batch.y)

    def __call__(
        self,
        params: Values,
        batch: Examples,
        key: Array | None = None,
        weights: Array | None = None,
        buffers: Values | None = None,
    ) -> tuple[Array, Values]:
        if buffers is None:
            raise InvalidInput("a module with running statistics was evaluated without its buffers")
        outputs, after = self.model.apply(params, buffers, batch.x, key, weights)
        return of_batch(self, self.sums(outputs, batch.y), weights), after


def is_mean(function: Any) -> bool:
    """Whether a loss or metric is one of a translated module, whose value of a batch is made of its examples' own."""
    # what each example gives was compared with PyTorch's mean when the task was made
    while isinstance(function, Merged):
        function = function.function
    kinds = (OfModule, LossWithBuffers, MetricWithBuffers, SumsOfModule, SumsWithBuffers)
    return isinstance(function, kinds) and not function.model.mixing_evaluated


@dataclass(frozen=True)
class SumsBehind(_OfSums):
    """A metric of a module that stays in PyTorch."""

    outputs: Outputs  # (params, batch, buffers) -> the module's outputs in evaluation mode
    sums: OnSums  # as in `SumsOfModule`

    @property
    def asks(self) -> tuple[str, ...]:
        return (*self.outputs.asks, "weights")

    def each(self, params: Values, batch: Examples, buffers: Values | None = None) -> Array:
        return self.sums(self.outputs(params, batch, buffers), batch.y)

    def __call__(
        self, params: Values, batch: Examples, weights: Array | None = None, buffers: Values | None = None
    ) -> Array:
        return of_batch(self, self.each(params, batch, buffers), weights)


@dataclass(frozen=True, eq=False)
class LossBehind(_OfSums):
    """The loss of a module that stays in PyTorch: in training PyTorch's own on the examples that are there."""

    values: SumsBehind  # the examples' own, in evaluation
    # (params, batch, key, weights, buffers) -> the value in PyTorch, with its gradient; and new buffers
    loss: HostLoss

    @property
    def sums(self) -> OnSums:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.values.sums

    @property
    def asks(self) -> tuple[str, ...]:
        return self.loss.asks

    def each(self, params: Values, batch: Examples, buffers: Values | None = None) -> Array:
        return self.values.each(params, batch, buffers)

    def __call__(self, params: Values, batch: Examples, **given: Any) -> Any:
        return self.loss(params, batch, **given)


def why_in_one_piece(loss: Any) -> str:
    """Why the loss of a batch does not follow from those of its parts; "" where it does."""
    function = getattr(loss, "function", loss)  # of `Merged`
    if "buffers" in asked(loss):
        return "the loss keeps buffers, such as running statistics"
    if getattr(getattr(function, "model", None), "mixing", False) or hasattr(function, "rows_together"):
        return "an example's loss depends on the others of its batch"
    in_pytorch = isinstance(function, LossBehind) or hasattr(function, "host")
    return "the module runs in PyTorch" if in_pytorch else ""


@dataclass(frozen=True)
class ModuleOutputs:
    """(params, inputs) -> a module's outputs in evaluation mode, an array with a row for each example."""

    module: Model | Outputs  # the module, translated, or behind the compiled program

    @property
    def asks(self) -> tuple[str, ...]:
        has_some = self.module.buffers if hasattr(self.module, "apply") else self.module.asks  # pyright: ignore
        return ("buffers",) if has_some else ()

    def __call__(self, params: Any, x: Any, buffers: Any = None) -> Any:
        if not hasattr(self.module, "apply"):
            no_targets = jnp.zeros(len(jax.tree.leaves(x)[0]), jnp.int32)
            outputs = self.module(params, (x, no_targets), buffers)  # pyright: ignore
        elif self.module.mixing_evaluated:  # pyright: ignore[reportAttributeAccessIssue]
            own, rows = buffers or self.module.buffers, lambda outputs, _: outputs  # pyright: ignore
            outputs = one_by_one(self.module, rows, params, own, Examples(x, ()))  # pyright: ignore
        else:
            outputs = self.module.apply(params, buffers or self.module.buffers, x, None)[0]  # pyright: ignore
        if isinstance(outputs, tuple):
            raise InvalidInput(
                f"a metric of fs.metrics takes one output of a module, which has {len(outputs)}: give the metric as a "
                "function of outputs and targets"
            )
        return outputs


@dataclass(frozen=True)
class Gathered:
    """A module's outputs and the targets, in evaluation mode, each with a row for each example."""

    module: Model | Outputs  # the module, translated, or behind the compiled program
    asks = ("buffers",)

    def __call__(self, params: Any, batch: Any, buffers: Any = None) -> tuple[tuple[Any, ...], Any]:
        if hasattr(self.module, "apply"):
            outputs = self.module.apply(params, buffers or self.module.buffers, batch[0], None)[0]  # pyright: ignore
        else:
            outputs = self.module(params, batch, buffers)  # pyright: ignore[reportArgumentType]
        flat = outputs if isinstance(outputs, tuple) else (outputs,)
        return (*flat, *jax.tree.leaves(batch[1])), buffers


@dataclass(frozen=True)
class Score:
    """A metric of PyTorch on NumPy arrays."""

    function: Callable[[Any, Any], Any]  # (outputs, targets) -> scalar tensor
    outputs: Any  # outputs, targets: how flat arrays are put together to what it takes
    targets: Any
    number: int  # of outputs

    def __call__(self, *arrays: np.ndarray) -> float:
        import torch

        from fedsolve.pytorch.translation.arrays import to_tensor

        tensors = [to_tensor(a) for a in arrays]
        with torch.no_grad():
            given = self.outputs(tensors[: self.number]), self.targets(tensors[self.number :])
            return float(self.function(*given).double().mean())


def dataset_metric(
    module: Model | Outputs,
    function: Callable[[Any, Any], Any],
    outputs: Any,
    targets: Any,
    wrap: Callable[[Any], Any],
) -> Whole:
    # `wrap` puts a function of the whole model in place of one of the leaves that train; outputs and targets
    # are of an example batch, as tensors
    from torch.utils import _pytree as pytree

    leaves, form = pytree.tree_flatten(outputs)
    score = Score(
        function, lambda t: pytree.tree_unflatten(t, form), jax.tree.structure(targets).unflatten, len(leaves)
    )
    return Whole(wrap(Gathered(module)), score)


def likeliest(outputs: Any) -> np.ndarray:
    # (n, classes, ...) -> (n, ...), the first of equal ones
    return np.argmax(outputs, axis=1).astype(np.int32)
