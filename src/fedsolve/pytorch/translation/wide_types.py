"""Where a program of PyTorch computes in 64 bits what a run in float32 has in 32."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.fx import Graph, Node

_LARGEST = 2**31 - 1
_GROWING = frozenset(
    """
    add sub rsub mul pow sum prod cumsum cumprod bitwise_left_shift __lshift__ mm bmm addmm dot mv matmul
    scatter_add scatter_reduce index_add index_put
    """.split()  # noqa: SIM905
)
_ENDS = frozenset(("slice", "slice_scatter"))  # to which the largest integer means the end of an axis


def computes_in_64_bits(graph: Graph, inputs: list[Node], dtype: torch.dtype) -> bool:
    """Whether results may depend on integers, or on floating-point numbers, having 64 bits.

    So they may where integers are computed from the data, or from literals of more than 32 bits, and where numbers are
    converted to a wider type than the module's.

    Args:
        graph: operations of ATen.
        inputs: those of its placeholders that are data.
        dtype: the type of the module's parameters.
    """
    of_data = set(inputs)
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if any(n in of_data for n in node.all_input_nodes):
            of_data.add(node)
        own = _type(node)
        if (own == torch.float64 and dtype == torch.float32) or _has_long_literal(node):
            return True
        if own == torch.int64 and node in of_data and _grows(node):
            return True
    return False


def exceeds_32_bits(array: np.ndarray) -> bool:
    """Whether integers leave 32 bits."""
    return array.dtype.kind in "iu" and array.size > 0 and max(-int(array.min()), int(array.max())) > _LARGEST


def _type(node: Any) -> torch.dtype | None:
    value = node.meta.get("val")
    value = value[0] if isinstance(value, tuple | list) and value else value
    return getattr(value, "dtype", None)


def _name(node: Node) -> str:
    return str(node.target).removeprefix("aten.").split(".")[0]


def _has_long_literal(node: Node) -> bool:
    numbers = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, int)]
    return _name(node) not in _ENDS and any(abs(n) > _LARGEST for n in numbers)


def _grows(node: Node) -> bool:
    """Whether an operation may give larger integers than it is given; a count of truths stays small."""
    given = {_type(n) for n in node.all_input_nodes} - {None, torch.bool}
    floating = any(t.is_floating_point for t in given if t is not None)
    return bool(given) and (_name(node) in _GROWING or (_name(node) == "_to_copy" and floating))
