"""Code that a file names: from a Python file beside it or from a module that `--trust` names, else it is refused."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedsolve.cli.configuration.config import CONFIG, Configured, load
from fedsolve.cli.console import say
from fedsolve.config.references import defining_modules, is_reference, load_reference, split_reference
from fedsolve.core.errors import InvalidInput

if TYPE_CHECKING:
    from fedsolve.tasks.task import Task

_ABOVE = 3  # folders that may have the configuration: of the run, of its method, of the comparison


def references_of(config: Configured) -> dict[str, str]:
    """Every `module:name` in a configuration, and whether it is a task or an algorithm."""
    methods = (part for method in config.method for part in method.name.split("+"))
    named = {config.task: "task", **dict.fromkeys(methods, "algorithm")}
    return {name: kind for name, kind in named.items() if is_reference(name)}


def would_import(config: Configured) -> list[str]:
    return [f"{kind} {reference}" for reference, kind in references_of(config).items()]


def imports_lines(config: Configured) -> list[str]:
    return [f"running or resuming it imports the {what}, and runs its code" for what in would_import(config)]


def imports_document(config: Configured) -> dict[str, list[str]]:
    found = would_import(config)
    return {"imports": found} if found else {}


def check_trusted(
    config: Configured, origin: Path, trust: Sequence[str] | None, typed: Collection[str] = ()
) -> None:
    """Import what a configuration in a file (or its folder) names, if it may; say what, before it is done."""
    # The user vouches for the modules of `trust`, their submodules with them; names that were `typed` are no file's.
    trusted = tuple(trust or ())
    for name in trusted:
        if not all(part.isidentifier() for part in name.split(".")):
            raise InvalidInput(f"--trust {name!r} must be the name of a module, such as --trust mine")
        split_reference("--trust", f"{name}:any")
    own = {part for name in typed for part in name.split("+")}
    for reference, kind in references_of(config).items():
        if reference not in own:
            _admit(kind, reference, origin, trusted)


def own_task(folder: Path, trust: Sequence[str] | None) -> Task | None:
    """The user's own task that the configuration of a run names, if its code may be imported; else None."""
    from fedsolve.tasks.catalogue import build

    places = [folder, *folder.resolve().parents][:_ABOVE]
    origin = next((place for place in places if (place / CONFIG).is_file()), None)
    if origin is None:
        return None
    config = load(origin)
    if not is_reference(config.task) or config.unnamed:
        return None
    check_trusted(config.model_copy(update={"method": []}), origin, trust)  # of the task alone
    return build(config.task, **config.task_options)


def _admit(kind: str, reference: str, origin: Path, trusted: Sequence[str]) -> None:
    from fedsolve.core.algorithm import Algorithm
    from fedsolve.tasks.task import Task

    wanted = {"task": Task, "algorithm": Algorithm}[kind]
    folder = (origin if origin.is_dir() else origin.parent).resolve()
    module, _ = split_reference(kind, reference)
    file = None if _is_below(module, trusted) else _beside(module, folder)
    if file is None and not _is_below(module, trusted):
        top = module.partition(".")[0]
        raise InvalidInput(
            f"{origin} names the {kind} {reference}, and no {module.replace('.', '/')}.py is beside it: "
            f"give --trust {top} if you trust what that module runs"
        )
    # said before it is done: importing runs the module
    if module not in sys.modules:
        say(f"importing {file or module} for the {kind} {reference} of {origin}")
    found = load_reference(kind, reference, wanted, folder if file is not None else None)
    if file is not None and not _lies_in(module, folder):
        raise InvalidInput(
            f"{kind} {reference} of {origin}: a module {module} of another folder is imported already: give one of "
            "them another name"
        )
    # a module beside the file may only name what is written there, not hand on what others wrote
    for home in defining_modules(found):
        if not _is_below(home, trusted) and not _lies_in(home, folder):
            raise InvalidInput(
                f"{kind} {reference} of {origin} is defined in {home}: "
                f"name it there, and give --trust {home.partition('.')[0]} if you trust that module"
            )


def _beside(module: str, folder: Path) -> Path | None:
    # None if it or a package above it is not there, or is a link out of the folder
    found, path = None, folder
    for part in module.split("."):
        path = path / part
        files = (path.with_name(f"{part}.py"), path / "__init__.py")
        inside = (file for file in files if file.is_file() and file.resolve().is_relative_to(folder))
        found = next(inside, None)
        if found is None:
            return None
    return found


def _lies_in(module: str, folder: Path) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(folder)


def _is_below(module: str, names: Sequence[str]) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in names)


def trust_words(config: Configured, folder: Path) -> str:
    # the user's own modules, which were trusted when the run began
    modules = {reference.partition(":")[0] for reference in references_of(config)}
    needed = sorted(module for module in modules if _beside(module, folder.resolve()) is None)
    return "".join(f" --trust {module}" for module in needed)
