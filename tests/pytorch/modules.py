"""A module of PyTorch against its translation: outputs, gradients of all parameters, buffers that it writes."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import nn

from fedsolve.pytorch.dtypes import array_of
from fedsolve.pytorch.export import exported
from fedsolve.pytorch.translate import Program


@functools.cache
def declare_torchvision() -> None:
    """Where torchvision's wheel does not fit the build of PyTorch, declare the operators that it then lacks."""
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)  # it takes its definitions along when it goes


_KEPT: list[Any] = []


class Applied(nn.Module):
    """A module called by names, and the first of its results."""

    def __init__(self, module: nn.Module, *names: str) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        result = (
            self.module(**dict(zip(self.names, inputs, strict=True))) if self.names else self.module(*inputs)
        )
        return result[0]


def agree(module: nn.Module, inputs: tuple[Any, ...], training: bool, tolerance: float = 1e-10) -> None:
    """Compare in float64; in training without dropout, whose draws differ."""
    torch.manual_seed(0)
    module = module.double()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(getattr(part, "dropout", None), float):  # of attention and of recurrent layers
            part.dropout = 0.0
    inputs = pytree.tree_map(lambda x: x.double() if x.is_floating_point() else x, inputs)
    with jax.enable_x64(True):
        program = Program(exported(module, inputs, training), torch.float64)
        state = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
        values = {name: jnp.asarray(array_of(state[name])) for name in program.names}
        module.train(training)
        theirs = module(*inputs)
        theirs = theirs if isinstance(theirs, tuple) else (theirs,)
        cotangents = [torch.randn_like(t) for t in theirs]
        params = dict(module.named_parameters())
        first = {id(p): name for name, p in params.items()}  # shared weights are one
        given = [p for p in params.values() if p.requires_grad]
        found = torch.autograd.grad(theirs, given, cotangents, allow_unused=True) if given else ()

        def filled(own: dict[str, Any]) -> dict[str, Any]:
            return {n: own[first[id(state[n])]] if id(state[n]) in first else v for n, v in values.items()}

        def run(own: dict[str, Any], arrays: list[Any], pulls: list[Any]) -> Any:
            key = jax.random.key(0) if training else None
            outputs, pull, written = jax.vjp(lambda p: program(filled(p), arrays, key), own, has_aux=True)
            return outputs, pull(pulls)[0], written

        own = {name: jnp.asarray(array_of(p)) for name, p in params.items()}
        arrays = [array_of(x) for x in pytree.tree_leaves(inputs)]
        outputs, gradients, written = jax.jit(run)(own, arrays, [array_of(c) for c in cotangents])
        for ours, expected in zip(outputs, theirs, strict=True):
            close(ours, expected, tolerance, "output")
        for (name, parameter), gradient in zip(params.items(), found, strict=True):
            expected = torch.zeros_like(parameter) if gradient is None else gradient
            close(gradients[name], expected, tolerance, f"gradient of {name}")
        for name, value in written.items():
            close(value, dict(module.named_buffers())[name], tolerance, name)


def close(ours: Any, theirs: torch.Tensor, tolerance: float, name: str) -> None:
    """Equal but for rounding, relative to the largest entry."""
    expected = array_of(theirs)
    size = max(float(np.abs(expected).max(initial=0)), 1.0)
    np.testing.assert_allclose(np.asarray(ours), expected, rtol=0, atol=tolerance * size, err_msg=name)
