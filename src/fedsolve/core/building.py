"""What can be built by its name: tables of names, and the record of how an object was made."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from fedsolve.core.errors import InvalidInput, check_known

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
        """The entry of that name; `InvalidInput` for an unknown one (with the nearest match)."""
        check_known(kind or self.kind, name, self)
        return self[name]

    def build(self, where: str, table: Any) -> Any:
        """An object from its name alone, or from a table with its name and parameters."""
        kind = f"{self.kind} of {where}"
        values = {self.key: table} if isinstance(table, str) else table
        if not isinstance(values, Mapping) or self.key not in values:
            raise InvalidInput(f"{kind} = {table!r} must be a table with a {self.key}: {', '.join(self)}")
        name = self._spelled(values[self.key])
        cls: Any = self.find(name, kind)
        given = {parameter: value for parameter, value in values.items() if parameter != self.key}
        _check_parameters(name, cls, given)
        return cls(**given)

    def name_of(self, built: Any) -> str | None:
        """The name of the class of an object, if it is one of these."""
        return next((name for name, cls in self.items() if type(built) is cls), None)

    def _spelled(self, name: Any) -> Any:
        plain = str(name).lower().replace("_", "").replace("-", "")
        return self._spellings.get(plain, name)


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
    """What makes an object again.

    Attributes:
        name: of the catalogue.
        options: the arguments that its builder was given, as they were given.
        validation: of a task the share of every client's examples that is held out of training, None for none.
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
