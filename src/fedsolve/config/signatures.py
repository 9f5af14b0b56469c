"""Arguments of a builder and options of a run, as signatures and docstrings show them, and their values checked."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeGuard,
    TypeVar,
    Union,
    Unpack,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from fedsolve.core.errors import InvalidInput, check_integer, check_number, shown, with_article

P = ParamSpec("P")
T = TypeVar("T")


class Argument(NamedTuple):
    """One argument of a builder: its default (`Parameter.empty` for none), its annotation, and who takes it."""

    default: Any
    hint: Any
    owner: Callable[..., Any]

    @property
    def is_needed(self) -> bool:
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
    # of a dataclass the class: its generated `__init__` would have the names of inherited annotations looked
    # for in the wrong module
    own_init = is_plain and not hasattr(builder, "__dataclass_fields__")
    try:
        return get_type_hints(builder.__init__ if own_init else builder, include_extras=True)
    except Exception:  # names that exist for type checkers alone, or any other error of evaluated text
        return {}


def alternatives(hint: Any) -> tuple[Any, ...]:
    """What an annotation allows, one by one: unions and `Annotated[Any, X]` taken apart, a `Literal` whole.

    >>> alternatives(Literal["fixed", "adaptive"] | None)
    (typing.Literal['fixed', 'adaptive'], <class 'NoneType'>)
    """
    # `Annotated[Any, X]`: a field that is given as X and stored as another class
    if get_origin(hint) is Annotated:
        parts = get_args(hint)
        return tuple(a for part in parts if part is parts[0] or parts[0] is Any for a in alternatives(part))
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(a for part in get_args(hint) for a in alternatives(part))
    return (hint,)


def choices(hint: Any) -> tuple[Any, ...]:
    return tuple(word for a in alternatives(hint) if get_origin(a) is Literal for word in get_args(a))


def fits(value: Any, hint: Any, is_a: Callable[[Any, Any], bool]) -> bool:
    """Whether a value is of an annotated type; `is_a` decides of a class, and of what is no class."""
    return any(_fits(value, a, is_a) for a in alternatives(hint))


def _fits(value: Any, hint: Any, is_a: Callable[[Any, Any], bool]) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:  # 1 is not True
        return any(type(value) is type(word) and value == word for word in parts)
    if origin is tuple and isinstance(value, tuple):
        each = parts[:1] * len(value) if parts[1:] == (...,) else parts
        return len(value) == len(each) and all(
            fits(x, part, is_a) for x, part in zip(value, each, strict=True)
        )
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return all(fits(k, parts[0], is_a) and fits(v, parts[1], is_a) for k, v in value.items())
    if origin in (tuple, dict, Mapping):
        return False
    return callable(value) if origin is Callable else is_a(value, hint)


def is_a(value: Any, kind: Any) -> bool:
    """Whether a value is of a class, or the class is no class and says nothing; True is no number."""
    if kind is Any or not isinstance(kind, type):
        return True
    numbers = {int: (int,), float: (int, float)}
    return isinstance(value, numbers.get(kind, kind)) and not (isinstance(value, bool) and kind in numbers)


def checked(where: str, value: Any, hint: Any) -> Any:
    """`value` if it is of a hinted type (any without a hint), a list as a tuple and a text as a path where hinted.

    >>> checked("mine:flowers: scale", 2, float), checked("mine:flowers: shape", [2, 3], tuple[int, int])
    (2, (2, 3))
    """
    kinds = [a if get_origin(a) is Literal else get_origin(a) or a for a in alternatives(hint)]
    if any(fits(value, kind, is_a) for kind in kinds):
        return value
    if Path in kinds and isinstance(value, str):
        return Path(value)
    if tuple in kinds and isinstance(value, list):
        return tuple(value)
    words = [w for kind in kinds for w in ([*map(repr, get_args(kind))] or [_described(kind)])]
    raise InvalidInput(f"{where} = {value!r} must be {' or '.join(dict.fromkeys(words))}")


_WORDS = {
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


def _described(kind: Any) -> str:
    return _WORDS.get(kind) or with_article(str(getattr(kind, "__name__", kind)))


# Options in the place of `**options` in a signature and in a docstring, and whether a call fits a signature.


@dataclass(frozen=True)
class About:
    """What an option means and takes."""

    text: str  # its meaning
    otherwise: str = ""  # what is done where it is not given, if its default does not say so
    least: int | None = None  # the least whole number that it takes; None if it takes none
    bits: int = 31  # whole numbers are below 2^bits
    words: tuple[str, ...] = ()  # texts that it takes
    share: bool = False  # whether it takes a number in (0, 1]
    positive: bool = False  # whether it takes a number above 0
    axes: tuple[str, ...] = ()  # names of the whole numbers from 1 on of a table that it takes, all of them
    objects: bool = False  # whether it takes an object beside its words, which who uses it knows
    flag: str = ""  # its option on the command line, where that is not its name; it then takes a path as text
    instead_of: str = ""  # the option in whose place it is given: one of the two at most
    swept: bool = True  # whether a sweep takes it too
    # of an app: whether a run's configuration may give it anew; it holds plain data alone
    configurable: bool = True
    # (name, meaning) of what stands for it in a configuration and on the command line, which hold text
    written: tuple[str, About] | None = None
    written_default: Any = None  # its default there, if it has one only there
    # (name, value) -> the value, in place of the check that follows from the above
    checked_by: Callable[[str, Any], Any] | None = None

    def check(self, name: str, value: Any) -> Any:
        """The value, whole numbers as Python's own; `InvalidInput` where the option does not take it."""
        if self.checked_by is not None:
            return self.checked_by(name, value)
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


def option(text: str, *, default: Any = MISSING, **about: Any) -> Any:
    """A field of a class of options: its words in the docstring, and what else `About` has of it."""
    return field(default=default, metadata={"about": About(text, **about)})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
def options_class(cls: type[T]) -> type[T]:
    return dataclass(frozen=True, kw_only=True)(cls)


def about_of(option: Field[Any]) -> About:
    return option.metadata["about"]


def shows(
    options: Sequence[Field[Any]],
    unknown: Callable[[str, str, Iterable[str]], Exception],
    words: Callable[[Field[Any]], str] | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Put options in the place of `**options`: first among the keywords of a signature, and in the docstring.

    Args:
        options: fields with an `About` in their metadata.
        unknown: (function, name, known names) -> the error for an argument that the function does not have.
        words: what the docstring says of an option, in place of the words of its `About`.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        plain, kinds = inspect.signature(function), inspect.Parameter
        kept = [p for p in plain.parameters.values() if p.kind is not kinds.VAR_KEYWORD or not options]
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
        # `inspect.signature` and editors see the options, and so does the check of a call below
        signature = plain.replace(parameters=[*kept[:first], *keywords, *kept[first:]])

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs:
                if name not in signature.parameters:
                    raise unknown(function.__name__, name, signature.parameters)
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            return function(*args, **kwargs)

        call.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        call.__doc__ = with_lines(function.__doc__ or "", options, words)
        return call

    return decorate


def with_lines(
    text: str, options: Sequence[Field[Any]], words: Callable[[Field[Any]], str] | None = None
) -> str:
    """A docstring whose line `**options` is a line for each option: `words` of it, or those of its `About`."""
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


def accepts(function: Any, names: Sequence[str]) -> TypeGuard[Callable[..., Any]]:
    """Whether something can be called with so many arguments, by position; a built-in that does not tell can.

    >>> accepts(lambda at: None, ["at"]), accepts(lambda: None, ["at"]), accepts(3, ["at"])
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
