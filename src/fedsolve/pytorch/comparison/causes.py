"""Why a translation may differ from a module: what `torch.export` leaves out, and a copy."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fedsolve.pytorch.comparison.reference import Reference, Values

_OF_HOOKS = "BackwardHookFunction"  # by which PyTorch calls a module's own backward hooks


def cause(reference: Reference, params: Values, buffers: Values, batch: Any) -> str:
    """What in a module or its loss is known to be left out, in words."""
    module = reference.module
    for name, p in module.named_parameters():
        if p._backward_hooks:
            return f"parameter '{name}' has a hook (register_hook), which is left out"
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            return f"'{name}' ({type(part).__name__}) has a backward hook, which is left out"
    if _refers(reference, params, buffers, batch):
        return "the loss refers to the module's own parameters, which it takes for constants"
    with _Hooks() as hooks:
        functions = reference.graph(params, buffers, batch).functions
    functions = [name for name in functions if name != _OF_HOOKS]
    if functions:
        return f"the backward of torch.autograd.Function {functions[0]} is left out"
    if hooks.found:
        return "a tensor has a hook (register_hook), which is left out"
    return "the cause is not known"


def _refers(reference: Reference, params: Values, buffers: Values, batch: Any) -> bool:
    """Whether the loss depends on the module's parameters otherwise than by its outputs."""
    own = {id(p) for p in reference.module.parameters()}
    leaves = reference.graph(params, buffers, batch, through_module=False).leaves
    return any(id(leaf) in own for leaf in leaves)


class _Hooks(TorchFunctionMode):
    """Whether hooks are registered on tensors meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function itself."""
        self.found |= func is torch.Tensor.register_hook
        return func(*args, **(kwargs or {}))
