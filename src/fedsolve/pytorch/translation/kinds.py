"""What each value in the program of a loss depends on: on single rows of the batch, or on sums over them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from torch import Tensor
from torch.fx import Graph, Node

from fedsolve.pytorch.translation.failures import where
from fedsolve.pytorch.translation.registry import NotTranslatable
from fedsolve.pytorch.translation.translate import name_of


class Kind(Enum):
    """What a value depends on."""

    FREE = auto()  # nothing of the batch: constants, class weights
    BESIDE = auto()  # an input without rows, such as a module's second output that is a mean already
    LENGTH = auto()  # the number of rows
    ROW = auto()  # it has rows, each of which depends on the same row of the inputs alone
    SUM = auto()  # a sum over all rows
    MEAN = auto()  # a mean over all rows
    POOLED = auto()  # what follows from sums over rows


BEHIND = frozenset({Kind.SUM, Kind.MEAN, Kind.POOLED})


@dataclass(frozen=True)
class Factor:
    """A value with rows, times or over a number that follows from sums over rows.

    Attributes:
        row: the value with rows from which it is made.
        by: the number; None if the value has only the factor of `row`.
        divides: whether it is over the number.
    """

    row: Node
    by: Node | None = None
    divides: bool = False


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
class Kinds:
    """The kind of every value of a program, and the factors of those with rows.

    Attributes:
        of: node -> its kind; of the placeholders and what the value is made of.
        factors: node -> its factor, where it has one; of a sum or a mean, that of what is summed.
    """

    of: dict[Node, Kind]
    factors: dict[Node, Factor]

    def factor(self, node: Node, values: dict[Node, Any]) -> Any:
        """What a value with rows is multiplied by, given the numbers that follow from sums."""
        found = self.factors.get(node)
        if found is None:
            return 1
        own = self.factor(found.row, values)
        if found.by is None:
            return own
        return own / values[found.by] if found.divides else own * values[found.by]


def kinds_of(graph: Graph, inputs: set[Node]) -> Kinds:
    """The kinds in a program.

    Args:
        graph: the program.
        inputs: its inputs that are outputs or targets, not values that the loss holds.

    Raises:
        NotTranslatable: an operation that mixes rows otherwise than by a sum or a mean over all of them.
    """
    found, used = Kinds({}, {}), _used(graph)
    for node in graph.nodes:
        if node.op == "placeholder":
            beside = Kind.BESIDE if node in inputs else Kind.FREE
            found.of[node] = Kind.ROW if _rows_of(node) else beside
        elif node in used:
            found.of[node] = _kind(node, found)
    return found


def _used(graph: Graph) -> set[Node]:
    """What the value of a program is made of: not what only checks."""
    found: set[Node] = set()
    left = list(graph.output_node().all_input_nodes)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += node.all_input_nodes
    return found


def length_in_one(node: Node) -> int | None:
    """The length of an axis for a batch of one row; None of what is no length of an axis."""
    if name_of(node) != "aten.sym_size.int":
        return None
    length: Any = node.meta["val"]
    return length if isinstance(length, int) else int(_at(length, 1))


def _kind(node: Node, found: Kinds) -> Kind:
    name, kinds = name_of(node), {found.of[n] for n in node.all_input_nodes}
    if not isinstance(node.meta.get("val"), Tensor | tuple | list):
        if name != "aten.sym_size.int":
            return Kind.LENGTH if Kind.LENGTH in kinds else Kind.FREE
        return Kind.FREE if isinstance(node.meta["val"], int) else Kind.LENGTH
    rows = _rows_of(node)
    if name in _SHAPED:  # lengths are their shapes; a value that is filled in is no length
        if name == "aten.full.default" and isinstance(node.args[1], Node):
            raise _mixes(node)
        kinds.discard(Kind.LENGTH)
    pooled = bool(kinds & (BEHIND | {Kind.LENGTH}))
    if Kind.ROW not in kinds:
        if rows and (pooled or name not in _SHAPED):
            raise _mixes(node)
        return (
            Kind.ROW
            if rows
            else Kind.POOLED
            if pooled
            else Kind.BESIDE
            if Kind.BESIDE in kinds
            else Kind.FREE
        )
    _take_factor(node, name, pooled, found)
    if rows:
        return Kind.ROW
    if name not in _SUMS | _MEANS:
        raise _mixes(node)
    return Kind.SUM if name in _SUMS else Kind.MEAN


def _take_factor(node: Node, name: str, pooled: bool, found: Kinds) -> None:
    """Note the factor that a value with rows has from its arguments."""
    first, *others = [n for n in node.all_input_nodes if found.of[n] in BEHIND | {Kind.LENGTH, Kind.ROW}]
    if name in _SHAPED:
        first, others = node.all_input_nodes[0], []
    if pooled:
        if name not in _TIMES or len(others) != 1:
            raise _mixes(node)
        row, by = (first, others[0]) if found.of[first] is Kind.ROW else (others[0], first)
        if (_TIMES[name] and row is not node.args[0]) or getattr(by.meta["val"], "ndim", 0):
            raise _mixes(node)
        found.factors[node] = Factor(row, by, _TIMES[name])
        return
    with_factor = [n for n in (first, *others) if n in found.factors]
    if with_factor:
        last = name.startswith("aten.div") and with_factor[0] is not node.args[0]
        if name not in _LINEAR or len(with_factor) > 1 or last:
            raise _mixes(node)
        found.factors[node] = Factor(with_factor[0])


def _rows_of(node: Node) -> bool:
    """Whether a value has rows: one axis as long as the batch, or as a multiple of it.

    Raises:
        NotTranslatable: an axis of a length such as half of the batch, or two axes as long as it.
    """
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
    """A length for a batch of so many rows."""
    expression = length.node.expr
    return expression.subs(dict.fromkeys(expression.free_symbols, rows))


def _mixes(node: Node) -> NotTranslatable:
    return NotTranslatable(
        f"{name_of(node)}{where(node.meta.get('stack_trace'))} mixes examples otherwise than by a sum or a mean"
    )


def is_mean(graph: Graph, kinds: Kinds) -> bool:
    """Whether the value of a program is the mean of its values on the rows alone, whatever these are."""
    behind = [n for n, kind in kinds.of.items() if kind in BEHIND]
    if kinds.factors or any(kinds.of[n] is Kind.SUM for n in behind):
        return False
    return all(_is_affine(n, kinds) for n in behind if kinds.of[n] is Kind.POOLED)


def _is_affine(node: Node, kinds: Kinds) -> bool:
    """Whether a number behind the sums is a sum of its arguments, or one of them times a constant."""
    name, own = name_of(node), [n for n in node.all_input_nodes if kinds.of[n] is not Kind.FREE]
    if any(kinds.of[n] is Kind.LENGTH for n in own):
        return False
    if name in ("aten.add.Tensor", "aten.sub.Tensor", "aten.add.Scalar", "aten.sub.Scalar"):
        return True
    return (
        name in _LINEAR - _SHAPED
        and len(own) == 1
        and (not name.startswith("aten.div") or own[0] is node.args[0])
    )
