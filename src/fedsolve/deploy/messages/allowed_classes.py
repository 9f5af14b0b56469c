"""What a server may name to a client: parts of methods, and optax's optimisers. Nothing else is looked up or called.

The table is made here, from this installation alone; a name that comes with an order is only ever searched in it.
A value is checked against its field's annotation. An array does not pass for a number: elsewhere it does, since a trace
may have made it, and keeps its range to itself; from a server it would be a way around the checks.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import importlib
import inspect
import pkgutil
import types
from collections.abc import Callable, Collection, Mapping
from functools import cache
from numbers import Integral, Real
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import jaxtyping
import numpy as np

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput
from fedsolve.core.optax_bridge import Transformation
from fedsolve.core.schedules import Schedule
from fedsolve.geometry import Block, Blocks, Mirror, Regularizer
from fedsolve.geometry.blocks import ArrayFunction
from fedsolve.methods.attacks import Attack
from fedsolve.methods.client.solver import LocalSolver
from fedsolve.methods.compression.compressors import Compressor
from fedsolve.methods.frank_wolfe import FrankWolfeSteps, SplitSets
from fedsolve.methods.robust.vectors import Reduction
from fedsolve.methods.server.server_optimizer import ServerOptimizer


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
    """Whether a value is of a kind: of no kind that is not known."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return any(fits(value, part) for part in parts[1:])
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(word) and value == word for word in parts)
    if origin is tuple:
        return isinstance(value, tuple) and _each(value, parts)
    if origin in (dict, collections.abc.Mapping):
        return isinstance(value, Mapping) and all(
            fits(k, parts[0]) and fits(v, parts[1]) for k, v in value.items()
        )
    if origin is collections.abc.Callable:
        return callable(value)
    return isinstance(hint, type) and hint is not Any and _is_a(value, hint)


def _each(values: tuple[Any, ...], parts: tuple[Any, ...]) -> bool:
    if parts[-1] is ...:
        return all(fits(value, parts[0]) for value in values)
    return len(values) == len(parts) and all(map(fits, values, parts))


def _is_a(value: Any, kind: type) -> bool:
    """Whether a value is of a class; True and False are no numbers."""
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
    """Raise `InvalidInput` unless the values for a class are of the kinds that its fields are annotated with.

    Of a class of the client's own, whose annotations may say anything, those that are known are checked.
    """
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
    """A client's own classes and functions that a server may name, by `name_of`.

    Raises:
        InvalidInput: one that is neither a dataclass nor a function, such as the name of a package.
    """
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
    """The name under which a class or function is sent: of this package's own without the module, which may move.

    Raises:
        InvalidInput: it has none (a lambda, a class made inside a function).
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "<")
    if module is None or "<" in name:
        raise InvalidInput(f"{value!r} has no importable name: clients cannot find it; define it in a module")
    return f"{'fedsolve' if module.startswith('fedsolve.') else module}:{name}"


def optimiser(name: Any) -> Callable[..., Any]:
    """The optimiser of optax with this name; `InvalidInput` if it is none."""
    if name not in OPTIMISERS:
        raise InvalidInput(f"{str(name)[:80]!r} is not an optax optimiser that clients know")
    return _found(name)


def optimiser_name(function: Any) -> str | None:
    """The name of an optimiser of optax, None for anything else."""
    return next((name for name in OPTIMISERS if _found(name) is function), None)


def _found(name: str) -> Any:
    """An optimiser of optax, or of what others have contributed to it; None in a version without it."""
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
    plain = (str, bool, int, float, type(None))
    return (
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], plain)
    )
