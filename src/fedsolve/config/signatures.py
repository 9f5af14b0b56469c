"""Arguments of a builder and options of a run, as signatures and docstrings show them, and their values checked."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeGuard,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from fedsolve.core.errors import InvalidInput, check_integer, check_number, shown, with_article


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


# Options in the place of `**options` in a signature and in a docstring, and whether a call fits a signature.


@dataclass(frozen=True)
class About:
    """What an option means and takes.

    Attributes:
        text: its meaning.
        otherwise: what is done where it is not given, if its default does not say so.
        least: the least whole number that it takes; None if it takes none.
        bits: whole numbers are below 2^bits.
        words: texts that it takes.
        share: whether it takes a number in (0, 1].
        positive: whether it takes a number above 0.
        axes: names of the whole numbers from 1 on of a table that it takes, all of them.
        objects: whether it takes an object beside its words, which who uses it knows.
        instead_of: the option in whose place it is given: one of the two at most.
        swept: whether a sweep takes it too.
        written: (name, meaning) of what stands for it in a configuration and on the command line, which hold text.
        written_default: its default there, if it has one only there.
    """

    text: str
    otherwise: str = ""
    least: int | None = None
    bits: int = 31
    words: tuple[str, ...] = ()
    share: bool = False
    positive: bool = False
    axes: tuple[str, ...] = ()
    objects: bool = False
    instead_of: str = ""
    swept: bool = True
    written: tuple[str, About] | None = None
    written_default: Any = None

    def check(self, name: str, value: Any) -> Any:
        """The value, whole numbers as Python's own.

        Raises:
            InvalidInput: the option does not take it.
        """
        if self.positive:
            return check_number(name, value, above=0)
        if self.axes:
            if not isinstance(value, Mapping) or set(value) != set(self.axes):
                raise InvalidInput(f"{name} = {shown(value)} must be a table of {' and '.join(self.axes)}")
            return {axis: check_integer(f"{name}.{axis}", value[axis], 1) for axis in self.axes}
        if self.least is None and not self.words:
            return value  # an object, which who uses it knows
        if isinstance(value, str) and value in self.words:
            return value
        if self.objects and not isinstance(value, str):
            return value
        words = [repr(word) for word in self.words]
        if self.least is None:
            raise InvalidInput(f"{name} = {shown(value)} must be {' or '.join(words)}")
        return check_integer(name, value, self.least, bits=self.bits, words=words)


def about_of(option: Field[Any]) -> About:
    """What is said of an option, a field of `fedsolve.engine.options.RunOptions`."""
    return option.metadata["about"]


def with_options(function: Callable[..., Any], options: list[Field[Any]]) -> inspect.Signature:
    """The function's signature with the options first among the keywords."""
    signature, kinds = inspect.signature(function), inspect.Parameter
    kept = [p for p in signature.parameters.values() if p.kind is not kinds.VAR_KEYWORD]
    keywords = [
        kinds(
            f.name,
            kinds.KEYWORD_ONLY,
            default=kinds.empty if f.default is MISSING else f.default,
            annotation=f.type,
        )
        for f in options
    ]
    first = sum(p.kind is not kinds.KEYWORD_ONLY for p in kept)
    return signature.replace(parameters=[*kept[:first], *keywords, *kept[first:]])


def with_lines(text: str, options: list[Field[Any]], words: Callable[[Field[Any]], str] | None = None) -> str:
    """The docstring with a line for each option: what `words` gives of it, or the words of its `About`."""
    lines = []
    for line in text.splitlines():
        if not line.lstrip().startswith("**options"):
            lines.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())]
        lines += [f"{indent}{f.name}: {(words or _in_words)(f)}" for f in options]
    return "\n".join(lines)


def _in_words(option: Field[Any]) -> str:
    about = about_of(option)
    default = about.otherwise or ("" if option.default in (MISSING, None) else repr(option.default))
    least = "above 0" if about.positive else f"at least {about.least}" if about.least is not None else ""
    return about.text + (f"; {least}" if least else "") + (f"; default {default}." if default else ".")


def takes(function: Any, names: Sequence[str]) -> TypeGuard[Callable[..., Any]]:
    """Whether something can be called with so many arguments, by position; a built-in that does not tell can.

    >>> takes(lambda at: None, ["at"]), takes(lambda: None, ["at"]), takes(3, ["at"])
    (True, False, False)
    """
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*names)
    except ValueError:
        return True
    except TypeError:
        return False
    return True
