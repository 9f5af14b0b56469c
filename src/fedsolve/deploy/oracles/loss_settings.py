"""What decides what a loss or a layer computes besides parameters and data: the settings that it was made with.

What a function closes over is left out: that may be a site's own by intent, such as frequencies of its classes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import numpy as np

_PLAIN = (bool, int, float, complex, str, type(None))
_DECIDES_NOTHING = ("training", "inplace")  # how a part is used is told by what it does to buffers


def settings(
    function: Any, name: str, of_tensor: Callable[[Any], np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Numbers, texts and arrays that a function was made with, by name.

    They are the arguments of a `functools.partial`, the fields of a dataclass or a named tuple, the attributes and
    tensors of a PyTorch module and of its parts.

    Args:
        function: a loss.
        name: what it is called.
        of_tensor: the bytes of a PyTorch tensor.

    >>> settings(functools.partial(np.clip, a_min=0), "loss")
    {'loss: a_min': array('0', dtype='<U1')}
    """
    found = {}
    for path, value in _held(function):
        bytes_ = of_tensor(value.detach()) if of_tensor and hasattr(value, "detach") else value
        found |= {f"{name}: {path}": x for x in _array(bytes_)}
    return found


def layer_settings(module: Any) -> dict[str, np.ndarray]:
    """The kind and the settings of each layer of a PyTorch module that PyTorch itself defines.

    A user's own class may be called otherwise at another site, and its attributes be counters or places of files.
    """
    found = {}
    for path, layer in module.named_modules():
        if type(layer).__module__.startswith("torch.nn."):
            told = {"kind": type(layer).__name__, **_attributes(layer)}
            found |= {
                f"layer {path or 'of all'}: {name}": x for name, value in told.items() for x in _array(value)
            }
    return found


def _held(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What it was made with by path, what is in it before what is in that."""
    if isinstance(value, functools.partial):
        parts: dict[str, Any] = {**{str(i): a for i, a in enumerate(value.args)}, **value.keywords}
        yield from _held(value.func, path)
    elif hasattr(value, "named_modules"):
        parts = {**value._parameters, **value._buffers, **value._modules, **_attributes(value)}
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name, None) for f in fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        parts = value._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    else:
        if path:
            yield path, value
        return
    for name, part in parts.items():
        yield from _held(part, f"{path}.{name}" if path else name)


def _attributes(module: Any) -> dict[str, Any]:
    """A module's public attributes, without its parts and tensors."""
    return {n: v for n, v in vars(module).items() if n[0] != "_" and n not in _DECIDES_NOTHING}


def _array(value: Any) -> Iterator[np.ndarray]:
    """A setting as an array whose bytes tell it; none of what is no setting, such as a function."""
    if isinstance(value, _PLAIN):
        yield np.array(repr(value))
    elif isinstance(value, np.ndarray | np.generic | jax.Array):
        if (array := np.array(value)).dtype != object:
            yield array
    elif isinstance(value, tuple | list) and all(isinstance(x, _PLAIN) for x in value):
        yield np.array(repr(tuple(value)))
