"""What a field of a method may hold when a server says it: its annotation, resolved, and a check of a value against it.

An array does not pass for a number: elsewhere it does, since a trace may have made it, and keeps its range to itself;
from a server it would be a way around the checks.
"""

from __future__ import annotations

import collections.abc
import types
from collections.abc import Callable, Mapping
from functools import cache
from numbers import Integral, Real
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import jaxtyping
import numpy as np

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.schedules import Schedule
from fedsolve.geometry.blocks import Blocks
from fedsolve.geometry.operations import ArrayFunction


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
