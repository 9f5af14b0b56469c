"""Where the batch is in the tensors of an exported program: only its length is no number while a module is exported."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import torch
from jaxtyping import Array
from torch.fx import Node
from torch.fx.node import map_arg

_NUMBERS = ("add", "sub", "mul", "div", "pow", "rsub", "full", "scalar_tensor", "remainder")
_PYTHON = (operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.pow)


def batch_axes(node: Any) -> dict[int, int]:
    """The axes of a tensor that are the batch, each with how many entries stand for one example, one after another.

    An axis of another length that depends on the batch's, such as n - 1, is none.
    """
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor):
        return {}
    found = {axis: entries_of(size) for axis, size in enumerate(value.shape)}
    return {axis: entries for axis, entries in found.items() if entries}


def entries_of(size: Any) -> int | None:
    """By how much a size exceeds the batch's length, None if it is no multiple of it."""
    if isinstance(size, int):
        return None
    expression = size.node.expr
    symbols = list(expression.free_symbols)
    times = expression / symbols[0] if len(symbols) == 1 else None
    return int(times) if times is not None and times.is_Integer else None


def weights_along(node: Any, mixed: Sequence[int], weights: Array) -> dict[int, Array]:
    """The weights of the entries along each axis that is both the batch and among `mixed`.

    Args:
        node: a tensor.
        mixed: the axes that an operation mixes.
        weights: of the examples, shape (n,).
    """
    axes = batch_axes(node)
    return {a: weights if k == 1 else jnp.repeat(weights, k) for a, k in axes.items() if a in mixed}


class Counted:
    """Sizes as numbers of examples that count, for where a program computes with them.

    Args:
        weights: 0 or 1 for each example, shape (n,).
    """

    def __init__(self, weights: Array) -> None:
        self._examples = jnp.maximum(jnp.sum(weights > 0), 1)
        self._known: dict[Node, Any] = {}

    def see(self, node: Node) -> None:
        """Keep what a node stands for, if it is a size of the batch or made of one by Python."""
        size = node.meta.get("val")
        if not isinstance(size, torch.SymInt | torch.SymFloat):
            return
        if isinstance(size, torch.SymInt) and (entries := entries_of(size)):
            self._known[node] = self._examples * entries
        elif node.target in _PYTHON and all(n in self._known for n in node.all_input_nodes):
            self._known[node] = node.target(*map_arg(node.args, self._known.__getitem__))  # pyright: ignore
        elif getattr(node.target, "__name__", "") == "sym_float" and node.args[0] in self._known:
            self._known[node] = self._known[node.args[0]]

    def in_place(self, node: Node, args: Sequence[Any]) -> Sequence[Any]:
        """The arguments of an arithmetic operation, with counts in place of sizes."""
        name = str(node.target).split(".")
        if name[0] != "aten" or name[1] not in _NUMBERS:
            return args
        found = [self._known.get(a) if isinstance(a, Node) else None for a in node.args]
        return [own if count is None else count for own, count in zip(args, found, strict=True)]


def sizes_computed_with(nodes: Iterable[Node]) -> bool:
    """Whether an arithmetic operation takes a size of the batch for a number."""
    return any(
        str(node.target).split(".")[0] == "aten"
        and str(node.target).split(".")[1] in _NUMBERS
        and any(
            isinstance(getattr(a, "meta", {}).get("val"), torch.SymInt | torch.SymFloat) for a in node.args
        )
        for node in nodes
        if node.op == "call_function"
    )
