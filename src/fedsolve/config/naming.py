"""A method as the catalogue has it: the name and the settings, as a configuration writes them, that build it again.

A method does not know how it was made. Its settings are looked for among the values that it holds: each argument of
the builder takes the value with which the most of what is built is the same. What is found is built once more from
its plain form and must be equal in every part: no name is better than a wrong one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from fedsolve.config.build import arguments, build, example_of
from fedsolve.config.signature_types import choices
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import FedsolveError
from fedsolve.core.schedules import SCHEDULES
from fedsolve.core.types import is_module
from fedsolve.geometry.blocks import Block, Blocks

_PLAIN = (bool, int, float, str)
_PASSES = 2  # an argument whose effect depends on a later one is tried again


def named(algorithm: Algorithm) -> tuple[str, dict[str, Any]] | None:
    """The name and the settings, plain data, of which `build` makes an equal method; None if none do.

    >>> import fedsolve as fs
    >>> named(fs.FedAdam(0.05, tau=1e-4))
    ('FedAdam', {'client_lr': 0.05, 'tau': 0.0001})
    """
    target = dict(_parts(algorithm))
    for name in (name_of(algorithm), f"{name_of(algorithm)}+FedAvg"):
        try:
            settings = {key: to_plain(value) for key, value in _settings(name, algorithm, target).items()}
            if dict(_parts(build(name, settings))) == target:
                return name, settings
        except (FedsolveError, TypeError, ValueError):  # no such name, or settings that its builder refuses
            continue
    return None


def to_plain(value: Any) -> Any:
    """A setting as `fedsolve.config.config_objects.from_plain` reads it.

    Raises:
        ValueError: no plain data stand for it.
    """
    if isinstance(value, np.ndarray | np.generic | jax.Array) and np.ndim(value) == 0:
        value = np.asarray(value).item()
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list):
        return [to_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {str(key): to_plain(part) for key, part in value.items()}
    if isinstance(value, Blocks):
        parts = [_block(part) for part in value.parts]
        return parts[0] if len(parts) == 1 else parts
    if not is_module(value):
        raise ValueError(f"no plain data stand for {type(value).__name__}")
    given = {
        f.name: getattr(value, f.name)
        for f in dataclasses.fields(value)  # pyright: ignore[reportArgumentType]
        if f.init
    }
    fields = {key: to_plain(part) for key, part in given.items() if part is not None}
    for name, schedule in SCHEDULES.items():
        if type(value) is schedule:
            return {"schedule": name, **fields}
    return {"name": type(value).__name__, **fields}


def _block(part: Block) -> dict[str, Any]:
    return to_plain(part.psi) | ({} if part.together else {"on": part.pattern})


def _settings(name: str, algorithm: Algorithm, target: dict[str, str]) -> dict[str, Any]:
    """The settings that differ from the defaults, objects as they are, by the values that the method holds."""
    held = list({_leaf(value): value for value in _values(algorithm)}.values())
    found = example_of(name)
    alike = _alike(target, name, found)
    for _ in range(_PASSES):
        for key, argument in arguments(name).items():
            for value in (*held, *choices(argument.hint)):
                if alike == len(target):
                    return found
                tried = found | {key: value}
                if (score := _alike(target, name, tried)) > alike:
                    found, alike = tried, score
    return found


def _alike(target: dict[str, str], name: str, settings: Mapping[str, Any]) -> int:
    """How many parts of what is built are the target's, less those that are not; very few where nothing is built."""
    try:
        parts = dict(_parts(build(name, settings)))
    except Exception:  # a value of another argument's, of any type
        return -(2**31)
    same = sum(target.get(place) == part for place, part in parts.items())
    return 2 * same - len(parts)


def _parts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Every part of a method: its place and what it is, exactly."""
    if is_module(value) or isinstance(value, tuple | list):
        yield f"{place}:", type(value).__name__
        fields = (
            enumerate(value)
            if isinstance(value, tuple | list)
            else [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
        )
        for key, part in fields:
            yield from _parts(part, f"{place}.{key}")
    else:
        yield place, _leaf(value)


def _leaf(value: Any) -> str:
    """A value in words that no other has; of what is no data, its identity."""
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        return f"{array.dtype} {array.tolist()!r}" if array.ndim else repr(array.item())
    if value is None or isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, Mapping):
        return repr({key: _leaf(part) for key, part in value.items()})
    return f"{type(value).__name__} at {id(value)}"


def _values(value: Any) -> Iterator[Any]:
    """Everything that a method holds, itself last."""
    if is_module(value):
        for field in dataclasses.fields(value):
            yield from _values(getattr(value, field.name))
    elif isinstance(value, tuple | list | Mapping):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _values(part)
    yield value
