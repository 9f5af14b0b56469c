"""Named containers: frozen dataclasses that are pytrees, whose fields say how they are treated.

A hyper-parameter is a leaf, so it can be traced, swept and changed without recompiling; a field marked
`static()` is part of the program. A field of a message says how it is reduced over the cohort
(`reduced`) and what a number that comes from outside must be (`bounded`), a field of a server state whether the
engine logs it (`reported`), a hyper-parameter what it may be (`number`, `integer`, `choice`, `flag`, `checked`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from fedsolve.core.building import ADDED_LATER, check_first, checked, choice, flag, integer, number
from fedsolve.core.errors import check_choice

if TYPE_CHECKING:  # to type checkers jaxtyping's is an unknown type, which strict users are told of
    Params: TypeAlias = Any
    Batch: TypeAlias = Any
    Scalar: TypeAlias = float | np.floating[Any] | np.integer[Any] | Array
else:
    Params = PyTree
    """Model parameters: any pytree of floating-point arrays."""
    Batch = PyTree
    """Examples: any pytree of arrays that share their first axis."""
    Scalar = Any
    """A real number: of Python or NumPy, a traced or a concrete array of shape ()."""
Traced: TypeAlias = Any
"""A number or truth inside a program: an array of shape (), of the type of the model where it is a number."""

Weighting = Literal["uniform", "examples"]
"""How clients count in a mean: all alike (1/|S|), or by their number of examples (n_i / sum of n)."""
Privacy = Literal["", "central", "distributed", "local"]
"""How what clients send is protected: noise on the cohort's sum, which clients add in shares, or each its own."""

T = TypeVar("T")
_REDUCTIONS = ("mean", "average", "max", "sum")
_MARK = "_fedsolve_module"


def static(*, default: Any = dataclasses.MISSING, later: bool = False) -> Any:
    """A field that is part of the program: changing its value compiles anew. `later`: see `ADDED_LATER`."""
    return dataclasses.field(default=default, metadata={"static": True} | (ADDED_LATER if later else {}))


def reduced(by: str, claim: MessageBounds | None = None, *, logged: bool = False) -> Any:
    """A message field reduced over the cohort by `mean` (weighted), `average` (1/|S|), `max` or `sum`."""
    # `sum` is of integers, modulo the size of their type. A maximum that is `logged` alone may be replaced by a mean.
    # `claim` is what a server may check of it: see `bounded`.
    if by not in _REDUCTIONS:
        raise ValueError(f"reduction '{by}' must be one of {', '.join(_REDUCTIONS)}")
    return dataclasses.field(metadata={"reduce": by, "claim": claim, "logged": logged})


@dataclasses.dataclass(frozen=True)
class MessageBounds:
    """What a server of a deployment may check of numbers that a client reports: their range, both ends included.

    `whole`: they are integers; `of_delta`: what the number is of `delta`, the client update beside it, None if none.
    """

    at_least: float = -math.inf
    at_most: float = math.inf
    whole: bool = False
    of_delta: Callable[[Params], Scalar] | None = None


def bounded(claim: MessageBounds) -> Any:
    """A message field, reduced as the message that it is part of, whose numbers can be checked."""
    return dataclasses.field(metadata={"claim": claim})


def converted(*, converter: Callable[[Any], Any]) -> Any:
    """A field that is given as one type and kept as another: to type checkers it takes what `converter` takes."""
    return dataclasses.field()


def reported(warn: str = "") -> Any:
    """A scalar field of a server state that the engine logs each round under its name."""
    # with `warn`, a run in which the value was ever non-zero ends with that warning
    return dataclasses.field(metadata={"report": True, "warn": warn})


@dataclass_transform(
    frozen_default=True,
    field_specifiers=(
        static, checked, number, integer, choice, flag, reduced, bounded, reported, converted, dataclasses.field
    ),
)  # fmt: skip
def module(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass and a pytree of its non-static fields.

    Its fields are checked in their order (`checked`), then `__post_init__` runs, which may check and change the rest.
    What makes a module anew from leaves (a transformation) calls neither: they see what a user gives, but never
    stacked values or whatever else stands for a leaf.

    >>> @module
    ... class Point:
    ...     x: float
    ...     name: str = static(default="p")
    >>> jax.tree.map(lambda v: 2 * v, Point(1.0))
    Point(x=2.0, name='p')
    """
    check_first(cls)
    cls = dataclasses.dataclass(frozen=True)(cls)
    setattr(cls, _MARK, cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    meta = [f.name for f in fields if f.metadata.get("static")]
    data = [f.name for f in fields if not f.metadata.get("static")]
    keys = [jax.tree_util.GetAttrKey(name) for name in data]

    def flatten(obj: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(obj, name) for name in data], tuple(getattr(obj, name) for name in meta)

    def flatten_with_keys(obj: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        leaves, fixed = flatten(obj)
        return list(zip(keys, leaves, strict=True)), fixed

    def unflatten(fixed: tuple[Any, ...], leaves: Any) -> T:
        obj = object.__new__(cls)
        for name, value in (*zip(data, leaves, strict=True), *zip(meta, fixed, strict=True)):
            object.__setattr__(obj, name, value)
        return obj

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def replace(obj: T, **changes: Any) -> T:
    return dataclasses.replace(obj, **changes)  # type: ignore[type-var]


def is_module(value: Any) -> bool:
    """Whether `value` is an instance of a class that `module` made; a user's model may be a dataclass of its own."""
    return getattr(type(value), _MARK, None) is type(value)


def reductions(message: Any, inherited: str = "mean") -> Any:
    """The reduction of each leaf of `message`, in a pytree of the same structure.

    >>> @module
    ... class Up:
    ...     delta: float
    ...     step: float = reduced("max")
    >>> reductions(Up(1.0, 2.0))
    Up(delta='mean', step='max')
    """
    if not is_module(message):
        return jax.tree.map(lambda _: inherited, message)
    parts = {
        f.name: reductions(getattr(message, f.name), f.metadata.get("reduce", inherited))
        for f in dataclasses.fields(message)
        if not f.metadata.get("static")
    }
    return replace(message, **parts)


def reports(state: Any) -> dict[str, tuple[Array, str]]:
    """The scalars that a server state reports, by name, each with its warning text ('' if none)."""
    scalars: dict[str, tuple[Array, str]] = {}
    if isinstance(state, Mapping) or not is_module(state):
        return scalars
    for f in dataclasses.fields(state):
        value = getattr(state, f.name)
        if f.metadata.get("report"):
            scalars[f.name] = (jnp.asarray(value), f.metadata["warn"])
        else:
            scalars.update(reports(value))
    return scalars


def check_weighting(value: object) -> None:
    check_choice("weighting", value, ("uniform", "examples"))
