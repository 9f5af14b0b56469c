"""A method as plain data, so that a server can tell its clients what runs: no pickles, nothing is executed.

Every dataclass is its name and its fields; numbers are exact. A reader builds only what `allowed_classes` lists
and what its owner trusts: no name that it reads is ever imported, looked up elsewhere or called.
"""

from __future__ import annotations

import base64
import collections.abc
import dataclasses
import importlib
import inspect
import math
import pkgutil
import types
from collections.abc import Callable, Collection, Mapping
from functools import cache
from numbers import Integral, Real
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import jaxtyping
import numpy as np

from fedsolve.config import signatures
from fedsolve.config.build import Form
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import FedsolveError, InvalidInput, of_type
from fedsolve.core.optax_bridge import Transformation
from fedsolve.core.schedules import Schedule
from fedsolve.core.types import is_module
from fedsolve.geometry import Block, Blocks, Mirror, Regularizer
from fedsolve.geometry.blocks import ArrayFunction
from fedsolve.methods.attacks import Attack
from fedsolve.methods.client.solver import LocalSolver
from fedsolve.methods.compression.compressors import Compressor
from fedsolve.methods.frank_wolfe import FrankWolfeSteps, SplitSets
from fedsolve.methods.robust.vectors import Reduction
from fedsolve.methods.server.server_optimizer import ServerOptimizer

# What a server may name to a client: parts of methods, and optax's optimisers. Nothing else is looked up or called.
#
# The table is made here, from this installation alone; a name that comes with an order is only ever searched in it. A
# value is checked against its field's annotation. An array does not pass for a number: elsewhere it does, since a
# trace may have made it, and keeps its range to itself; from a server it would be a way around the checks.


class Number:
    """In the place of `Scalar`, which is `Any`: a number or None."""


class Numbers:
    """Arrays of numbers: one, a number, or lists, tuples and tables of such."""


_SET = Union[ArrayFunction, Blocks]  # noqa: UP007 (as a value)
_OF_NUMBERS = Union[Numbers, NoneType]  # noqa: UP007
_ANY: Mapping[str, Any] = {
    "SplitSets.sets": tuple[_SET, ...],
    "SplitSets.of_client": Numbers,
    "Transformation.values": dict[str, Union[Numbers, Schedule]],  # noqa: UP007
    "Transformation.options": tuple[tuple[str, object], ...],
    "Attacked.attackers": Numbers,
    "Colluding.attackers": Numbers,
    "DouglasRachford.psi": _SET,
    "FrankWolfe.constraint": _SET,
    "Box.lower": _OF_NUMBERS,
    "Box.upper": _OF_NUMBERS,
    "Quadratic.factor": _OF_NUMBERS,
    "Polytope.vertices": Numbers,
    "DifferentialPrivacy.renyi": _OF_NUMBERS,
    "DifferentialPrivacy.losses": _OF_NUMBERS,
    "NormClipping.bound": Union[Number, str],  # noqa: UP007
    "KeepsVersions.inner": Algorithm,
}
"""Fields that are annotated with `Any`, since they hold what no annotation says."""


@cache
def kinds_of(cls: type) -> Mapping[str, Any]:
    """What each field of a class may hold, by name; empty where its annotations cannot be resolved."""
    import optax

    names = {"Scalar": Number, "Rate": Union[Real, Schedule], "optax": optax}  # noqa: UP007
    try:
        hints = get_type_hints(cls, localns=names, include_extras=True)
    except Exception:  # of evaluated text of somebody's own class: any
        return MappingProxyType({})
    known = {name: _ANY.get(f"{cls.__name__}.{name}", hint) for name, hint in hints.items()}
    return MappingProxyType(known)


def is_known(hint: Any) -> bool:
    """Whether `fits` can say of a value whether it is of a kind."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return all(map(is_known, parts[1:]))
    if origin is Literal or origin is collections.abc.Callable:
        return True
    if origin in (Union, types.UnionType, tuple, dict, collections.abc.Mapping):
        return all(part is ... or is_known(part) for part in parts)
    return origin is None and isinstance(hint, type) and hint is not Any


def fits(value: Any, hint: Any) -> bool:
    return signatures.fits(value, hint, _is_a)


def _is_a(value: Any, kind: Any) -> bool:
    if not isinstance(kind, type) or kind is Any:
        return False
    if kind in _CHECKS:
        return _CHECKS[kind](value)
    if issubclass(kind, jaxtyping.AbstractArray):
        return isinstance(value, np.ndarray) and _numbers(value)
    return isinstance(value, kind)


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _numbers(value: Any) -> bool:
    if isinstance(value, Mapping | list | tuple):
        return all(map(_numbers, value.values() if isinstance(value, Mapping) else value))
    return _number(value) or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf")


_CHECKS: Mapping[type, Callable[[Any], bool]] = {
    Number: lambda value: value is None or _number(value),
    Numbers: _numbers,
    jaxtyping.PyTree: _numbers,
    Real: _number,
    float: _number,
    int: lambda value: isinstance(value, Integral) and not isinstance(value, bool),
}


_METHODS = (Algorithm, ServerOptimizer, LocalSolver, Schedule, Reduction, FrankWolfeSteps, Compressor)
_ROOTS = (*_METHODS, Regularizer, Mirror)
_PARTS = (Block, Blocks, SplitSets, Attack, Transformation)
_PACKAGES = ("methods", "geometry")

OPTIMISERS = (
    "acprop", "adabelief", "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan",
    "ademamix", "adopt", "amsgrad", "cocob", "dadapt_adamw", "dog", "dowg", "fromage", "galore", "lamb",
    "lars", "lbfgs", "lion", "madgrad", "momo", "momo_adam", "muon", "nadam", "nadamw", "noisy_sgd",
    "novograd", "optimistic_adam", "optimistic_adam_v2", "optimistic_gradient_descent", "polyak_sgd",
    "prodigy", "radam", "rmsprop", "rprop", "schedule_free_adamw", "schedule_free_sgd", "sgd", "sign_sgd",
    "signum", "simplified_ademamix", "sm3", "sophia", "yogi",
)  # fmt: skip
"""Functions of optax that a method may be made with in a deployment."""


@cache
def classes() -> Mapping[str, type]:
    """Every class of this package that a method can consist of, by `name_of`."""
    names = ["fedsolve.core.schedules", "fedsolve.config.schedule_names"]
    for name in _PACKAGES:
        package = importlib.import_module(f"fedsolve.{name}")
        names += [entry.name for entry in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    table: dict[str, type] = {name_of(cls): cls for cls in _PARTS}
    for name in names:
        here = [x for x in vars(importlib.import_module(name)).values() if inspect.isclass(x)]
        made = [cls for cls in here if cls.__module__ == name and dataclasses.is_dataclass(cls)]
        table |= {name_of(c): c for c in made if issubclass(c, _ROOTS) and not inspect.isabstract(c)}
    return MappingProxyType(table)


def check_fields(cls: type, given: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` unless the values for a class are of the kinds that its fields are annotated with."""
    # Of a class of the client's own, whose annotations may say anything, those that are known are checked.
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    kinds, ours = kinds_of(cls), cls in classes().values()
    for name, value in given.items():
        if name not in fields:
            raise InvalidInput(
                f"{cls.__name__} of the server has {name[:80]!r}, this client's has not: is it the same version?"
            )
        kind = kinds.get(name)
        if (ours or is_known(kind)) and not fits(value, kind):
            raise InvalidInput(
                f"{cls.__name__} of the server has {name} of type {type(value).__name__}, this client's takes "
                f"{fields[name].type}: same version?"
            )


def trusted_parts(trusted: Collection[Any]) -> dict[str, Any]:
    """A client's own classes and functions that a server may name, by `name_of`."""
    if isinstance(trusted, str) or not isinstance(trusted, Collection):
        raise InvalidInput(
            f"trusted = {trusted!r} must be classes and functions, such as (MyMethod, MyServerOptimizer)"
        )
    for part in trusted:
        if not (inspect.isfunction(part) or (inspect.isclass(part) and dataclasses.is_dataclass(part))):
            raise InvalidInput(
                f"trusted: {part!r} must be a dataclass or a function itself, such as MyMethod: names and packages "
                "would let a server choose what runs here"
            )
    return {name_of(part): part for part in trusted}


def name_of(value: Any) -> str:
    """The name under which a class or function is sent: of this package's own without the module, which may move."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "<")
    if module is None or "<" in name:
        raise InvalidInput(f"{value!r} has no importable name: clients cannot find it; define it in a module")
    return f"{'fedsolve' if module.startswith('fedsolve.') else module}:{name}"


def optimiser(name: Any) -> Callable[..., Any]:
    if name not in OPTIMISERS:
        raise InvalidInput(f"{str(name)[:80]!r} is not an optax optimiser that clients know")
    return _found(name)


def _found(name: str) -> Any:
    # An optimiser of optax, or of what others have contributed to it; None in a version without it.
    import optax

    return getattr(optax, name, None) or getattr(optax.contrib, name, None)


def check_arguments(factory: Callable[..., Any], values: Any, options: Any) -> None:
    """Raise `InvalidInput` unless these are an optimiser's arguments: its own names, and plain values as options."""
    known = inspect.signature(factory).parameters
    pairs = options if isinstance(options, tuple) else None
    if not isinstance(values, Mapping) or pairs is None or any(not _is_option(pair) for pair in pairs):
        raise InvalidInput("the server's optimiser has arguments that are not plain values")
    for name in (*values, *(name for name, _ in pairs)):
        if name not in known:
            raise InvalidInput(f"the server's optimiser has no argument {str(name)[:80]!r}")


def _is_option(pair: Any) -> bool:
    is_pair = isinstance(pair, tuple) and len(pair) == 2
    return is_pair and isinstance(pair[0], str) and isinstance(pair[1], _PLAIN)


_PLAIN = (str, bool, int, float, type(None))
_DTYPES = {"bool", "float16", "float32", "float64"} | {
    f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)
}
_DEPTH = 64
"""How deep a description may be nested; wrappers around wrappers come to about 20."""
_DIMENSIONS = 8


def to_spec(value: Any) -> Any:
    """A method, or anything that it is made of, as JSON data.

    `InvalidInput` if something in it has no importable name (a lambda, a class made inside a function), or is a
    function of optax that clients do not know.

    >>> from fedsolve import server
    >>> to_spec(server.ServerSGD(0.5))["fields"]
    {'lr': 0.5, 'momentum': None, 'ema': False, 'nesterov': False}
    """
    return _Spec().of(value)


class _Spec(Form):
    def object(self, value: Any) -> Any:
        if not is_module(value):
            return self.other(value)
        fields = {f.name: self.of(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return {"class": name_of(type(value)), "fields": fields}

    def array(self, value: Any) -> Any:
        array = np.asarray(value)
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        return {"array": data, "dtype": str(array.dtype), "shape": list(array.shape)}

    def sequence(self, value: Any) -> Any:
        # a named tuple would come back as a plain one
        is_plain = type(value) in (tuple, list)
        return {type(value).__name__: super().sequence(value)} if is_plain else self.other(value)

    def table(self, value: Any) -> Any:
        return {"dict": [[self.of(k), self.of(v)] for k, v in value.items()]}

    def other(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self.table(value)
        if not callable(value):
            raise InvalidInput(
                f"{value!r} cannot be sent to clients: build the method from numbers, arrays and classes"
            )
        for known in OPTIMISERS:
            if _found(known) is value:
                return {"optax": known}
        name = name_of(value)
        if name.startswith("optax."):
            raise InvalidInput(
                f"{name} is not an optimiser that clients know: wrap it in a function of your own"
            )
        return {"function": name}


def from_spec(spec: Any, trusted: Collection[Any] = ()) -> Any:
    """What `to_spec` described, whoever wrote it; `trusted` may be built and called besides this package's own."""
    return _read(spec, trusted_parts(trusted), 0)


def method_from_spec(spec: Any, trusted: Collection[Any] = ()) -> Algorithm:
    """A method that a server described; `InvalidInput` if it is none, whatever else it is."""
    method = from_spec(spec, trusted)
    if not isinstance(method, Algorithm):
        raise InvalidInput(f"the server described {of_type(method)}, not a method")
    return method


def solver_from_spec(spec: Any, trusted: Collection[Any] = ()) -> LocalSolver:
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
    # What a server wrote, as it may stand in a log.
    return repr(str(text)[:most])
