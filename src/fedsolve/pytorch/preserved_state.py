"""A trial of a user's code that leaves no trace, and what modules and losses remember in Python."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedsolve.pytorch.batch_losses import preserve_generators
from fedsolve.pytorch.translation.arrays import preserve_attributes


@contextmanager
def preserve_state(functions: Iterable[Any], data: Iterable[Any] = (), copied: Any = None) -> Iterator[None]:
    # afterwards attributes, parameters with their gradients and buffers of `functions` that are modules are
    # as they were; generators that `data` (datasets, loaders) hold go on where they were, as do the global
    # ones of PyTorch on the CPU, NumPy and Python. copied: a copy of the first one, instead of another one
    modules = [f for f in functions if isinstance(f, nn.Module)]
    tensors = [t for m in modules for t in _values(m)]
    values = [] if copied is None else [t.detach() for t in _values(copied)]
    values += [t.detach().clone() for t in tensors[len(values) :]]
    slopes = [(p, p.grad) for m in modules for p in m.parameters()]
    hooks = [(p, dict(p._backward_hooks or {})) for p, _ in slopes]
    for parameter, _ in slopes:
        parameter.grad = None
    python, legacy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        with ExitStack() as stack:
            stack.enter_context(preserve_attributes(*modules))
            for part in data:
                stack.enter_context(preserve_generators(part))
            yield
    finally:
        for tensor, value in zip(tensors, values, strict=True):
            # `torch.equal` compares no sparse ones
            if tensor.layout != torch.strided or not torch.equal(tensor.data, value):
                tensor.data.copy_(value)
        for parameter, slope in slopes:
            parameter.grad = slope
        for parameter, own in hooks:
            if parameter._backward_hooks:
                parameter._backward_hooks.clear()
                parameter._backward_hooks.update(own)
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        torch.set_rng_state(torch_state)


def _values(module: nn.Module) -> list[Tensor]:
    return [t for t in (*module.parameters(), *module.buffers()) if not is_lazy(t) and not t.is_meta]


def same_values(a: Any, b: Any) -> bool:
    # two items of a dataset; NaN is equal to itself
    leaves = (map(np.asarray, pytree.tree_leaves(item)) for item in (a, b))
    return all(
        np.array_equal(x, y, equal_nan=x.dtype.kind == y.dtype.kind == "f")
        for x, y in zip(*leaves, strict=False)
    )


_DEPTH = 4  # of containers and objects within each other


def python_state(module: nn.Module, loss: Any) -> dict[str, Any]:
    # values that are equal as long as nothing changes, by what errors call them; of a function what it closes
    # over
    found = {}
    for owner, what in ((module, "the module"), (loss, "the loss")):
        for path, part in owner.named_modules() if isinstance(owner, nn.Module) else [("", owner)]:
            where = f"'{path}' of {what}" if path else what
            for name, value in _attributes(part).items():
                found[f"attribute '{name}' of {where}"] = _plain(value, _DEPTH)
    return found


def _attributes(part: Any) -> dict[str, Any]:
    if isinstance(part, MethodType):
        return {} if isinstance(part.__self__, nn.Module) else _attributes(part.__self__)
    held = dict(getattr(part, "__dict__", {}))
    if isinstance(part, FunctionType):
        for name, cell in zip(part.__code__.co_freevars, part.__closure__ or (), strict=True):
            try:
                held[name] = cell.cell_contents
            except ValueError:  # not set yet
                continue
    return held


def _plain(value: Any, depth: int) -> Any:
    # what can be compared; None for tensors, modules and what is nested too deep
    if isinstance(value, int | float | str | bytes):
        return repr(value)  # in which NaN equals itself
    if depth == 0 or isinstance(value, Tensor | nn.Module | type):
        return None
    if isinstance(value, Mapping):
        return [(_plain(k, depth - 1), _plain(v, depth - 1)) for k, v in value.items()]
    if isinstance(value, tuple | list | set | frozenset):
        return [_plain(v, depth - 1) for v in value]
    return {name: _plain(v, depth - 1) for name, v in _attributes(value).items()} or None
