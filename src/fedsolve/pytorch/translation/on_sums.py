"""A loss or a metric of PyTorch that follows from sums over rows, such as a mean with weights or without padding.

The mean of `nn.CrossEntropyLoss(weight)` is a sum of losses over a sum of weights. The program of such a loss is cut at
its sums and means over the batch: before them stands what each row gives alone, behind them what follows from the sums
of any set of rows. So padding is left out, and large sets are taken a few rows at a time, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.utils._pytree as pytree
from jaxtyping import Array
from torch import Tensor
from torch.fx import Node

from fedsolve.pytorch.translation.arrays import array_of, as_traced, computing
from fedsolve.pytorch.translation.kinds import BEHIND, Kind, is_mean, kinds_of, length_in_one
from fedsolve.pytorch.translation.model import OnRows
from fedsolve.pytorch.translation.translate import Program, evaluated

Values = Mapping[str, Any]

_BEFORE = frozenset({Kind.FREE, Kind.BESIDE, Kind.LENGTH, Kind.ROW, Kind.SUM, Kind.MEAN})
_BEHIND = frozenset({Kind.FREE, Kind.BESIDE, Kind.LENGTH, Kind.POOLED})


class Additive:
    """A program with one output, cut at its sums over the batch.

    Args:
        program: of a loss or a metric: of the outputs and targets of a batch of any size.

    Attributes:
        width: how many numbers a row adds; the first is 1.
        is_mean: whether the value is the mean of the rows' own values, or has rows itself.

    Raises:
        NotTranslatable: a value that does not follow from sums over the rows, and by which operation.
    """

    def __init__(self, program: Program) -> None:
        self._program, self._kinds = program, kinds_of(program.graph, set(program.inputs))
        self._result: Node = program.graph.output_node().args[0][0]  # pyright: ignore
        cuts = (Kind.SUM, Kind.MEAN)
        self._cuts = [
            n
            for n, k in self._kinds.of.items()
            if k in cuts
            or (k is Kind.BESIDE and n.op == "placeholder" and isinstance(n.meta["val"], torch.Tensor))
        ]
        self._sizes = [math.prod(n.meta["val"].shape) for n in self._cuts]
        self.width = 1 + sum(self._sizes)
        self.is_mean = self._kinds.of[self._result] not in BEHIND or is_mean(program.graph, self._kinds)

    def row(self, values: Values, inputs: Sequence[Any], run: Any) -> Array:
        """What one row adds, shape (width,).

        Args:
            values: what the loss holds, such as class weights, by name.
            inputs: flat outputs and targets of a batch of this row alone.
            run: the type of the result.
        """
        env, places = self._program.held(values, run), self._program.inputs
        env |= {n: as_traced(x, n.meta.get("val")) for n, x in zip(places, inputs, strict=True)}
        with computing(self._program.dtype, run):
            for node in self._program.graph.nodes:
                if node.op == "call_function" and self._kinds.of.get(node) in _BEFORE:
                    factor = self._kinds.factors.get(node)
                    if factor is not None and factor.by is not None:  # it is put on the sum
                        env[node] = env[factor.row]
                    else:
                        env[node] = evaluated(node, env)
        parts = [jnp.ones(1, run), *(jnp.ravel(env[n]).astype(run) for n in self._cuts)]
        return jnp.concatenate(parts)

    def value(self, values: Values, totals: Array) -> Array:
        """The value of any rows from the sums of what they add.

        Args:
            values: as for `row`.
            totals: the sums, shape (width,).

        Returns:
            Shape (); NaN where nothing of the rows counts, as the mean over ignored targets alone.
        """
        sums, env = self._sums(totals), self._program.held(values, totals.dtype)
        with computing(self._program.dtype, totals.dtype):
            for node in self._program.graph.nodes:
                kind = self._kinds.of.get(node)
                if node in sums:
                    env[node] = sums[node] * self._kinds.factor(node, env)
                elif node.op == "call_function" and kind in _BEHIND:
                    length = length_in_one(node)
                    if length is None:
                        env[node] = evaluated(node, env)
                    else:
                        env[node] = length if kind is Kind.FREE else length * totals[0]
        return jnp.mean(jnp.asarray(env[self._result]).astype(totals.dtype))

    def _sums(self, totals: Array) -> dict[Node, Any]:
        found, first = {}, 1
        for node, size in zip(self._cuts, self._sizes, strict=True):
            part = totals[first : first + size].reshape(tuple(node.meta["val"].shape))
            found[node] = part if self._kinds.of[node] is Kind.SUM else part / totals[0]
            first += size
        return found


_SETS = 8  # pairs of weighted sets of rows on which averages are compared
_ALIKE = 1e-6  # relative: denominators such as sum + 1e-8 are taken for sums


class NoMean(Exception):
    """A value that changes when every example is given twice, such as a sum."""


class OnSums:
    """A loss or a metric, (outputs, targets) -> tensor, as what each example adds and what the sums make.

    Args:
        rows: the function by rows.
        outputs, targets: an example batch, as tensors.

    Attributes:
        is_mean: whether the value is the mean of the rows' own values: then `rows` is enough.
        size: sums -> how much a set of examples counts for where the values of several sets are averaged; None where
            no such average is the value of all.

    Raises:
        NotTranslatable: a value that does not follow from sums over the rows.
        NoMean: one that changes when every example is given twice.
    """

    def __init__(self, rows: OnRows, outputs: Any, targets: Any) -> None:
        self._rows, self._additive = rows, Additive(rows.program)
        self.digest = "sums", *rows.digest
        self.is_mean, self.size = self._additive.is_mean, None
        if not self.is_mean:
            with jax.enable_x64(True):
                self.size = self._compared(*wide(outputs, targets))

    def __call__(self, outputs: Any, targets: Any) -> Array:
        """What each example adds, shape (n, k)."""
        return self._rows.by_row(self._additive.row, outputs, targets)

    def of_sums(self, sums: Array) -> Array:
        """The value, shape (), from the sums of what examples add, shape (k,); NaN where nothing counts."""
        return self._additive.value(self._rows.held(sums.dtype), sums)

    def _compared(self, outputs: Any, targets: Any) -> Callable[[Array], Array] | None:
        """What `size` is, by the values of weighted sets of rows."""
        each, of_sums = self(outputs, targets), jax.jit(jax.vmap(self.of_sums))
        whole = each.sum(0)
        once, twice = np.asarray(of_sums(jnp.stack([whole, 2 * whole])))
        if np.isfinite(once) and abs(twice - once) > 1e-3 * max(abs(once), 1e-3):
            raise NoMean(f"{once:.6g}, with each of them twice {twice:.6g}")
        weights = np.random.default_rng(0).uniform(size=(2, _SETS, len(each)))
        sums = weights @ np.asarray(each)
        one, other, both = (np.asarray(of_sums(jnp.asarray(s))) for s in (*sums, sums.sum(0)))
        columns = [c for c in (*range(1, each.shape[1]), 0) if _averages(one, other, both, sums[:, :, c])]
        return _Column(columns[0]) if columns else None


class _Column:
    """One of the sums."""

    def __init__(self, place: int) -> None:
        self.place = place

    def __call__(self, sums: Array) -> Array:
        return sums[..., self.place]


def _averages(one: np.ndarray, other: np.ndarray, both: np.ndarray, sizes: np.ndarray) -> bool:
    """Whether the values of sets together are the averages of theirs, each counting for its size."""
    total = sizes.sum(0)
    if not (np.isfinite(both).all() and (total > 0).all()):
        return False
    return np.allclose((one * sizes[0] + other * sizes[1]) / total, both, rtol=_ALIKE, atol=_ALIKE)


def wide(outputs: Any, targets: Any) -> tuple[Any, Any]:
    """Outputs, flat, and targets as arrays, of floating numbers in float64; one output alone without a tuple."""

    def array(tensor: Tensor) -> np.ndarray:
        own = array_of(tensor)
        return own.astype(np.float64) if np.issubdtype(own.dtype, np.floating) else own

    flat, targets = pytree.tree_map_only(Tensor, array, (pytree.tree_leaves(outputs), targets))
    return flat[0] if len(flat) == 1 else tuple(flat), targets
