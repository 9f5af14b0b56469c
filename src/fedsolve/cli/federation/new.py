"""`fedsolve federate new`: a small Flower app, written from templates."""

from __future__ import annotations

import importlib.resources
import importlib.util
import inspect
import keyword
import re
from pathlib import Path
from string import Template
from typing import Annotated

import typer

import fedsolve
from fedsolve.cli.terminal.console import emit
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.folders.files import write_atomically

FRAMEWORKS = ("torch", "jax", "sklearn")
"""The frameworks of clients."""
_IMAGES = {"digits": {"features": "64", "classes": "10"}}
_EXTRAS = {"torch": "flower,digits,torch", "jax": "flower,digits", "sklearn": "flower,digits"}
CLIENTS = 3
_APP = re.compile("[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?")
_LONGEST = 32


def new(
    folder: Annotated[
        Path, typer.Argument(metavar="NAME", help="Folder to write; its name is also the package's.")
    ],
    task: Annotated[
        str, typer.Option(help="Task whose clients the nodes hold (`fedsolve list tasks`).")
    ] = "digits",
    framework: Annotated[
        str,
        typer.Option(
            help="Framework of the clients: torch, jax or sklearn (default: torch).", show_default=False
        ),
    ] = "torch",
    clients: Annotated[
        int, typer.Option(help="Number of clients (default: 3).", show_default=False)
    ] = CLIENTS,
) -> None:
    """Write a Flower app: a server, clients, an example model and data to replace, and instructions."""
    write_app(folder, task, framework, clients)
    emit(f"wrote {folder}: start with {folder / 'README.md'}; your model and data go into "
         f"{folder / package_name(folder) / 'problem.py'}")  # fmt: skip


def write_app(folder: Path, task: str, framework: str, clients: int) -> None:
    """The files of an app.

    Raises:
        InvalidInput: the folder exists, its name is no name of a package, an unknown task or framework, or a
            task that the framework's template cannot take.
    """
    if framework not in FRAMEWORKS:
        raise unknown("framework", framework, FRAMEWORKS)
    values = _values(folder, task, framework, clients)
    if folder.exists():
        raise InvalidInput(f"{folder} exists: choose another name, nothing was written")
    package = folder / values["package"]
    files = {
        folder / "pyproject.toml": "pyproject.toml.txt",
        folder / "README.md": "README.md.txt",
        package / "server_app.py": "server_app.py.txt",
        package / "client_app.py": "client_app.py.txt",
        package / "problem.py": f"problem_{framework}.py.txt",
    }
    templates = importlib.resources.files("fedsolve.cli.federation") / "templates"
    for path, template in files.items():
        text = (templates / template).read_text(encoding="utf-8")
        write_atomically(path, Template(text).substitute(values))
    write_atomically(package / "__init__.py", f'"""{task} on a federation."""\n')


def package_name(folder: Path) -> str:
    """The app's package, from the name of its folder, which Flower must take as the app's name.

    >>> package_name(Path("apps/my-app"))
    'my_app'
    """
    name = folder.name
    # as flwr.supercore.utils.is_valid_name has it, and names of wheels
    if len(name) > _LONGEST or not _APP.fullmatch(name):
        mapped = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:_LONGEST].rstrip("-")
        better = mapped if _APP.fullmatch(mapped) else "my-app"
        raise InvalidInput(
            f"{name!r} cannot name an app of Flower: letters, digits and '-', a letter first, at most {_LONGEST} "
            f"characters, such as {better}"
        )
    package = name.replace("-", "_")
    if keyword.iskeyword(package) or package in ("test", "tests", "problem") or _shadows(package):
        raise InvalidInput(
            f"{name!r} cannot name an app: Python has a module or word {package} already, take my-{name}"
        )
    return package


def _shadows(package: str) -> bool:
    """Whether a package of this name would hide one that can be imported (a mere folder is none)."""
    module = importlib.util.find_spec(package)
    return module is not None and module.origin is not None


def _values(folder: Path, task: str, framework: str, clients: int) -> dict[str, str]:
    from fedsolve.tasks.catalogue import TASKS

    if task not in TASKS:
        raise unknown("task", task, TASKS)
    if clients < 1:
        raise InvalidInput(f"--clients {clients} must be at least 1")
    if framework != "jax" and task not in _IMAGES:
        raise InvalidInput(
            f"the {framework} template knows the task {', '.join(_IMAGES)} alone, not {task}: take --framework jax, "
            "or write that app and put your own model and data into its problem.py"
        )
    build = TASKS[task].builder
    if "num_clients" not in inspect.signature(build).parameters:
        raise InvalidInput(
            f"the clients of {task} follow from its data: take digits, and put yours into problem.py"
        )
    return {
        "package": package_name(folder),
        "app": folder.name,
        "task": build.__name__,
        "framework": framework,
        "clients": str(clients),
        "half": str(-(-clients // 2)),
        "numbers": " ".join(map(str, range(clients))),
        "extras": _EXTRAS[framework],
        "version": fedsolve.__version__,
        **_IMAGES.get(task, {}),
    }
