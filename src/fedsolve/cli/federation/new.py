"""`fedsolve federate new`: a small Flower app, written from templates."""

from __future__ import annotations

import importlib.resources
import importlib.util
import inspect
import keyword
import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Annotated

import typer

import fedsolve
from fedsolve.cli.console import emit
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.folders.files import write_atomically

FRAMEWORKS = ("torch", "jax", "sklearn")
"""The frameworks of clients."""
CSV = "csv"
"""In place of a task: one's own tables in CSV files."""
_EXAMPLES = {
    CSV: '''

def examples(node):
    """Rows of the site's CSV file to train on, and a fifth to measure on; scaled and encoded as schema.toml says."""
    return SCHEMA.read_csv(node.data, node.file_format).hold_out(0.2)


def statistics(node):
    """The columns that `fedsolve federate statistics`, `glm`, `cox` and `km` may ask about, before scaling."""
    return SCHEMA.raw_columns(node.data, node.file_format)
''',
    "digits": '''

def examples(node):
    """The examples of one client, held against schema.toml, and none to measure on: the server has some."""
    return SCHEMA.check(*fs.tasks.digits(num_clients=CLIENTS).data.client(node.client)), None
''',
}
_STATISTICS = """
    problem.oracle,
    statistics=problem.statistics,
    analyses=(),  # models that may be fitted to these columns' rows: "glm", "cox", "kaplan_meier"
"""
_SCHEMA_ROW = (
    "| `{}/schema.toml` | the schema of the data: **edit this file; it is the same at all sites** |\n"
)
_ONLY_DIGITS = "#### digits"  # a line of a template; what follows it is for that task alone
_EXTRAS = {"torch": "flower,digits,torch", "jax": "flower,digits", "sklearn": "flower,digits"}
CLIENTS = 3
DASHBOARD = "grafana.json"
_APP = re.compile("[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?")
_LONGEST = 32


def new(
    folder: Annotated[
        Path, typer.Argument(metavar="NAME", help="Folder to write, and name of the app's package.")
    ],
    task: Annotated[
        str,
        typer.Option(
            help="csv for your own tables, or a task (`fedsolve list tasks`) with one client per node."
        ),
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
    """Write a Flower app: server, clients, an example to replace, files for containers, and a README."""
    write_app(folder, task, framework, clients)
    package = folder / package_name(folder)
    files = [package / name for name in ("schema.toml", "problem.py") if (package / name).exists()]
    emit(f"wrote {folder}: start with {folder / 'README.md'}; the schema and the model are in "
         f"{' and '.join(map(str, files))}")  # fmt: skip


def write_app(folder: Path, task: str, framework: str, clients: int) -> None:
    if framework not in FRAMEWORKS:
        raise unknown("framework", framework, FRAMEWORKS)
    values = _values(folder, task, framework, clients)
    if folder.exists():
        raise InvalidInput(f"{folder} exists: choose another name, nothing was written")
    package, problem = folder / values["package"], framework if task in _EXAMPLES else "task"
    files = {
        folder / "pyproject.toml": "pyproject.toml.txt",
        folder / "README.md": "README.md.txt",
        package / "server_app.py": "server_app.py.txt",
        package / "client_app.py": "client_app.py.txt",
        package / "problem.py": f"problem_{problem}.py.txt",
    }
    if task in _EXAMPLES:
        files[package / "schema.toml"] = f"schema_{task}.toml.txt"
    templates = importlib.resources.files("fedsolve.cli.federation") / "templates"
    for path, template in files.items():
        text = (templates / template).read_text(encoding="utf-8")
        before, _, digits = text.partition(f"{_ONLY_DIGITS}\n")
        text = before + (digits if task == "digits" else "")
        write_atomically(path, Template(text).substitute(values))
    write_atomically(package / "__init__.py", f'"""{task} on a federation."""\n')
    dashboard = importlib.resources.files("fedsolve.deploy") / DASHBOARD
    write_atomically(folder / DASHBOARD, dashboard.read_bytes())
    for name, text in container_files(values, clients, csv=task == CSV).items():
        write_atomically(folder / FOLDER / name, text)


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
    module = importlib.util.find_spec(package)
    shadows = module is not None and module.origin is not None  # a mere folder hides nothing
    if keyword.iskeyword(package) or package in ("test", "tests", "problem") or shadows:
        raise InvalidInput(
            f"{name!r} cannot name an app: Python has a module or word {package} already, take my-{name}"
        )
    return package


def _values(folder: Path, task: str, framework: str, clients: int) -> dict[str, str]:
    from fedsolve.tasks.catalogue import TASKS

    if task != CSV and task not in TASKS:
        raise unknown("task", task, [CSV, *TASKS])
    if clients < 1:
        raise InvalidInput(f"--clients {clients} must be at least 1")
    if framework != "jax" and task not in _EXAMPLES:
        raise InvalidInput(
            f"the {framework} template knows {' and '.join(_EXAMPLES)} alone, not the task {task}: take --task csv, or "
            "--framework jax"
        )
    if task != CSV and "num_clients" not in inspect.signature(TASKS[task].builder).parameters:
        raise InvalidInput(
            f"the clients of {task} follow from its data: take --task csv for data of your own"
        )
    return {
        "package": package_name(folder),
        "app": folder.name,
        "task": "your own tables" if task == CSV else TASKS[task].builder.__name__,
        "framework": framework,
        "clients": str(clients),
        "half": str(-(-clients // 2)),
        "numbers": " ".join(map(str, range(clients))),
        "extras": _EXTRAS[framework],
        "version": fedsolve.__version__,
        "image": f"{folder.name.lower()}:{fedsolve.__version__}",
        "schema_row": _SCHEMA_ROW.format(package_name(folder)) if task in _EXAMPLES else "",
        "examples": _EXAMPLES.get(task, ""),
        "client_options": _STATISTICS if task == CSV else "problem.oracle",
        "server_options": f"    {'schema=problem.SCHEMA' if task == CSV else 'evaluate=problem.evaluate'},\n",
        "client_metrics": "loss, accuracy" if task == CSV else "",
        "files": r" data=\"/data/site-$i.csv\"" if task == CSV else "",
        "file": r" data=\"/data/site-0.csv\"" if task == CSV else "",
    }


FOLDER = "containers"
FILES = ("Dockerfile", "compose.yaml", "kubernetes.yaml")
FLOWER = "1.41.0"
"""The Flower of the image: the version that fedsolve is tested with."""

_EACH_POD = re.compile(r"^#### each pod\n(.*?)#### end\n", re.DOTALL | re.MULTILINE)
_POD = re.compile(r"^#### pod (\S+)\n", re.MULTILINE)
_EACH_CLIENT = re.compile(r"^#### each client\n(.*?)#### end\n", re.DOTALL | re.MULTILINE)
_DATA = {
    "data": ' data="data/site-$client.csv"',
    "compose_data": "      - ${FEDERATION_DATA:-/data}/site-$client:/federation/data:ro\n",
}
"""What nodes with CSV files have more than others, as lines of the templates."""


def container_files(values: Mapping[str, str], clients: int, csv: bool) -> dict[str, str]:
    """The text of each file by its name, for nodes that read a CSV file or do not."""
    templates = importlib.resources.files("fedsolve.cli.federation") / "templates"
    given = {**values, "name": values["app"].lower(), "flower": FLOWER}  # compose takes small letters
    return {
        file: _fill((templates / f"{file}.txt").read_text(encoding="utf-8"), given, clients, csv)
        for file in FILES
    }


def _fill(template: str, values: Mapping[str, str], clients: int, csv: bool) -> str:
    # A template with its values; the lines between `#### each client` and `#### end` once for each client, those of
    # `#### each pod` in the place of each line `#### pod NAME`.
    if head := _EACH_POD.search(template):
        rest = template.replace(head[0], "")
        template = _POD.sub(lambda pod: head[1].replace("$component", pod[1]), rest)
    parts = _EACH_CLIENT.split(template)  # every second one is of each client
    for i in range(1, len(parts), 2):
        parts[i] = "".join(
            Template(parts[i]).substitute(values, client=client, **_data(client, csv))
            for client in range(clients)
        )
    parts[::2] = [Template(part).substitute(values) for part in parts[::2]]
    return "".join(parts)


def _data(client: int, csv: bool) -> dict[str, str]:
    return {key: text.replace("$client", str(client)) if csv else "" for key, text in _DATA.items()}
