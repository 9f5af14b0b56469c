"""A user's own task or method by its reference `module:name`: imported, checked, and built with what was typed.

What stands there may be the object wanted, its class, or a function annotated to return it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from fedsolve.core.errors import FedsolveError, InvalidInput, of_type, unknown, with_article


def is_reference(name: str) -> bool:
    """Whether a name is `module:name` rather than one of a catalogue.

    >>> is_reference("mine:flowers"), is_reference("digits")
    (True, False)
    """
    return ":" in name


def split_reference(kind: str, reference: str) -> tuple[str, str]:
    module, _, name = reference.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise InvalidInput(f"{kind} '{reference}' must be written module:name, such as mine:{kind}")
    refuse_standard(f"{kind} '{reference}'", module)
    return module, name


def load_reference(kind: str, reference: str, wanted: type, folder: Path | None = None) -> Callable[..., Any]:
    """What `module:name` names, as a function of its options; `folder` is looked in first, else the current one."""
    return as_builder(f"{kind} '{reference}'", load_object(kind, reference, folder), wanted)


def load_object(kind: str, reference: str, folder: Path | None = None) -> Any:
    module_name, name = split_reference(kind, reference)
    _add_to_path(folder)
    return _attribute(module_name, name, _import(kind, reference, module_name, folder or Path.cwd()))


def _add_to_path(folder: Path | None) -> None:
    # modules are found in a folder before all others, or without one in the current folder
    if folder is not None and sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))
    elif folder is None and os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


def _import(kind: str, reference: str, module: str, folder: Path) -> Any:
    # a module that was written since Python last looked into the folder is found
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise user_code_error(f"{kind} {reference}: importing {module}", error) from None
        raise InvalidInput(
            f"{kind} '{reference}': no module {error.name} in {folder} or among the installed packages: "
            f"start where {error.name.partition('.')[0]}.py is, or install it"
        ) from None
    except (Exception, SystemExit) as error:
        raise user_code_error(f"{kind} {reference}: importing {module}", error) from None


def _attribute(module: str, name: str, found: Any) -> Any:
    # dots are for what lies within
    for part in name.split("."):
        if not hasattr(found, part):
            public = {
                n: value for n, value in vars(found).items() if callable(value) and not n.startswith("_")
            }
            own = [n for n, value in public.items() if getattr(value, "__module__", None) == module]
            raise unknown(f"name in {module}", name, own or public)
        found = getattr(found, part)
    return found


def as_builder(what: str, found: Any, wanted: type) -> Callable[..., Any]:
    """What a reference names as a function of its options: nothing of it has been called before."""
    for module in defining_modules(found):
        refuse_standard(what, module)
    if isinstance(found, wanted):
        return lambda: found
    if not callable(found):
        raise InvalidInput(f"{what} is {of_type(found)}: name a function that returns it, or its class")
    if inspect.isclass(found):
        if not issubclass(found, wanted):
            raise InvalidInput(f"{what} is a class but not a fedsolve {wanted.__name__}: name one that is")
        return found
    _check_return_hint(what, found, wanted)
    return found


def defining_modules(found: Any) -> Iterator[str]:
    # a decorated function is of two modules: its own, and that of what it decorates
    while found is not None:
        if isinstance(found, functools.partial):
            found = found.func
        module = getattr(found, "__module__", None)
        if callable(found) and isinstance(module, str):
            yield module
        found = getattr(found, "__wrapped__", None)


def refuse_standard(what: str, module: str) -> None:
    # it holds nothing of fedsolve
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        raise InvalidInput(
            f"{what}: {top} is of Python's standard library: name a function or class of your own"
        )


def _check_return_hint(what: str, function: Any, wanted: type) -> None:
    name, kind = getattr(function, "__name__", "it"), wanted.__name__
    a_kind = with_article(kind)
    remedy = (
        f"write `def {name}(...) -> fs.{kind}:`" if kind != "Study" else f"write `def {name}() -> Study:`"
    )
    try:
        hint = _return_hint(function)
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


def _return_hint(function: Any) -> Any:
    # text is evaluated where the function was written; empty for none
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not isinstance(function, types.FunctionType | types.MethodType):
        function = type(function).__call__
    hint = getattr(function, "__annotations__", {}).get("return", inspect.Signature.empty)
    alone = types.SimpleNamespace(__annotations__={"return": hint})
    scope = getattr(function, "__globals__", {})
    return get_type_hints(alone, scope)["return"] if isinstance(hint, str) else hint


def construct(kind: str, reference: str, wanted: type, builder: Callable[..., Any], options: Mapping) -> Any:
    try:
        missing = [
            p.name
            for p in inspect.signature(builder).parameters.values()
            if p.default is p.empty and p.kind not in _VARIADIC and p.name not in options
        ]
    except ValueError:  # a builtin without a signature
        missing = []
    if missing:
        option = "--task-set" if kind == "task" else "--set"
        raise InvalidInput(f"{kind} {reference} needs {missing[0]}: give {option} {missing[0]}=...")
    try:
        found = builder(**options)
    except FedsolveError:
        raise
    except (Exception, SystemExit) as error:
        raise user_code_error(f"{kind} {reference}", error) from None
    if not isinstance(found, wanted):
        raise InvalidInput(f"{kind} {reference} gave {of_type(found)}, not a fedsolve.{wanted.__name__}")
    return found


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_LIBRARY_PATHS = ("<", str(Path(__file__).parents[1]), *sysconfig.get_paths().values())


def user_code_error(what: str, error: BaseException) -> InvalidInput:
    """The error for what a user's own code raised, with the last line of that code on the way there."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
        return InvalidInput(f"{what}: {type(error).__name__}: {error.msg} ({place})")
    # the last frame in the user's own files says more than one deep in JAX or fedsolve
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARY_PATHS)]
    last = (own or frames)[-1]
    text = " ".join(str(error).split())
    shown = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return InvalidInput(f"{what}: {shown} ({last.filename}, line {last.lineno})")
