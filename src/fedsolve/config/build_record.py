"""How a task was made, where a configuration can name it: the catalogue's builders leave it on what they return."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Made:
    """What makes a task again.

    Attributes:
        name: of the catalogue.
        options: the arguments that its builder was given, as they were given.
        validation: the share of every client's examples that is held out of training, None for none.
    """

    name: str
    options: Mapping[str, Any]
    validation: float | None = None


def by_name(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a builder of tasks leave its name in the catalogue, and its arguments, on the task that it returns."""

    def decorate(build: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(build)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            task = build(*args, **kwargs)  # first: what it is not given right it says under its own name
            return made(task, Made(name, inspect.signature(build).bind(*args, **kwargs).arguments))

        return call

    return decorate


def made(task: T, by: Made) -> T:
    """A task that nobody else has yet, with how it was made."""
    object.__setattr__(
        task, "made_by", by
    )  # no argument of a task: its copies with other parts are made otherwise
    return task
