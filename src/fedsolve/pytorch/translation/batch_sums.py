"""A loss or a metric of PyTorch that follows from sums over rows, such as a mean with weights or without padding.

The mean of `nn.CrossEntropyLoss(weight)` is a sum of losses over a sum of weights. The program of such a loss is cut at
its sums and means over the batch: before them stands what each row gives alone, behind them what follows from the sums
of any set of rows. So padding is left out, and large sets are taken a few rows at a time, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.utils._pytree as pytree
from jaxtyping import Array
from torch import Tensor
from torch.fx import Graph, Node

from fedsolve.pytorch.translation.arrays import as_traced, in_run_dtype, tensor_to_array
from fedsolve.pytorch.translation.model import OnRows
from fedsolve.pytorch.translation.registry import NotTranslatable, where
from fedsolve.pytorch.translation.translate import Program, evaluate_node, name_of

# What each value in the program of a loss depends on: on single rows of the batch, or on sums over them.


class Dependence(Enum):
    """What a value depends on."""

    FREE = auto()  # nothing of the batch: constants, class weights
    NO_BATCH_AXIS = auto()  # an input without rows, such as a module's second output that is a mean already
    LENGTH = auto()  # the number of rows
    ROW = auto()  # it has rows, each of which depends on the same row of the inputs alone
    SUM = auto()  # a sum over all rows
    MEAN = auto()  # a mean over all rows
    POOLED = auto()  # what follows from sums over rows


AFTER_REDUCTION = frozenset({Dependence.SUM, Dependence.MEAN, Dependence.POOLED})


@dataclass(frozen=True)
class RowScale:
    """A value with rows, times or over a number that follows from sums over rows."""

    row: Node  # the value with rows from which it is made
    by: Node | None = None  # the number; None if the value has only the factor of `row`
    divides: bool = False  # whether it is over the number


_SUMS = frozenset({"aten.sum.dim_IntList"})
_MEANS = frozenset({"aten.mean.default", "aten.mean.dim"})
_SHAPED = frozenset(  # these take lengths as shapes, not as values
    f"aten.{name}"
    for name in ("view.default", "_unsafe_view.default", "expand.default", "slice.Tensor", "repeat.default")
) | {"aten.full.default", "aten.empty.memory_format"}
_TIMES = {
    "aten.mul.Tensor": False,
    "aten.mul.Scalar": False,
    "aten.div.Tensor": True,
    "aten.div.Scalar": True,
}
_LINEAR = _SUMS | _MEANS | _SHAPED | frozenset(
    f"aten.{name}"
    for name in (
        "neg.default", "_to_copy.default", "clone.default", "permute.default", "squeeze.dims", "unsqueeze.default",
        "mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar", "select.int",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Dependences:
    """The kind of every value of a program, and the factors of those with rows."""

    of: dict[Node, Dependence]  # node -> its kind; of the placeholders and what the value is made of
    # node -> its factor, where it has one; of a sum or a mean, that of what is summed
    factors: dict[Node, RowScale]

    def factor(self, node: Node, values: dict[Node, Any]) -> Any:
        # what a value with rows is multiplied by, given the numbers that follow from sums
        found = self.factors.get(node)
        if found is None:
            return 1
        own = self.factor(found.row, values)
        if found.by is None:
            return own
        return own / values[found.by] if found.divides else own * values[found.by]


def dependences_of(graph: Graph, inputs: set[Node]) -> Dependences:
    # `inputs` are outputs or targets, not values that the loss holds
    found, used = Dependences({}, {}), _used(graph)
    for node in graph.nodes:
        if node.op == "placeholder":
            no_axis = Dependence.NO_BATCH_AXIS if node in inputs else Dependence.FREE
            found.of[node] = Dependence.ROW if _rows_of(node) else no_axis
        elif node in used:
            found.of[node] = _kind(node, found)
    return found


def _used(graph: Graph) -> set[Node]:
    # nodes that the value is made of, not those that only check
    found: set[Node] = set()
    left = list(graph.output_node().all_input_nodes)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += node.all_input_nodes
    return found


def length_in_one(node: Node) -> int | None:
    # the length of an axis for a batch of one row; None for what is no length of an axis
    if name_of(node) != "aten.sym_size.int":
        return None
    length: Any = node.meta["val"]
    return length if isinstance(length, int) else int(_at(length, 1))


def _kind(node: Node, found: Dependences) -> Dependence:
    name, kinds = name_of(node), {found.of[n] for n in node.all_input_nodes}
    if not isinstance(node.meta.get("val"), Tensor | tuple | list):
        if name != "aten.sym_size.int":
            return Dependence.LENGTH if Dependence.LENGTH in kinds else Dependence.FREE
        return Dependence.FREE if isinstance(node.meta["val"], int) else Dependence.LENGTH
    rows = _rows_of(node)
    if name in _SHAPED:  # lengths are their shapes; a value that is filled in is no length
        if name == "aten.full.default" and isinstance(node.args[1], Node):
            raise _mixes(node)
        kinds.discard(Dependence.LENGTH)
    pooled = bool(kinds & (AFTER_REDUCTION | {Dependence.LENGTH}))
    if Dependence.ROW not in kinds:
        if rows and (pooled or name not in _SHAPED):
            raise _mixes(node)
        return (
            Dependence.ROW
            if rows
            else Dependence.POOLED
            if pooled
            else Dependence.NO_BATCH_AXIS
            if Dependence.NO_BATCH_AXIS in kinds
            else Dependence.FREE
        )
    _take_factor(node, name, pooled, found)
    if rows:
        return Dependence.ROW
    if name not in _SUMS | _MEANS:
        raise _mixes(node)
    return Dependence.SUM if name in _SUMS else Dependence.MEAN


def _take_factor(node: Node, name: str, pooled: bool, found: Dependences) -> None:
    # note the factor that a value with rows has from its arguments
    first, *others = [
        n
        for n in node.all_input_nodes
        if found.of[n] in AFTER_REDUCTION | {Dependence.LENGTH, Dependence.ROW}
    ]
    if name in _SHAPED:
        first, others = node.all_input_nodes[0], []
    if pooled:
        if name not in _TIMES or len(others) != 1:
            raise _mixes(node)
        row, by = (first, others[0]) if found.of[first] is Dependence.ROW else (others[0], first)
        if (_TIMES[name] and row is not node.args[0]) or getattr(by.meta["val"], "ndim", 0):
            raise _mixes(node)
        found.factors[node] = RowScale(row, by, _TIMES[name])
        return
    with_factor = [n for n in (first, *others) if n in found.factors]
    if with_factor:
        last = name.startswith("aten.div") and with_factor[0] is not node.args[0]
        if name not in _LINEAR or len(with_factor) > 1 or last:
            raise _mixes(node)
        found.factors[node] = RowScale(with_factor[0])


def _rows_of(node: Node) -> bool:
    # one axis as long as the batch, or as a multiple of it; two such axes, or one of half the length, are
    # refused
    value = node.meta.get("val")
    for each in value if isinstance(value, tuple | list) else (value,):
        lengths = [s for s in each.shape if not isinstance(s, int)] if isinstance(each, Tensor) else []
        if len(lengths) > 1 or not all(map(_is_multiple, lengths)):
            raise _mixes(node)
        if lengths:
            return True
    return False


def _is_multiple(length: Any) -> bool:
    return _at(length, 2) == 2 * _at(length, 1) and _at(length, 3) == 3 * _at(length, 1)


def _at(length: Any, rows: int) -> Any:
    expression = length.node.expr
    return expression.subs(dict.fromkeys(expression.free_symbols, rows))


def _mixes(node: Node) -> NotTranslatable:
    return NotTranslatable(
        f"{name_of(node)}{where(node.meta.get('stack_trace'))} mixes examples otherwise than by a sum or a mean"
    )


def is_mean(graph: Graph, kinds: Dependences) -> bool:
    # whatever the rows' own values are
    behind = [n for n, kind in kinds.of.items() if kind in AFTER_REDUCTION]
    if kinds.factors or any(kinds.of[n] is Dependence.SUM for n in behind):
        return False
    return all(_is_affine(n, kinds) for n in behind if kinds.of[n] is Dependence.POOLED)


def _is_affine(node: Node, kinds: Dependences) -> bool:
    # a sum of its arguments, or one of them times a constant
    name, own = name_of(node), [n for n in node.all_input_nodes if kinds.of[n] is not Dependence.FREE]
    if any(kinds.of[n] is Dependence.LENGTH for n in own):
        return False
    if name in ("aten.add.Tensor", "aten.sub.Tensor", "aten.add.Scalar", "aten.sub.Scalar"):
        return True
    return (
        name in _LINEAR - _SHAPED
        and len(own) == 1
        and (not name.startswith("aten.div") or own[0] is node.args[0])
    )


Values = Mapping[str, Any]

_BEFORE_REDUCTION = frozenset(
    {
        Dependence.FREE,
        Dependence.NO_BATCH_AXIS,
        Dependence.LENGTH,
        Dependence.ROW,
        Dependence.SUM,
        Dependence.MEAN,
    }
)
_FROM_REDUCTIONS = frozenset(
    {Dependence.FREE, Dependence.NO_BATCH_AXIS, Dependence.LENGTH, Dependence.POOLED}
)


class SplitAtBatchSums:
    """The program of a loss or a metric, of outputs and targets of a batch of any size, cut at its sums over the batch.

    A row adds `width` numbers, the first of them 1. `is_mean`: the value is the mean of the rows' own, or has rows
    itself.
    """

    def __init__(self, program: Program) -> None:
        self._program, self._kinds = program, dependences_of(program.graph, set(program.inputs))
        self._result: Node = program.graph.output_node().args[0][0]  # pyright: ignore
        cuts = (Dependence.SUM, Dependence.MEAN)
        self._cuts = [
            n
            for n, k in self._kinds.of.items()
            if k in cuts
            or (
                k is Dependence.NO_BATCH_AXIS
                and n.op == "placeholder"
                and isinstance(n.meta["val"], torch.Tensor)
            )
        ]
        self._sizes = [math.prod(n.meta["val"].shape) for n in self._cuts]
        self.width = 1 + sum(self._sizes)
        self.is_mean = self._kinds.of[self._result] not in AFTER_REDUCTION or is_mean(
            program.graph, self._kinds
        )

    def moving(self, outputs: int) -> int | None:
        # which of a row's numbers depends on the outputs, the first inputs; None where several do
        reached = set(self._program.inputs[:outputs])
        for node in self._program.graph.nodes:
            if reached.intersection(node.all_input_nodes):
                reached.add(node)
        sizes = [size if node in reached else 0 for node, size in zip(self._cuts, self._sizes, strict=True)]
        return 1 + sum(self._sizes[: sizes.index(1)]) if sum(sizes) == 1 else None

    def row(self, values: Values, inputs: Sequence[Any], run: Any) -> Array:
        # shape (width,). values: what the loss holds, such as class weights, by name; inputs: flat outputs
        # and targets of a batch of this row alone; run: type of the result
        env, places = self._program.held(values, run), self._program.inputs
        env |= {n: as_traced(x, n.meta.get("val")) for n, x in zip(places, inputs, strict=True)}
        with in_run_dtype(self._program.dtype, run):
            for node in self._program.graph.nodes:
                if node.op == "call_function" and self._kinds.of.get(node) in _BEFORE_REDUCTION:
                    factor = self._kinds.factors.get(node)
                    if factor is not None and factor.by is not None:  # it is put on the sum
                        env[node] = env[factor.row]
                    else:
                        env[node] = evaluate_node(node, env)
        parts = [jnp.ones(1, run), *(jnp.ravel(env[n]).astype(run) for n in self._cuts)]
        return jnp.concatenate(parts)

    def value(self, values: Values, totals: Array) -> Array:
        # shape (), from the sums (width,); NaN where nothing of the rows counts, as the mean over ignored
        # targets alone
        sums, env = self._sums(totals), self._program.held(values, totals.dtype)
        with in_run_dtype(self._program.dtype, totals.dtype):
            for node in self._program.graph.nodes:
                kind = self._kinds.of.get(node)
                if node in sums:
                    env[node] = sums[node] * self._kinds.factor(node, env)
                elif node.op == "call_function" and kind in _FROM_REDUCTIONS:
                    length = length_in_one(node)
                    if length is None:
                        env[node] = evaluate_node(node, env)
                    else:
                        env[node] = length if kind is Dependence.FREE else length * totals[0]
        return jnp.mean(jnp.asarray(env[self._result]).astype(totals.dtype))

    def _sums(self, totals: Array) -> dict[Node, Any]:
        found, first = {}, 1
        for node, size in zip(self._cuts, self._sizes, strict=True):
            part = totals[first : first + size].reshape(tuple(node.meta["val"].shape))
            found[node] = part if self._kinds.of[node] is Dependence.SUM else part / totals[0]
            first += size
        return found


_SETS = 8  # pairs of weighted sets of rows on which averages are compared
_ALIKE = 1e-6  # relative: denominators such as sum + 1e-8 are taken for sums


class NoMean(Exception):
    """A value that changes when every example is given twice, such as a sum."""


class OnSums:
    """A loss or a metric, (outputs, targets) -> tensor, as what each example adds and what the sums make.

    `is_mean`: the value is the mean of the rows' own values, so that `rows` is enough. `size` makes of sums how much
    a set of examples counts for where the values of several sets are averaged; None where no such average is the
    value of all. `moving` is the only one of the sums that depends on the outputs; None for several.
    """

    def __init__(self, rows: OnRows, outputs: Any, targets: Any) -> None:
        self._rows, self._split = rows, SplitAtBatchSums(rows.program)
        self.digest = "sums", *rows.digest
        self.is_mean, self.size = self._split.is_mean, None
        self.moving = self._split.moving(len(pytree.tree_leaves(outputs)))
        if not self.is_mean:
            with jax.enable_x64(True):
                self.size = self._compared(*to_float64(outputs, targets))

    def __call__(self, outputs: Any, targets: Any) -> Array:
        return self._rows.by_row(self._split.row, outputs, targets)

    def of_sums(self, sums: Array) -> Array:
        return self._split.value(self._rows.held(sums.dtype), sums)

    def _compared(self, outputs: Any, targets: Any) -> Callable[[Array], Array] | None:
        # by the values of weighted sets of rows: `size` is a column of sums whose weights make their average
        # exact
        each, of_sums = np.asarray(jax.jit(self.__call__)(outputs, targets)), jax.jit(jax.vmap(self.of_sums))
        whole = each.sum(0)
        once, twice = np.asarray(of_sums(np.stack([whole, 2 * whole])))
        if np.isfinite(once) and abs(twice - once) > 1e-3 * max(abs(once), 1e-3):
            raise NoMean(f"{once:.6g}, with each of them twice {twice:.6g}")
        weights = np.random.default_rng(0).uniform(size=(2, _SETS, len(each)))
        sums = weights @ each
        one, other, both = (np.asarray(of_sums(s)) for s in (*sums, sums.sum(0)))
        columns = [c for c in (*range(1, each.shape[1]), 0) if _averages(one, other, both, sums[:, :, c])]
        return _Column(columns[0]) if columns else None


class _Column:
    """One of the sums."""

    def __init__(self, place: int) -> None:
        self.place = place

    def __call__(self, sums: Array) -> Array:
        return sums[..., self.place]


def _averages(one: np.ndarray, other: np.ndarray, both: np.ndarray, sizes: np.ndarray) -> bool:
    # are the values of joined sets the averages of theirs, each weighted by its size?
    total = sizes.sum(0)
    if not (np.isfinite(both).all() and (total > 0).all()):
        return False
    return np.allclose((one * sizes[0] + other * sizes[1]) / total, both, rtol=_ALIKE, atol=_ALIKE)


def to_float64(outputs: Any, targets: Any) -> tuple[Any, Any]:
    # floating numbers in float64; outputs flat, one output alone without a tuple

    def array(tensor: Tensor) -> np.ndarray:
        own = tensor_to_array(tensor)
        return own.astype(np.float64) if np.issubdtype(own.dtype, np.floating) else own

    flat, targets = pytree.tree_map_only(Tensor, array, (pytree.tree_leaves(outputs), targets))
    return flat[0] if len(flat) == 1 else tuple(flat), targets
