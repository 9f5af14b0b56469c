"""What autograd records of a loss, and the gradient that it gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.utils.checkpoint import CheckpointFunction

from fedsolve.core.errors import InvalidInput


def gradients(value: Tensor, params: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The gradient of a scalar by parameters that have no `.grad`, 0 where it does not depend on one.

    By `backward`, since checkpoints with `use_reentrant=True` refuse `torch.autograd.grad`.
    """
    value.backward()
    return {n: torch.zeros_like(p) if p.grad is None else _dense(p.grad) for n, p in params.items()}


def _dense(gradient: Tensor) -> Tensor:
    return (gradient.to_dense() if gradient.is_sparse else gradient).detach()


def refuse_late_hooks(module: nn.Module) -> None:
    """Raise `InvalidInput` if a parameter has a hook that acts once its gradient is in `.grad`, which nobody reads."""
    for name, p in module.named_parameters():
        if getattr(p, "_post_accumulate_grad_hooks", None):
            raise InvalidInput(
                f"parameter '{name}' has a hook by register_post_accumulate_grad_hook, which acts on `.grad`: use "
                "register_hook, which acts on the gradient"
            )


class Graph:
    """What a value was computed from.

    Args:
        value: a tensor with a gradient.

    Attributes:
        functions: the names of the user's own `torch.autograd.Function`s in it.
        leaves: the tensors that it depends on and that require a gradient.
    """

    def __init__(self, value: Tensor) -> None:
        self.functions: list[str] = []
        self.leaves: list[Tensor] = []
        for node in _nodes(value.grad_fn):
            if isinstance(node, BackwardCFunction):
                if not _is_checkpoint(node):
                    self.functions.append(type(node).__name__.removesuffix("Backward"))
            elif hasattr(node, "variable"):
                self.leaves.append(node.variable)
        if value.grad_fn is None and value.requires_grad:
            self.leaves.append(value)


def _is_checkpoint(node: Any) -> bool:
    """Whether a node is `torch.utils.checkpoint`'s, whose backward is that of what it runs."""
    return getattr(type(node), "_forward_cls", None) is CheckpointFunction


def _nodes(start: Any) -> Iterator[Any]:
    seen, todo = set(), [start]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            todo += [before for before, _ in node.next_functions]
