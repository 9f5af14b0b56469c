"""What a module or a loss remembers in Python: numbers, words and containers of them, no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

_DEPTH = 4  # of containers and objects within each other


def remembered_by(module: nn.Module, loss: Any) -> dict[str, Any]:
    """Values that are equal as long as nothing changes, by what errors call them.

    Args:
        module: its attributes and those of its parts.
        loss: a module, a function with what it closes over, or an object with attributes.
    """
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
    """What can be compared of a value; None for tensors, modules and what is too deep."""
    if isinstance(value, int | float | str | bytes):
        return repr(value)  # in which NaN equals itself
    if depth == 0 or isinstance(value, Tensor | nn.Module | type):
        return None
    if isinstance(value, Mapping):
        return [(_plain(k, depth - 1), _plain(v, depth - 1)) for k, v in value.items()]
    if isinstance(value, tuple | list | set | frozenset):
        return [_plain(v, depth - 1) for v in value]
    return {name: _plain(v, depth - 1) for name, v in _attributes(value).items()} or None
