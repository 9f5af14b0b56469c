"""What is wrong with a user's module, in one line: which line of its code, and what to write instead."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedsolve.core.errors import InvalidInput
from fedsolve.core.loss_checks import first_line

_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)\n\s+(?P<code>.+)')
_NOT_THEIRS = "<", str(Path(torch.__file__).parent), str(Path(__file__).parents[2])


class _Place(NamedTuple):
    file: str
    line: str
    code: str


def where(stack: str | None) -> str:
    # the user's innermost line in a printed stack; "" if there is none
    frames = list(_LINE.finditer(stack or ""))
    start = next((i for i, m in enumerate(frames) if m["name"] == "forward"), 0)  # before it: who calls us
    return _last([_Place(m["file"], m["line"], m["code"]) for m in frames[start:]])


def where_raised(error: BaseException) -> str:
    # the user's innermost line in the stack that an exception quotes, else in its own
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    return where(str(error)) or _last([_Place(f.filename, str(f.lineno), f.line or "") for f in frames])


def why_not_exported(error: Exception) -> str:
    # what `torch.export` says of a module, or what the module itself raises
    text, at = str(error), where_raised(error)
    if type(error).__name__ == "DynamicOutputShapeException":
        return f"the size of what {text} gives depends on the values of tensors{at}: use torch.where"
    if "data-dependent" in text:
        return f"what it does depends on the values of tensors{at}: use torch.where"
    if "specialized it to be a constant" in text:
        return f"it works for batches of one size alone{where(text)}: take sizes from x.shape[0] (not len(x)), or -1"
    return f"{first_line(error)}{at}"


def _last(places: list[_Place]) -> str:
    theirs = [p for p in places if not p.file.startswith(_NOT_THEIRS)]
    return f" at {theirs[-1].file}:{theirs[-1].line}, `{theirs[-1].code.strip()}`" if theirs else ""


# Which JAX function stands for which operation of PyTorch.


class NotTranslatable(InvalidInput):
    """A module or a function of PyTorch that has no equivalent in JAX; it can still run in PyTorch."""


Mixed = Callable[[Mapping[str, Any], int], tuple[int, ...]]
"""(arguments by name, number of axes of the first one) -> the axes of the first one that an operation mixes."""


@dataclass(frozen=True)
class Operation:
    """An operation of PyTorch's library ATen in JAX."""

    # of the arguments of the operation's schema, in its order and by its names. Tensors are JAX arrays, lists of
    # tensors are lists of them, sizes are int; other scalars, lists and `torch.dtype` come as they are
    # (`dtypes.jax_dtype` makes a JAX type of the latter). It returns an array, or a tuple where the schema does.
    function: Callable[..., Any]
    # whether it takes a keyword `key`, a JAX key that no other node of the program is given; None in evaluation
    random: bool = False
    # which axes of its first argument it mixes. Where the batch is among them it takes a keyword `weights`: by axis 0
    # or 1 for each entry along it, shape (length,), where some examples do not count; else None.
    mixing: Mixed | None = None

    def draws(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        # not where it says that it does not train, or at rate 0
        if not self.random:
            return False
        bound = inspect.signature(self.function).bind_partial(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if given.get("train", given.get("training")) is False:
            return False
        return next((given[name] != 0 for name in ("p", "dropout_p", "rate") if name in given), True)

    def mixed(self, args: Sequence[Any], kwargs: Mapping[str, Any], ndim: int) -> tuple[int, ...]:
        # axes of the first argument, which has `ndim`
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
    # see `Operation`

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in OPERATIONS:
                raise ValueError(f"{name} is registered already")
            OPERATIONS[name] = Operation(function, random, mixing)
        return function

    return register


def operations(
    functions: Mapping[str, Callable[..., Any]],
    overloads: str = "default",
    prepare: Callable[..., Sequence[Any]] | None = None,
    random: bool = False,
) -> None:
    # functions of one line by the names of packets, such as `add` of `aten.add.Tensor`, or of overloads where they
    # have a point; `prepare` makes their arguments from those of the operation
    for name, function in functions.items():
        full = (f"aten.{name}",) if "." in name else (f"aten.{name}.{o}" for o in overloads.split())
        operation(*full, random=random)(function if prepare is None else _prepared(function, prepare))


def _prepared(function: Callable[..., Any], prepare: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
    return lambda *arguments: function(*prepare(*arguments))
