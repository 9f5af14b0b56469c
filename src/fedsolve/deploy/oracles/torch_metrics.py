"""What a metric of PyTorch is of a client's examples: means of batches, sums over them, or the value of all at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor

from fedsolve.deploy.messages.message import Sums
from fedsolve.pytorch.callback.batch_losses import mean_of, value_or_zero
from fedsolve.pytorch.comparison.judged import Judged, failure, judged
from fedsolve.pytorch.translation.on_sums import wide
from fedsolve.tasks.metrics.sum_metric import SumMetric

MOST_ROWS = 31  # on which a metric is tested

Function = Callable[[Any, Any], Tensor]


class Measuring:
    """The value of one metric on some examples, batch after batch; `kind` is what it is."""

    def __init__(self, name: str, function: Function, kind: Judged) -> None:
        self._name, self._function, self._kind = name, function, kind
        # a function that cannot be exported may be a mean of some examples and none of others
        self._by_batch = kind.sums is None and not kind.no_mean and kind.rows is not None
        self._examples, self._total = 0, 0.0
        self._sums: Any = 0.0
        self._batches: list[Any] = []

    def add(self, outputs: Any, targets: Any, examples: int) -> None:
        """Take in a batch."""
        self._examples += examples
        if self._by_batch:
            self._total += examples * float(self._value(outputs, targets))
        elif self._kind.sums is not None:
            with jax.enable_x64(True):
                self._sums = self._sums + np.asarray(self._kind.sums(*wide(outputs, targets))).sum(0)
        else:
            self._batches.append(pytree.tree_map_only(Tensor, lambda t: t.cpu(), (outputs, targets)))

    def result(self) -> tuple[float, float]:
        """The value of all, and what it is a mean over (see `Measured.counts`)."""
        if self._by_batch:
            return self._total / self._examples, self._examples
        if self._kind.sums is None:
            value = float(self._value(*joined(self._batches)))
            return value, self._examples if not self._kind.no_mean else _count(value, float("nan"))
        with jax.enable_x64(True):
            sums, size = jnp.asarray(self._sums), self._kind.sums.size
            value = float(self._kind.sums.of_sums(sums))
            return value, _count(value, float("nan") if size is None else float(size(sums)))

    def _value(self, outputs: Any, targets: Any) -> Tensor:
        try:
            return mean_of(self._function(outputs, targets))
        except Exception as error:  # whatever the user's code raises
            raise failure(self._name, error, outputs, targets) from error


class Summing:
    """The sums of one metric of `fs.metrics` over some examples, batch after batch."""

    def __init__(self, metric: SumMetric) -> None:
        self._metric, self._each = metric, []

    def add(self, outputs: Any, targets: Any, examples: int) -> None:
        """Take in a batch."""
        with jax.enable_x64(True):
            flat, y = wide(outputs, targets)
            self._each.append(self._metric.each(jnp.asarray(flat), jnp.asarray(y)))

    def result(self) -> Sums:
        """The sums over all."""
        with jax.enable_x64(True):
            each = jnp.concatenate(self._each)
            sums = self._metric.totals(each, jnp.zeros(len(each), jnp.int32), 1)[0]
            return Sums(self._metric, np.asarray(sums))


def kind_of(name: str, function: Function, outputs: Any, targets: Any, dtype: torch.dtype) -> Judged:
    """What a metric is, by a few examples.

    Raises:
        InvalidInput: it fails, or gives no numbers.
    """
    rows = next(len(t) for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.ndim)
    if rows < 2:  # one example is too few to tell
        return Judged(function)
    few = lambda t: t[:MOST_ROWS].cpu() if t.ndim and len(t) == rows else t.cpu()  # noqa: E731
    some = pytree.tree_map_only(Tensor, few, (outputs, targets))
    return judged(name, function, some[0], some[1], dtype, only_means=False)


def joined(batches: list[Any]) -> Any:
    """Outputs and targets of several batches as those of one; what has no rows as in the first."""
    trees = [pytree.tree_flatten(batch) for batch in batches]
    columns = zip(*(leaves for leaves, _ in trees), strict=True)
    whole = [torch.cat(c) if isinstance(c[0], Tensor) and c[0].ndim else c[0] for c in columns]
    return pytree.tree_unflatten(whole, trees[0][1])


def loss_of_all(function: Function, batches: list[Any]) -> tuple[Tensor, list[Any]]:
    """The loss of all examples together, and its gradient by the outputs of each batch, flat."""
    slopes = lambda t: t.detach().requires_grad_() if t.is_floating_point() else t  # noqa: E731
    batches = [(pytree.tree_map_only(Tensor, slopes, outputs), targets) for outputs, targets in batches]
    value = mean_of(value_or_zero(function, *joined(batches)))
    leaves = [
        [t for t in pytree.tree_leaves(o) if isinstance(t, Tensor) and t.requires_grad] for o, _ in batches
    ]
    flat = [t for batch in leaves for t in batch]
    gradients = iter(torch.autograd.grad(value, flat, materialize_grads=True, allow_unused=True))
    return value.detach(), [[next(gradients) for _ in batch] for batch in leaves]


def _count(value: float, size: float) -> float:
    """0 where there is no value."""
    return size if math.isfinite(value) else 0.0
