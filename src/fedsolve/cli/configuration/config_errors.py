"""What pydantic found wrong with a configuration, as one line: where, the value, what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from fedsolve.core.errors import unknown

_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "a text",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "too_short": "given at least once, as [[method]] with a name",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than": ("> {gt}", "gt"),
    "greater_than_equal": (">= {ge}", "ge"),
    "less_than": ("< {lt}", "lt"),
    "less_than_equal": ("<= {le}", "le"),
}


def describe_problems(error: ValidationError, root: type[BaseModel], origin: str) -> str:
    """One line on the first problem, and how many more there are."""
    places: dict[tuple[str | int, ...], list[Any]] = {}
    for item in error.errors():
        loc = item["loc"]
        if item["type"] != "extra_forbidden":
            loc = tuple(part for part in loc if not _is_branch(part))
        places.setdefault(loc, []).append(item)
    place, items = next(iter(places.items()))
    more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
    return f"{origin}: {_describe(place, items, root)}{more}"


def _is_branch(part: str | int) -> bool:
    """Whether a part of a place names a branch of a union of types, not a key."""
    return isinstance(part, str) and (part in ("int", "constrained-int", "float") or "[" in part)


def _describe(place: Sequence[str | int], items: Sequence[Any], root: type[BaseModel]) -> str:
    first = items[0]
    if first["type"] == "extra_forbidden":
        section = _section(place[:-1], root)
        where = f"key in {_name(place[:-1])}" if place[:-1] else "key"
        return str(unknown(where, str(place[-1]), section.model_fields))
    if first["type"] == "missing":
        return f"{_name(place)} is missing"
    expected = " or ".join(dict.fromkeys(_expected(item) for item in items))
    return f"{_name(place)} = {first['input']!r} must be {expected}"


def _expected(item: Any) -> str:
    kind = item["type"]
    if kind in _BOUNDS:
        text, name = _BOUNDS[kind]
        return text.format(**{name: item["ctx"][name]})
    if kind == "list_type":
        name = item["loc"][-1]
        return f"a list of tables, written [[{name}]]" if name in ("method", "claim") else "a list"
    if kind == "literal_error":
        return str(item["ctx"]["expected"])
    return _EXPECTED.get(kind) or str(item["msg"])


def _name(place: Sequence[str | int]) -> str:
    """A place as it is written: run.rounds, or method 2 for an element of [[method]].

    >>> _name(("method", 1, "label"))
    'method 2: label'
    """
    text = ""
    for part in place:
        text = f"{text} {part + 1}:" if isinstance(part, int) else f"{text}{_joint(text)}{part}"
    return text.removesuffix(":")


def _joint(text: str) -> str:
    return "" if not text else " " if text.endswith(":") else "."


def _section(place: Sequence[str | int], root: type[BaseModel]) -> type[BaseModel]:
    """The model of the table at a place."""
    model = root
    for part in place:
        if isinstance(part, str):
            hint: Any = model.model_fields[part].annotation
            kinds = [hint, *get_args(hint)]
            model = next(k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel))
    return model
