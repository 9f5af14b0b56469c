"""A method as plain data, so that a server can tell its clients what runs: no pickles, nothing is executed.

Every dataclass is its importable name and its fields; numbers are exact. Only names of packages that the reader
trusts are looked up (`fedsolve` and `optax`, and what a client adds), and only dataclasses, tuples with named
fields and functions are accepted there.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import inspect
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from fedsolve.algorithm import Algorithm
from fedsolve.errors import InvalidInput

TRUSTED = ("fedsolve", "optax")
"""Packages whose methods, rules, sets and functions a client builds when a server names them."""

_PLAIN = (str, bool, int, float, type(None))


def to_spec(value: Any) -> Any:
    """A method, or anything that it is made of, as JSON data.

    Raises:
        InvalidInput: something in it has no importable name (a lambda, a class made inside a function).

    >>> from fedsolve import rules
    >>> to_spec(rules.ServerSGD(0.5))["fields"]
    {'lr': 0.5, 'momentum': None, 'ema': False}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_spec(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return {"class": _name(type(value)), "fields": fields}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        return {"array": data, "dtype": str(array.dtype), "shape": list(array.shape)}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple) and (names := getattr(value, "_fields", None)) is not None:
        fields = {name: to_spec(v) for name, v in zip(names, value, strict=True)}
        return {"class": _name(type(value)), "fields": fields}
    if isinstance(value, tuple | list):
        return {type(value).__name__: [to_spec(v) for v in value]}
    if isinstance(value, Mapping):
        return {"dict": [[to_spec(k), to_spec(v)] for k, v in value.items()]}
    if callable(value):
        return {"function": _name(value)}
    raise InvalidInput(
        f"{value!r} cannot be told to clients: build the method from numbers, arrays and classes"
    )


def from_spec(spec: Any, trusted: Collection[str] = TRUSTED) -> Any:
    """What `to_spec` described.

    Raises:
        InvalidInput: a name outside the trusted packages, one that is missing here, or no description at all.
    """
    if isinstance(spec, _PLAIN):
        return spec
    if isinstance(spec, Mapping):
        if "class" in spec:
            fields = {name: from_spec(v, trusted) for name, v in spec["fields"].items()}
            return _build(_find(spec["class"], trusted), fields)
        if "array" in spec:
            data = np.frombuffer(base64.b64decode(spec["array"]), np.dtype(spec["dtype"]))
            return data.reshape(spec["shape"])
        if "function" in spec:
            return _find(spec["function"], trusted)
        if "dict" in spec:
            return {from_spec(k, trusted): from_spec(v, trusted) for k, v in spec["dict"]}
        for name, kind in (("tuple", tuple), ("list", list)):
            if name in spec:
                return kind(from_spec(v, trusted) for v in spec[name])
    raise InvalidInput("the server sent no method that can be read: another version of fedsolve?")


def method_from_spec(spec: Any, trusted: Collection[str] = TRUSTED) -> Algorithm:
    """A method that a server described; `InvalidInput` if it is none."""
    found = from_spec(spec, trusted)
    if not isinstance(found, Algorithm):
        raise InvalidInput(f"the server described a {type(found).__name__}, not a method")
    return found


def _build(cls: Any, fields: dict[str, Any]) -> Any:
    if not (inspect.isclass(cls) and (dataclasses.is_dataclass(cls) or hasattr(cls, "_fields"))):
        raise InvalidInput(f"the server names {cls!r} as a part of its method: it is no part of one")
    try:
        return cls(**fields)
    except TypeError as error:
        raise InvalidInput(
            f"{cls.__name__} of the server differs from ours: {error}; same version?"
        ) from None


def _name(value: Any) -> str:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "<")
    if module is None or "<" in name:
        raise InvalidInput(f"{value!r} has no importable name: clients cannot find it; define it in a module")
    return f"{module}:{name}"


def _find(name: str, trusted: Collection[str]) -> Any:
    module, _, qualname = str(name).partition(":")
    if module.partition(".")[0] not in trusted:
        raise InvalidInput(
            f"the server's method needs {module}, which this client does not trust: "
            f"client_app(..., trusted=('{module.partition('.')[0]}',)) would"
        )
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        raise InvalidInput(f"the server's method needs {name}, which is not installed here") from None
    theirs = getattr(found, "__module__", "").partition(".")[0]  # not what a trusted module merely imports
    if theirs not in trusted or not (inspect.isclass(found) or inspect.isfunction(found)):
        raise InvalidInput(f"the server names {name} as a part of its method: it is no part of one")
    return found
