"""What a user's `module:name` may be: the object wanted, its class, or a function annotated to return it."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints

from fedsolve.core.errors import InvalidInput, of_type, with_article


def as_builder(what: str, found: Any, wanted: type) -> Callable[..., Any]:
    """What a reference names as a function of its options; nothing of it has been called before.

    Args:
        what: the reference in words, for errors.
        found: the object that it names.
        wanted: the class that is wanted, such as Task.

    Returns:
        `found`, or where it is an object of the class wanted a function that returns it.

    Raises:
        InvalidInput: it comes from Python's standard library, or says nowhere that it gives what is wanted.
    """
    for module in homes(found):
        refuse_standard(what, module)
    if isinstance(found, wanted):
        return lambda: found
    if not callable(found):
        raise InvalidInput(f"{what} is {of_type(found)}: name a function that returns it, or its class")
    if inspect.isclass(found):
        if not issubclass(found, wanted):
            raise InvalidInput(f"{what} is a class that is no fedsolve {wanted.__name__}: name one that is")
        return found
    _check_returned(what, found, wanted)
    return found


def homes(found: Any) -> Iterator[str]:
    """The modules that an object was written in: its own and, where it is decorated, that of what it decorates."""
    while found is not None:
        if isinstance(found, functools.partial):
            found = found.func
        module = getattr(found, "__module__", None)
        if callable(found) and isinstance(module, str):
            yield module
        found = getattr(found, "__wrapped__", None)


def refuse_standard(what: str, module: str) -> None:
    """Raise `InvalidInput` for a module of Python's standard library: it holds nothing of fedsolve."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        raise InvalidInput(
            f"{what}: {top} is of Python's standard library: name a function or class of your own"
        )


def _check_returned(what: str, function: Any, wanted: type) -> None:
    """Raise `InvalidInput` unless a function is annotated to return an object of a class."""
    name, kind = getattr(function, "__name__", "it"), wanted.__name__
    a_kind = with_article(kind)
    remedy = (
        f"write `def {name}(...) -> fs.{kind}:`" if kind != "Study" else f"write `def {name}() -> Study:`"
    )
    try:
        hint = _returned(function)
    except Exception as error:  # of evaluated text: any
        raise InvalidInput(
            f"{what}: what {name} is annotated to return cannot be resolved ({type(error).__name__}: {error}): "
            f"import it at the top of the module, and {remedy}"
        ) from None
    if hint is inspect.Signature.empty:
        raise InvalidInput(f"{what}: {name} does not say that it returns {a_kind}: {remedy}")
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds = [get_origin(part) or part for part in parts]
    if not all(isinstance(part, type) and issubclass(part, wanted) for part in kinds):
        shown = hint.__name__ if isinstance(hint, type) else str(hint)
        raise InvalidInput(f"{what}: {name} is annotated to return {shown}, not {a_kind}: {remedy}")


def _returned(function: Any) -> Any:
    """The class in a function's return annotation, text evaluated where the function was written; empty for none."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not isinstance(function, types.FunctionType | types.MethodType):
        function = type(function).__call__
    hint = getattr(function, "__annotations__", {}).get("return", inspect.Signature.empty)
    alone = types.SimpleNamespace(__annotations__={"return": hint})
    scope = getattr(function, "__globals__", {})
    return get_type_hints(alone, scope)["return"] if isinstance(hint, str) else hint
