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
from fedsolve.config.references import is_reference
from fedsolve.config.schedule_names import OptaxSchedule
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.building import record_of
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


def call_text(name: str, settings: Mapping[str, Any]) -> str:
    """A method as a person writes it, from its name and settings as plain data.

    >>> call_text("FedAvg", {"client_lr": 0.1, "server_lr": {"schedule": "inverse_sqrt", "initial": 0.2}})
    'FedAvg(client_lr=0.1, server_lr=inverse_sqrt(initial=0.2))'
    """
    return f"{name}({', '.join(f'{key}={_text(value)}' for key, value in settings.items())})"


def changed_settings(name: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A method of the catalogue as `call_text` writes it, and those of some settings that are not its own.

    Settings with their default are left out. Of a user's own method nothing is known: all settings come back.

    >>> changed_settings("FedAvg", {"client_lr": 0.3, "server_lr": 1.0, "rounds": 9})
    ('FedAvg(client_lr=0.3)', {'rounds': 9})
    """
    wrappers = name.split("+")
    if any(is_reference(part) for part in wrappers):
        return name, dict(settings)
    try:
        known = arguments(name)
    except FedsolveError:  # a label, or a method of another version
        return name, dict(settings)
    own = {key: value for key, value in settings.items() if key in known}
    changed = {key: value for key, value in own.items() if _text(value) != _text(known[key].default)}
    return call_text(name, changed), {key: value for key, value in settings.items() if key not in known}


def _text(value: Any) -> str:
    """A setting as in a call."""
    if isinstance(value, Mapping):
        parts = dict(value)
        name = parts.pop("name", parts.pop("schedule", "dict"))
        return call_text(str(name), parts)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, float):
        return f"{value:.10g}"
    return f"{value:g}" if isinstance(value, np.number) else str(value)


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
