"""How an object was made, where a configuration can name it: the catalogue's builders leave it on what they return.

The record is an attribute beside the fields: it is no part of the pytree, of equality or of a digest, and a copy with
another field or another leaf (`dataclasses.replace`, any transformation of JAX) has none, so that it never lies.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from fedsolve.core.errors import InvalidInput

P = ParamSpec("P")
T = TypeVar("T")
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
    """Let a function leave its name in the catalogue, and its arguments, on the method or task that it returns.

    It raises `InvalidInput` for None where its annotation has none: what is built from its arguments may know None, for
    something else than the function's own default.
    """

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
    """Arguments by name, those gathered by `**` among them."""
    arguments = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(parameter.name, {})
    return arguments


def made(built: T, by: Made) -> T:
    """An object that nobody else has yet, with how it was made."""
    object.__setattr__(built, "made_by", by)  # no argument: copies with other parts are made otherwise
    return built
