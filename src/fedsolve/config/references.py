"""A user's own task or method by its reference `module:name`: imported, checked, and built with what was typed."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedsolve.config.own_objects import as_builder, refuse_standard
from fedsolve.core.errors import FedsolveError, InvalidInput, of_type, unknown


def is_reference(name: str) -> bool:
    """Whether a name is `module:name` rather than one of a catalogue.

    >>> is_reference("mine:flowers"), is_reference("digits")
    (True, False)
    """
    return ":" in name


def split_reference(kind: str, reference: str) -> tuple[str, str]:
    """The module and the name within it.

    Raises:
        InvalidInput: it is not written `module:name`, or the module is of Python's standard library.
    """
    module, _, name = reference.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise InvalidInput(f"{kind} '{reference}' must be written module:name, such as mine:{kind}")
    refuse_standard(f"{kind} '{reference}'", module)
    return module, name


def load(kind: str, reference: str, wanted: type, folder: Path | None = None) -> Callable[..., Any]:
    """What `module:name` names, as a function of its options.

    Args:
        kind: what it is called in errors, such as task.
        reference: `module:name`, of a module in `folder` or installed.
        wanted: the class of what it gives.
        folder: where modules are looked for first, the current folder if not given.

    Raises:
        InvalidInput: no such module or name (with the nearest match), the module raises when imported, or what stands
            there is no function or class that gives what is wanted.
    """
    module_name, name = split_reference(kind, reference)
    _look_in(folder)
    found = _named(module_name, name, _imported(kind, reference, module_name, folder or Path.cwd()))
    return as_builder(f"{kind} '{reference}'", found, wanted)


def _look_in(folder: Path | None) -> None:
    """Let modules be found in a folder before all others, or without one in the current folder."""
    if folder is not None and sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))
    elif folder is None and os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


def _imported(kind: str, reference: str, module: str, folder: Path) -> Any:
    """The module; `folder` is where it was looked for first."""
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise failed(f"{kind} {reference}: importing {module}", error) from None
        raise InvalidInput(
            f"{kind} '{reference}': no module {error.name} in {folder} or among what is installed: "
            f"start where {error.name.partition('.')[0]}.py lies, or install it"
        ) from None
    except (Exception, SystemExit) as error:
        raise failed(f"{kind} {reference}: importing {module}", error) from None


def _named(module: str, name: str, found: Any) -> Any:
    """What has a name in a module, dots for what lies within."""
    for part in name.split("."):
        if not hasattr(found, part):
            public = {
                n: value for n, value in vars(found).items() if callable(value) and not n.startswith("_")
            }
            own = [n for n, value in public.items() if getattr(value, "__module__", None) == module]
            raise unknown(f"name in {module}", name, own or public)
        found = getattr(found, part)
    return found


def construct(kind: str, reference: str, wanted: type, builder: Callable[..., Any], options: Mapping) -> Any:
    """Call a user's own builder.

    Raises:
        InvalidInput: it lacks an argument, raises (type, message and line are named) or returns something
            else than `wanted`.
    """
    try:
        missing = [
            p.name
            for p in inspect.signature(builder).parameters.values()
            if p.default is p.empty and p.kind not in _OPEN and p.name not in options
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
        raise failed(f"{kind} {reference}", error) from None
    if not isinstance(found, wanted):
        raise InvalidInput(f"{kind} {reference} gave {of_type(found)}, not a fedsolve.{wanted.__name__}")
    return found


_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NOT_THE_USERS = ("<", str(Path(__file__).parents[1]), *sysconfig.get_paths().values())


def failed(what: str, error: BaseException) -> InvalidInput:
    """What a user's own code raised, and the last line of that code on the way there."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
        return InvalidInput(f"{what}: {type(error).__name__}: {error.msg} ({place})")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    last = (own or frames)[-1]
    text = " ".join(str(error).split())
    shown = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return InvalidInput(f"{what}: {shown} ({last.filename}, line {last.lineno})")
