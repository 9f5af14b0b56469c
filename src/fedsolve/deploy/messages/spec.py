"""A method as plain data, so that a server can tell its clients what runs: no pickles, nothing is executed.

Every dataclass is its name and its fields; numbers are exact. A reader builds only what `allowed_classes` lists
and what its owner trusts: no name that it reads is ever imported, looked up elsewhere or called.
"""

from __future__ import annotations

import base64
import dataclasses
import inspect
import math
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import FedsolveError, InvalidInput, of_type
from fedsolve.core.optax_bridge import Transformation
from fedsolve.core.types import is_module
from fedsolve.deploy.messages.allowed_classes import (
    check_arguments,
    check_fields,
    classes,
    name_of,
    optimiser,
    optimiser_name,
    trusted_parts,
)
from fedsolve.methods.client.solver import LocalSolver

_PLAIN = (str, bool, int, float, type(None))
_DTYPES = {"bool", "float16", "float32", "float64"} | {
    f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)
}
_DEPTH = 64
"""How deep a description may be nested; wrappers around wrappers come to about 20."""
_DIMENSIONS = 8


def to_spec(value: Any) -> Any:
    """A method, or anything that it is made of, as JSON data.

    Raises:
        InvalidInput: something in it has no importable name (a lambda, a class made inside a function), or is a
            function of optax that clients do not know.

    >>> from fedsolve import server
    >>> to_spec(server.ServerSGD(0.5))["fields"]
    {'lr': 0.5, 'momentum': None, 'ema': False, 'nesterov': False}
    """
    if is_module(value):
        inits = [f.name for f in dataclasses.fields(value) if f.init]
        fields = {name: to_spec(getattr(value, name)) for name in inits}
        return {"class": name_of(type(value)), "fields": fields}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        return {"array": data, "dtype": str(array.dtype), "shape": list(array.shape)}
    if isinstance(value, _PLAIN):
        return value
    if type(value) in (tuple, list):
        return {type(value).__name__: [to_spec(v) for v in value]}
    if isinstance(value, Mapping):
        return {"dict": [[to_spec(k), to_spec(v)] for k, v in value.items()]}
    if callable(value) and (known := optimiser_name(value)) is not None:
        return {"optax": known}
    if callable(value):
        name = name_of(value)
        if name.startswith("optax."):
            raise InvalidInput(
                f"{name} is not an optimiser that clients know: wrap it in a function of your own"
            )
        return {"function": name}
    raise InvalidInput(
        f"{value!r} cannot be sent to clients: build the method from numbers, arrays and classes"
    )


def from_spec(spec: Any, trusted: Collection[Any] = ()) -> Any:
    """What `to_spec` described.

    Args:
        spec: JSON data, whoever wrote it.
        trusted: dataclasses and functions that may be built and called besides this package's own.

    Raises:
        InvalidInput: a part that is not known here, values that it refuses, or no description at all.
    """
    return _read(spec, trusted_parts(trusted), 0)


def method_from_spec(spec: Any, trusted: Collection[Any] = ()) -> Algorithm:
    """A method that a server described; `InvalidInput` if it is none, whatever else it is."""
    method = from_spec(spec, trusted)
    if not isinstance(method, Algorithm):
        raise InvalidInput(f"the server described {of_type(method)}, not a method")
    return method


def solver_from_spec(spec: Any, trusted: Collection[Any] = ()) -> LocalSolver:
    """A local solver that a server described; `InvalidInput` if it is none."""
    solver = from_spec(spec, trusted)
    if not isinstance(solver, LocalSolver):
        raise InvalidInput(f"the server described {of_type(solver)}, not a local solver")
    return solver


def _read(spec: Any, trusted: Mapping[str, Any], depth: int) -> Any:
    if isinstance(spec, _PLAIN):
        if isinstance(spec, int) and abs(spec) >= 2**63:
            raise InvalidInput("the server's method has an integer of more than 64 bits")
        return spec
    if depth > _DEPTH:
        raise InvalidInput(f"the server's method is nested more than {_DEPTH} deep")
    match spec:
        case {"class": str(name), "fields": dict(fields), **rest} if not rest:
            return _build(name, fields, trusted, depth)
        case {"array": str(data), "dtype": str(dtype), "shape": list(shape), **rest} if not rest:
            return _array(data, dtype, shape)
        case {"function": str(name), **rest} if not rest and inspect.isfunction(trusted.get(name)):
            return trusted[name]
        case {"dict": list(pairs), **rest} if not rest and all(map(_is_named, pairs)):
            return {name: _read(value, trusted, depth + 1) for name, value in pairs}
        case {"tuple": list(items), **rest} if not rest:
            return tuple(_read(item, trusted, depth + 1) for item in items)
        case {"list": list(items), **rest} if not rest:
            return [_read(item, trusted, depth + 1) for item in items]
        case {"function": str(name), **rest} if not rest:
            raise _unknown(name)
    raise InvalidInput("the server's method cannot be read: another version of fedsolve?")


def _build(name: str, fields: dict[Any, Any], trusted: Mapping[str, Any], depth: int) -> Any:
    cls: Any = trusted.get(name, classes().get(name))
    if not inspect.isclass(cls):
        raise _unknown(name)
    factory = fields.get("factory") if cls is Transformation else None
    if isinstance(factory, dict) and list(factory) == ["optax"]:
        given = {n: _read(v, trusted, depth + 1) for n, v in fields.items() if n != "factory"}
        given["factory"] = optimiser(factory["optax"])
        check_arguments(given["factory"], given.get("values"), given.get("options", ()))
    else:
        given = {n: _read(v, trusted, depth + 1) for n, v in fields.items()}
    check_fields(cls, given)
    try:
        return cls(**given)
    except FedsolveError:
        raise
    except Exception as error:  # a value of a kind that its checks do not foresee
        raise InvalidInput(
            f"{cls.__name__} of the server differs from this client's: {_shown(str(error), 200)}; same version?"
        ) from None


def _array(data: str, dtype: str, shape: list[Any]) -> Any:
    sizes = all(type(n) is int and 0 <= n < 2**31 for n in shape) and len(shape) <= _DIMENSIONS
    try:
        content = base64.b64decode(data, validate=True)
    except ValueError:
        content = None
    if content is None or dtype not in _DTYPES or not sizes:
        raise InvalidInput("the server's method has an array that cannot be read")
    if len(content) != math.prod(shape) * np.dtype(dtype).itemsize:
        raise InvalidInput("the server's method has an array of another size than it says")
    # a scalar is a number again, so that it is checked as one
    return np.frombuffer(content, dtype).reshape(shape)[()]


def _is_named(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)


def _unknown(name: str) -> InvalidInput:
    return InvalidInput(
        f"the server's method needs {_shown(name)}, which this client does not know: a class of yours must be in its "
        "client_app(..., trusted=(...))"
    )


def _shown(text: str, most: int = 100) -> str:
    """What a server wrote, as it may stand in a log."""
    return repr(str(text)[:most])
