"""Values of `--set`, and what a method's settings may be: numbers, choices and rates by round."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from fedsolve.config.config_objects import from_plain
from fedsolve.config.references import is_reference
from fedsolve.config.signature_types import checked, choices, given_types
from fedsolve.core.errors import InvalidInput, unknown

_TEXT = re.compile(r"[A-Za-z_][\w.+:/@~-]*|(?:~|\.{0,2}/).*")
"""A word, a reference, an address or a path: no number, table or list of TOML begins so."""


def parse_assignments(texts: Sequence[str], option: str) -> dict[str, Any]:
    """`key=value` texts as a table; values are TOML, and a bare word or path is a text.

    Raises:
        InvalidInput: no `=`, a value that is not TOML, or a key that comes twice.

    >>> parse_assignments(["alpha=0.1", "model=mlp", "path=/my data", "partition={name='shards'}"], "--task-set")
    {'alpha': 0.1, 'model': 'mlp', 'path': '/my data', 'partition': {'name': 'shards'}}
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise InvalidInput(f"{option} {text!r} must be written key=value")
        if key in found:
            raise InvalidInput(f"{option} {key} is given twice")
        found[key] = parse_value(value, f"{option} {key}")
    return found


def parse_value(text: str, where: str) -> Any:
    """One value as TOML, a bare word or path as text; `InvalidInput` names `where` it stands."""
    try:
        table = tomllib.loads(f"value = {text}")
        if len(table) == 1:
            check_integers(where, table["value"])
            return table["value"]
    except InvalidInput:
        raise
    except (ValueError, RecursionError):  # also Python's of a number of thousands of digits
        if _TEXT.fullmatch(text):
            return text
    shown = repr(text if len(text) < 80 else f"{text[:76]} ...")
    raise InvalidInput(
        f"{where} = {shown} is not a value: give a number, a text in quotes, true, false or {{...}}"
    )


def check_integers(where: str, value: Any) -> None:
    """Raise `InvalidInput` if an integer in plain data has more than the 64 bits that TOML gives it."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidInput(f"{where}: an integer of {value.bit_length()} bits is too large: 64 are the most")
    parts = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, part in parts:
        check_integers(f"{where}: {key}" if isinstance(key, str) else where, part)


def resolve_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A method's settings with its defaults filled in; what has no default is left out.

    Raises:
        InvalidInput: an unknown method or setting.
    """
    from fedsolve.config.build import arguments

    known = arguments(name)
    for key in settings:
        if key not in known:
            raise unknown(f"setting of {name}", key, known)
    defaults = {k: a.default for k, a in known.items() if isinstance(a.default, bool | int | float | str)}
    return {k: settings.get(k, defaults.get(k)) for k in known if k in settings or k in defaults}


def method_arguments(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A method's settings as its builder takes them: types checked, tables made the objects that they stand for.

    Raises:
        InvalidInput: an unknown setting, or a value of the wrong type (what was expected is named).
    """
    from fedsolve.config.build import arguments

    resolved, known, own = resolve_settings(name, settings), arguments(name), is_reference(name)
    return {key: _argument(f"{name}: {key}", value, known[key].hint, own) for key, value in resolved.items()}


def _argument(where: str, value: Any, hint: Any, own: bool) -> Any:
    """One setting, built from plain data where its annotation asks for an object, and checked."""
    from fedsolve.core.schedules import Schedule

    built = from_plain(where, value, hint)
    if built is not value:
        return built
    words, kinds = choices(hint), given_types(hint)
    if words:
        if value not in words:
            raise InvalidInput(f"{where} = {value!r} must be one of {', '.join(map(str, words))}")
    elif hint is bool:
        if not isinstance(value, bool):
            raise InvalidInput(f"{where} = {value!r} must be true or false")
    elif str in kinds:  # one text, or several in a list
        return checked(where, value, hint)
    elif own:
        return checked(where, value, Any if hint is None else hint)
    elif isinstance(value, Mapping) and get_origin(next(iter(get_args(hint)), None)) is Mapping:
        return value  # bounds by name
    elif not isinstance(value, int | float) or isinstance(value, bool):
        rate = Schedule in kinds
        more = ' or a rate by round such as {schedule = "inverse_sqrt", initial = 0.1}' if rate else ""
        raise InvalidInput(f"{where} = {value!r} must be a number{more}")
    return value
