"""Keyword arguments that a function does not have are refused in one line, with the nearest that it has."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fedsolve.core.errors import unknown

P = ParamSpec("P")
R = TypeVar("R")


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
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                raise unknown(f"argument of {function.__name__}", name, names)
        return function(*args, **kwargs)

    return call
