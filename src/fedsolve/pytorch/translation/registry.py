"""Which JAX function stands for which operation of PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsolve.core.errors import InvalidInput


class NotTranslatable(InvalidInput):
    """A module or a function of PyTorch that has no equivalent in JAX; it can still run in PyTorch."""


Mixed = Callable[[Mapping[str, Any], int], tuple[int, ...]]
"""(arguments by name, number of axes of the first one) -> the axes of the first one that an operation mixes."""


@dataclass(frozen=True)
class Operation:
    """An operation of PyTorch's library ATen in JAX.

    Attributes:
        function: of the arguments of the operation's schema, in its order and by its names. Tensors are JAX arrays,
            lists of tensors are lists of them, sizes are int; other scalars, lists and `torch.dtype` come as they are
            (`dtypes.jax_dtype` makes a JAX type of the latter). It returns an array, or a tuple where the schema does.
        random: whether it takes a keyword `key`, a JAX key that no other node of the program is given; None in
            evaluation.
        mixing: which axes of its first argument it mixes. Where the batch is among them it takes a keyword `weights`:
            by axis 0 or 1 for each entry along it, shape (length,), where some examples do not count; else None.
    """

    function: Callable[..., Any]
    random: bool = False
    mixing: Mixed | None = None

    def draws(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether it draws: not where it is random in training alone and says that it does not train, or at rate 0."""
        if not self.random:
            return False
        bound = inspect.signature(self.function).bind_partial(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if given.get("train", given.get("training")) is False:
            return False
        return next((given[name] != 0 for name in ("p", "dropout_p", "rate") if name in given), True)

    def mixed(self, args: Sequence[Any], kwargs: Mapping[str, Any], ndim: int) -> tuple[int, ...]:
        """The axes of the first argument, which has `ndim`, that it mixes."""
        if self.mixing is None:
            return ()
        given = inspect.signature(self.function).bind(*args, **kwargs)
        given.apply_defaults()
        return self.mixing(given.arguments, ndim)


OPERATIONS: dict[str, Operation] = {}
"""By the name of the overload, such as `aten.add.Tensor`."""


def operation(
    *names: str, random: bool = False, mixing: Mixed | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the equivalent of operations (see `Operation`)."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in OPERATIONS:
                raise ValueError(f"{name} is registered already")
            OPERATIONS[name] = Operation(function, random, mixing)
        return function

    return register


def operations(
    family: str,
    functions: Mapping[str, Callable[..., Any]],
    overloads: str = "default",
    prepare: Callable[..., Sequence[Any]] = lambda *operands: operands,
) -> None:
    """Register short functions of positional arguments by the names of packets, such as `add` of `aten.add.Tensor`.

    Args:
        family: the name of the module that they belong to.
        functions: by name.
        overloads: of each, separated by spaces.
        prepare: the arguments of an operation -> those of its function.
    """
    for name, function in functions.items():
        prepared = _prepared(function, prepare)
        prepared.__module__ = family
        operation(*(f"aten.{name}.{overload}" for overload in overloads.split()))(prepared)


def _prepared(function: Callable[..., Any], prepare: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
    return lambda *arguments: function(*prepare(*arguments))
