"""Arguments of a builder as its signature has them: which there are, of which types, and values checked."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from fedsolve.core.errors import InvalidInput, with_article


class Argument(NamedTuple):
    """One argument of a builder: its default (`Parameter.empty` for none), its annotation, and who takes it."""

    default: Any
    hint: Any
    owner: Callable[..., Any]

    @property
    def is_needed(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty


@cache
def arguments_of(builder: Callable[..., Any]) -> Mapping[str, Argument]:
    """The arguments of a function or a class by name; `**options: Unpack[Options]` are those of the `TypedDict`.

    >>> def method(lr: float = 0.1, *, steps: int = 3): ...
    >>> [(name, argument.default) for name, argument in arguments_of(method).items()]
    [('lr', 0.1), ('steps', 3)]
    """
    known, found = hints(builder), {}
    for p in inspect.signature(builder).parameters.values():
        if p.kind is not inspect.Parameter.VAR_KEYWORD:
            found[p.name] = Argument(p.default, known.get(p.name), builder)
        elif get_origin(known.get(p.name)) is Unpack:
            (options,) = get_args(known[p.name])
            found |= {name: Argument(None, hint, builder) for name, hint in hints(options).items()}
    return found


def hints(builder: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function's or a class's arguments; none that cannot be resolved."""
    is_plain = inspect.isclass(builder) and not is_typeddict(builder)
    own_init = is_plain and not hasattr(builder, "__dataclass_fields__")
    try:
        return get_type_hints(builder.__init__ if own_init else builder, include_extras=True)
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


def given_types(hint: Any) -> tuple[type, ...]:
    """The classes that a hint names; of `Annotated[Any, X]`, a field that is given as X and kept as another, X's."""
    if get_origin(hint) is Annotated:
        return tuple(kind for part in get_args(hint) for kind in given_types(part))
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(kind for part in get_args(hint) for kind in given_types(part))
    return (hint,) if isinstance(hint, type) else ()


def choices(hint: Any) -> tuple[Any, ...]:
    """The words of a Literal, also inside a union.

    >>> choices(Literal["fixed", "adaptive"] | None)
    ('fixed', 'adaptive')
    """
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(word for part in get_args(hint) for word in choices(part))


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The plain types of a hint; a literal's values each for itself."""
    if get_origin(hint) is Annotated:
        return _kinds(get_args(hint)[0])
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
    """Whether a value is of one of some types; an integer is a number, True is not."""
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
        int: "an integer",
        float: "a number",
        bool: "true or false",
        str: "a text",
        Path: "a path",
        Mapping: "a table",
        Sequence: "a list",
        tuple: "a list",
        type(None): "nothing",
    }
    return words.get(kind, with_article(str(getattr(kind, "__name__", kind))))
