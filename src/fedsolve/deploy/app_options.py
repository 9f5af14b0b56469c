"""The options of an app are the fields of a dataclass, each with its words and its check: a new one is one field.

The app's signature and docstring follow from them; an argument that it does not have is refused in one line.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ParamSpec, TypeVar, dataclass_transform

from fedsolve.config.signatures import with_lines, with_options
from fedsolve.core.errors import unknown

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True)
class OptionSpec:
    """What an option means and takes.

    Attributes:
        text: its meaning, as the docstring has it.
        check: (name, value) -> the value; it raises `InvalidInput` where the option does not take that.
        configurable: whether a run's configuration may give it anew; it holds plain data alone.
    """

    text: str
    check: Callable[[str, Any], Any]
    configurable: bool


def option(
    text: str,
    check: Callable[[str, Any], Any] = lambda name, value: value,
    *,
    default: Any = MISSING,
    configurable: bool = True,
) -> Any:
    """A field of a class of options: see `OptionSpec`."""
    return field(default=default, metadata={"spec": OptionSpec(text, check, configurable)})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
def options_class(cls: type[T]) -> type[T]:
    """A frozen dataclass of keywords, whose fields are each an `option`."""
    return dataclass(frozen=True, kw_only=True)(cls)


def spec_of(option: Field[Any]) -> OptionSpec:
    """What is said of an option, a field of a dataclass."""
    return option.metadata["spec"]


def shows_fields(options: Any) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Put the fields of a dataclass in the place of `**options`: in the signature, the docstring, and what is refused.

    The docstring's line that begins with `**options` becomes the words of all fields.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        shown = list(fields(options))
        function.__doc__ = with_lines(function.__doc__ or "", shown, _words)
        function.__signature__ = with_options(function, shown)  # pyright: ignore[reportFunctionMemberAccess]
        return named_arguments(function)

    return decorate


def _words(option: Field[Any]) -> str:
    """What an option means, in lines as they are indented below a function's `Args:`."""
    lines = textwrap.wrap(f"{option.name}: {spec_of(option).text}", 112, break_on_hyphens=False)
    return ("\n" + 12 * " ").join(lines).removeprefix(f"{option.name}: ")


def named_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function raise `InvalidInput` in place of `TypeError` for an argument that it does not have.

    >>> @named_arguments
    ... def area(*, width=1.0, height=1.0):
    ...     return width * height
    >>> area(widht=2.0)
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: unknown argument of area 'widht': did you mean 'width'? Known: height, width
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in signature.parameters:
                raise unknown(f"argument of {function.__name__}", name, signature.parameters)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{function.__name__}() {error}") from None
        return function(*args, **kwargs)

    return call
