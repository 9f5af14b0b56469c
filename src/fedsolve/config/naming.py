"""A method as a configuration writes it: the name and the settings, plain data, that build it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedsolve.config.build import arguments, build
from fedsolve.config.catalogue import split_name
from fedsolve.config.config_objects import registries
from fedsolve.config.schedule_names import OptaxSchedule
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.building.build_record import record_of
from fedsolve.core.errors import FedsolveError
from fedsolve.geometry.blocks import Blocks


def named(algorithm: Algorithm) -> tuple[str, dict[str, Any]] | None:
    """The name and the settings, plain data, of which `build` makes an equal method; None if none do.

    They are those that the method's builder recorded. What they build must be equal in every part: no name is better
    than a wrong one.

    >>> import fedsolve as fs
    >>> named(fs.FedAdam(0.05, tau=1e-4))
    ('FedAdam', {'client_lr': 0.05, 'tau': 0.0001})
    """
    try:
        name, settings = _recorded(algorithm)
        return (name, settings) if _is_equal(build(name, settings), algorithm) else None
    except (
        FedsolveError,
        TypeError,
        ValueError,
    ):  # settings without plain data, or that no builder takes together
        return None


def to_plain(value: Any) -> Any:
    """A setting as `fedsolve.config.config_objects.from_plain` reads it.

    Raises:
        ValueError: no plain data stand for it.
    """
    if isinstance(value, np.ndarray | np.generic | jax.Array) and np.ndim(value) == 0:
        value = np.asarray(value).item()
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [to_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {str(key): to_plain(part) for key, part in value.items()}
    if isinstance(value, Blocks):
        tables = [
            to_plain(part.psi) | ({} if part.together else {"on": part.pattern}) for part in value.parts
        ]
        return tables[0] if len(tables) == 1 else tables
    if isinstance(value, OptaxSchedule):
        return value.table
    for registry in registries().values():
        if (name := registry.name_of(value)) is not None:
            return {registry.key: name, **_fields(value)}
    raise ValueError(f"no plain data stand for {type(value).__name__}")


def _recorded(algorithm: Algorithm) -> tuple[str, dict[str, Any]]:
    """The name and the settings of which a method was made, wrappers outermost.

    Raises:
        ValueError: it or what it wraps has no record, or no plain data stand for a setting.
    """
    made = record_of(algorithm)
    if made is None:
        raise ValueError(f"nothing recorded how {name_of(algorithm)} was made")
    options = dict(made.options)
    inner, name, settings = options.pop("inner", None), made.name, {}
    if inner is not None:
        inside, settings = _recorded(inner)
        name = name if split_name(name) == (name, inside) else f"{name}+{inside}"
    known = arguments(name)
    changed = {key: value for key, value in options.items() if not _same(value, known[key].default)}
    return name, {key: to_plain(value) for key, value in changed.items()} | settings


def _fields(value: Any) -> dict[str, Any]:
    """The fields that a module was given, as `from_plain` reads them."""
    given = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init]
    return {name: to_plain(part) for name, part in given if part is not None}


def _same(value: Any, default: Any) -> bool:
    """Whether a value and a default are the same plain data, or both None."""
    if value is None or default is None:
        return value is default
    try:
        return repr(to_plain(value)) == repr(to_plain(default))
    except ValueError:
        return False


def _is_equal(one: Algorithm, other: Algorithm) -> bool:
    """Whether two methods are equal in every part."""
    (leaves, structure), (others, other_structure) = jax.tree.flatten(one), jax.tree.flatten(other)
    return structure == other_structure and all(map(np.array_equal, leaves, others))
