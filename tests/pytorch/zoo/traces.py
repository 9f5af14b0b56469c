"""What a trial could leave behind: everything that a module, a loss, data and generators hold."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any
from weakref import ref as _Reference

import numpy as np
import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import TorchPatcher
from torch.nn.parameter import is_lazy

from fedsolve.pytorch.translation.arrays import bytes_of

TorchPatcher.patch()  # what PyTorch does once, when it first follows a program: distributions validate nothing then


@contextmanager
def without_trace(*things: Any) -> Iterator[None]:
    """Afterwards modules, losses and data hold what they held, and so do PyTorch, NumPy and Python."""
    before = {**_held(things), **_global()}
    yield
    after = {**_held(things), **_global()}
    changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
    assert not changed, f"left a trace in {sorted(changed)}"


def _global() -> dict[str, Any]:
    return {
        "Python": random.getstate(),
        "NumPy": str(np.random.get_state()),  # noqa: NPY002
        "PyTorch": torch.get_rng_state().numpy().tobytes(),
        "types": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "validation": torch.distributions.Distribution._validate_args,
        "log": logging.root.manager.disable,
    }


def _held(things: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    _describe("", things, found, set())
    return found


def _describe(path: str, value: Any, found: dict[str, Any], seen: set[int]) -> None:
    """Note what a value is, and what it holds."""
    if value is None or isinstance(value, int | float | str | bytes):
        found[path] = repr(value)
        return
    found[path] = (
        type(value).__name__,
        () if isinstance(value, list | dict | tuple | _Reference) else id(value),
    )
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        found[path] += value.requires_grad, value.is_leaf and id(value.grad), _bytes(value)
    elif isinstance(value, np.ndarray):
        found[path] += (value.tobytes(),)
    elif isinstance(value, torch.Generator):
        found[path] += (value.get_state().numpy().tobytes(),)
    elif isinstance(value, np.random.Generator):
        found[path] += (str(value.bit_generator.state),)
    for name, part in _parts(value):
        _describe(f"{path}.{name}", part, found, seen)


def _bytes(t: Tensor) -> Any:
    if is_lazy(t) or t.is_meta:
        return None
    return repr(t) if t.layout != torch.strided else bytes_of(t.detach().resolve_conj()).tobytes()


def _parts(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    if isinstance(value, MethodType):
        return [("self", value.__self__)]
    if isinstance(value, torch.jit.ScriptModule):  # it makes its tensors' objects anew
        return [(name, _bytes(t)) for name, t in value.state_dict().items()]
    if isinstance(value, Tensor | type) or type(value).__module__.startswith("torch._dynamo"):
        return []
    parts = list(getattr(value, "__dict__", {}).items())
    if isinstance(value, FunctionType):
        parts += [(i, cell.cell_contents) for i, cell in enumerate(value.__closure__ or ())]
    if isinstance(value, nn.Module):
        parts += value.named_parameters()
    return parts
