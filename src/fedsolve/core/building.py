"""What can be built by its name: tables of names, how an object was made, and what its fields may hold."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeAlias, TypeVar

from fedsolve.core.errors import (
    InvalidInput,
    check_choice,
    check_flag,
    check_integer,
    check_known,
    check_range,
)

T = TypeVar("T")


class Registry(dict[str, T]):
    """Entries of one kind by name.

    Where the entries are dataclasses, an object is built from its name alone or from a table with the name and the
    parameters, and written as such a table again.

    >>> @dataclasses.dataclass
    ... class Step:
    ...     size: float
    >>> steps = Registry("step", {"Step": Step})
    >>> steps.build("FedX", {"name": "Step", "size": 0.5})
    Step(size=0.5)
    """

    def __init__(
        self, kind: str, entries: Mapping[str, T], *, key: str = "name", any_spelling: bool = False
    ) -> None:
        # any_spelling: whether a table may write names in any case, with `-` and `_` anywhere
        super().__init__(entries)
        self.kind, self.key = kind, key
        self._spellings = {name.lower(): name for name in entries} if any_spelling else {}

    def find(self, name: Any, kind: str | None = None) -> T:
        check_known(kind or self.kind, name, self)
        return self[name]

    def build(self, where: str, table: Any) -> Any:
        kind = f"{self.kind} of {where}"
        values = {self.key: table} if isinstance(table, str) else table
        if not isinstance(values, Mapping) or self.key not in values:
            raise InvalidInput(f"{kind} = {table!r} must be a table with a {self.key}: {', '.join(self)}")
        plain = str(values[self.key]).lower().replace("_", "").replace("-", "")
        name = self._spellings.get(plain, values[self.key])
        cls: Any = self.find(name, kind)
        given = {parameter: value for parameter, value in values.items() if parameter != self.key}
        _check_parameters(name, cls, given)
        return cls(**given)

    def name_of(self, built: Any) -> str | None:
        return next((name for name, cls in self.items() if type(built) is cls), None)


def _check_parameters(name: str, cls: Any, given: Mapping[str, Any]) -> None:
    # raise `InvalidInput` unless a class takes the parameters given, and needs no others
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for parameter, value in given.items():
        check_known(f"parameter of {name}", parameter, fields)
        if isinstance(value, str | bool) and not fields[parameter].metadata.get("static"):
            raise InvalidInput(f"{name}: {parameter} = {value!r} must be a number")
    for parameter, field in fields.items():
        if field.default is dataclasses.MISSING and parameter not in given:
            raise InvalidInput(f"{name} needs {parameter}")


# How an object was made, where a configuration can name it: the catalogue's builders leave it on what they return.
#
# The record is an attribute beside the fields: it is no part of the pytree, of equality or of a digest, and a copy
# with another field or another leaf (`dataclasses.replace`, any transformation of JAX) has none, so that it never
# lies.

P = ParamSpec("P")
C = TypeVar("C", bound=type)


@dataclass(frozen=True)
class Made:
    """What makes an object again: its name in the catalogue, and the arguments that its builder was given.

    Of a task also the share of every client's examples that is held out of training for validation, None for none.
    """

    name: str
    options: Mapping[str, Any]
    validation: float | None = None


def by_name(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function leave its name in the catalogue, and its arguments, on the method or task that it returns."""
    # it raises `InvalidInput` for None where its annotation has none: what is built from its arguments may know
    # None, for something else than the function's own default

    def decorate(build: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(build)

        @functools.wraps(build)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            built = build(*args, **kwargs)  # first: what it is not given right it says under its own name
            arguments = _arguments(signature.bind(*args, **kwargs))
            for key, parameter in signature.parameters.items():
                has_none = parameter.default is None or "None" in str(parameter.annotation)
                if key in arguments and arguments[key] is None and not has_none:
                    raise InvalidInput(f"{key} = None is no value of {name}: leave it out for its default")
            return made(built, Made(name, arguments))

        return call

    return decorate


def class_by_name(name: str) -> Callable[[C], C]:
    """Let the objects of a class, not those of its subclasses, have its name in the catalogue and their arguments."""

    def decorate(cls: C) -> C:
        init, signature = cls.__init__, inspect.signature(cls)

        @functools.wraps(init)
        def record(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            if type(self) is cls:
                made(self, Made(name, _arguments(signature.bind(*args, **kwargs))))

        cls.__init__ = record
        return cls

    return decorate


def record_of(built: Any) -> Made | None:
    """How an object was made; None if no builder of a catalogue made it, or a part was replaced since."""
    return getattr(built, "made_by", None)


def _arguments(bound: inspect.BoundArguments) -> dict[str, Any]:
    # arguments by name, those gathered by `**` among them
    arguments = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(parameter.name, {})
    return arguments


def made(built: T, by: Made) -> T:
    """An object that nobody else has yet, with how it was made."""
    object.__setattr__(built, "made_by", by)  # no argument: copies with other parts are made otherwise
    return built


# What a field of a module may hold stands with the field, as data that `fedsolve.core.types.module` reads: a value is
# checked, and converted, when a user builds the module, and never when JAX makes it anew from leaves.

Check: TypeAlias = Callable[[str, Any], Any]
"""Takes a field's name and its value, raises `InvalidInput` or returns the value to keep."""

ADDED_LATER = {"later": True}
"""Metadata of a field that older versions lack: at its default it is no part of what a run is known by."""


def is_default_of_added_field(f: dataclasses.Field[Any], value: object) -> bool:
    """Whether a field that came later (`ADDED_LATER`) is at its default: older records have none."""
    if not f.metadata.get("later"):
        return False
    is_plain = type(value) is type(f.default) and isinstance(value, str | int | float)
    return value is f.default or (is_plain and value == f.default)


def checked(
    check: Check,
    *,
    default: Any = dataclasses.MISSING,
    name: str = "",
    static: bool = False,
    later: bool = False,
) -> Any:
    """A field whose value is passed through `check` when its module is built, under `name` if not its own."""
    # A field that a subclass declares anew without a check keeps the one that it had. For `static` see
    # `fedsolve.core.types.static`, for `later` see `ADDED_LATER`.
    # by keyword alone, here and below: that is how type checkers know that a field has a default
    metadata = {"check": check, "name": name, "static": static} | (ADDED_LATER if later else {})
    return dataclasses.field(default=default, metadata=metadata)


def number(
    *, default: Any = dataclasses.MISSING, name: str = "", later: bool = False, **bounds: float
) -> Any:
    """A hyper-parameter, a leaf: one finite number within its bounds (`check_range`); None passes if it is the default.

    >>> from fedsolve.core.types import module
    >>> @module
    ... class Step:
    ...     size: Any = number(default=0.1, above=0, at_most=1)
    >>> Step(2)
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: size = 2 must be finite and > 0 and <= 1
    """

    def check(name: str, value: Any) -> Any:
        check_range(name, value, optional=default is None, **bounds)  # pyright: ignore[reportArgumentType]
        return value

    return checked(check, default=default, name=name, later=later)


def integer(
    *,
    at_least: int = 1,
    bits: int | None = 31,
    default: Any = dataclasses.MISSING,
    name: str = "",
    none: str = "",
    later: bool = False,
) -> Any:
    """A count that is part of the program (`static`), by default one that JAX can count; see `check_integer`."""

    def check(name: str, value: Any) -> Any:
        return check_integer(name, value, at_least, bits=bits, none=none)

    return checked(check, default=default, name=name, static=True, later=later)


def choice(*texts: str | None, default: str | None, kind: str = "", later: bool = False) -> Any:
    """One of some texts, which is part of the program (`static`); with `kind` an error names the nearest one."""

    def check(name: str, value: Any) -> Any:
        if kind:
            check_known(kind, value, [text for text in texts if text])
            return value
        return check_choice(name, value, texts)

    return checked(check, default=default, static=True, later=later)


def flag(*, default: bool) -> Any:
    return checked(check_flag, default=default, static=True)


def check_first(cls: type) -> None:
    """Let a class that declares fields with checks check them before its `__post_init__`, its own or an inherited."""
    if not any(isinstance(f, dataclasses.Field) and "check" in f.metadata for f in vars(cls).values()):
        return
    then = getattr(cls, "__post_init__", None)

    def __post_init__(self: Any) -> None:
        for field, name, check in _checks(type(self)):
            object.__setattr__(self, field, check(name, getattr(self, field)))
        if then is not None:
            then(self)

    cls.__post_init__ = __post_init__


@functools.cache
def _checks(cls: type) -> tuple[tuple[str, str, Check], ...]:
    """The field, the name that errors show and the check of each field that is checked, in the order of the fields."""
    known: dict[str, tuple[str, Check]] = {}
    for base in reversed(cls.__mro__):
        for f in vars(base).get("__dataclass_fields__", {}).values():
            if "check" in f.metadata:
                known[f.name] = f.metadata["name"] or f.name, f.metadata["check"]
    return tuple((f.name, *known[f.name]) for f in dataclasses.fields(cls) if f.name in known)
