"""Arguments of a builder as its annotations have them: which there are, of which types, and values checked."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedsolve.errors import InvalidInput


def hints(builder: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function's or a class's arguments; none that cannot be resolved."""
    own_init = inspect.isclass(builder) and not hasattr(builder, "__dataclass_fields__")
    try:
        return get_type_hints(builder.__init__ if own_init else builder)
    except Exception:  # names that exist for type checkers alone, or any other error of evaluated text
        return {}


def checked(where: str, value: Any, hint: Any) -> Any:
    """`value` if it is of a hinted type (any without a hint), a list as a tuple and a text as a path where hinted.

    Raises:
        InvalidInput: another type; what was expected is named.

    >>> checked("mine:flowers: scale", 2, float), checked("mine:flowers: shape", [2, 3], tuple[int, int])
    (2, (2, 3))
    """
    kinds = _kinds(hint)
    if _fits(value, hint, kinds):
        return value
    if Path in kinds and isinstance(value, str):
        return Path(value)
    if tuple in kinds and isinstance(value, list):
        return tuple(value)
    wanted = " or ".join(dict.fromkeys(_describe(kind) for kind in kinds))
    raise InvalidInput(f"{where} = {value!r} must be {wanted}")


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The plain types of a hint; a literal's values each for itself."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(kind for part in get_args(hint) for kind in _kinds(part))
    if get_origin(hint) is Literal:
        return tuple(_Word(word) for word in get_args(hint))
    return (get_origin(hint) or hint,)


class _Word:
    """One value of a literal."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _fits(value: Any, hint: Any, kinds: Sequence[Any]) -> bool:
    """Whether a value is of one of some types; a whole number is a number, True is not."""
    for kind in kinds:
        if isinstance(kind, _Word):
            if type(value) is type(kind.value) and value == kind.value:
                return True
        elif kind is Any or not isinstance(kind, type):
            return True
        elif kind in (int, float):
            if isinstance(value, (int,) if kind is int else (int, float)) and not isinstance(value, bool):
                return True
        elif isinstance(value, kind):
            return True
    return False


def _describe(kind: Any) -> str:
    """A type in words."""
    if isinstance(kind, _Word):
        return repr(kind.value)
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        Path: "a path",
        Mapping: "a table",
        Sequence: "a list",
        tuple: "a list",
        type(None): "nothing",
    }
    return words.get(kind, f"a {getattr(kind, '__name__', kind)}")
