"""A loss of PyTorch as a function of sums over rows: what each row adds, and what the sums of a batch make.

The mean of `nn.CrossEntropyLoss(weight)` is a sum of losses over a sum of weights. The program of such a loss is cut at
its sums and means over the batch: before them stands what each row gives alone, behind them what follows from the sums
of any set of rows. So padding is left out, and large sets are taken a few rows at a time, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import torch
from jaxtyping import Array
from torch.fx import Node

from fedsolve.pytorch.sums.kinds import BEHIND, Kind, is_mean, kinds_of, length_in_one
from fedsolve.pytorch.translation.dtypes import as_traced, computing
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
