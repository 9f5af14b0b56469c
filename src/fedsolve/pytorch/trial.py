"""A module run once in each mode, before anything is made of it."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from fedsolve.errors import InvalidInput
from fedsolve.pytorch.failures import first_line, where_raised
from fedsolve.pytorch.seeds import seeded


def outputs_of(module: nn.Module, x: Any) -> Any:
    """What a copy of the module gives in evaluation mode.

    Raises:
        InvalidInput: it fails in evaluation or in training mode (on which line), or a buffer changes its shape.
    """
    own = copy.deepcopy(module)
    with seeded(0):
        with torch.no_grad():  # copies: of a view, `torch.export` would follow what it is a view of
            outputs = pytree.tree_map_only(Tensor, torch.clone, _run(own.eval(), x, "evaluation"))
        before = {name: b.shape for name, b in own.named_buffers()}
        _run(own.train(), x, "training")
    for name, b in own.named_buffers():
        if b.shape != before.get(name, b.shape):
            raise InvalidInput(
                f"buffer '{name}' of {type(module).__name__} has shape {tuple(before[name])}, after a batch in "
                f"training {tuple(b.shape)}: give it from the start the shape that it keeps, since buffers are averaged"
            )
    return outputs


def _run(module: nn.Module, x: Any, mode: str) -> Any:
    try:
        return module(x)
    except Exception as error:  # whatever the user's code raises
        shapes = ", ".join(str(tuple(t.shape)) for t in pytree.tree_leaves(x) if isinstance(t, Tensor))
        raise InvalidInput(
            f"{type(module).__name__} fails in {mode} on inputs of shape {shapes}: "
            f"{first_line(error)}{where_raised(error)}"
        ) from error
