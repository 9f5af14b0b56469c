"""`fedsolve doctor`: what is installed, on which devices it runs, which data are there; a line each."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from fedsolve.cli.configuration.requests import AsJson, DataDir
from fedsolve.cli.console import emit_json, emit_table
from fedsolve.cli.processes import start_jax
from fedsolve.core.errors import InvalidInput

_PACKAGE = "fedsolve"
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?P<versions>[^;]*)(?:;.*extra == ['\"](?P<extra>[\w-]+)['\"])?")
_COLLECTIONS = ("all", "test", "dev")
"""Extras that only name others, or are for those who work on fedsolve."""


@dataclass(frozen=True)
class Line:
    name: str
    found: bool
    words: str


def doctor(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check the installation: list packages, missing extras, devices and data sets, one per line."""
    start_jax()
    lines = [_own(), *_packages(), _device(), _cache(), *_data(data_dir)]
    if as_json:
        emit_json([asdict(line) for line in lines])
        return
    from rich.text import Text

    rows = []
    for line in lines:
        there = Text("yes", "green") if line.found else Text("no", "yellow")
        rows.append((Text(line.name), there, Text(line.words)))
    emit_table(("", "", ""), rows, unbroken=2)


def _own() -> Line:
    from fedsolve.engine.identity import provenance

    version = provenance().split(", jax")[0].removeprefix(f"{_PACKAGE} ")
    return Line(_PACKAGE, True, f"{version}, Python {platform.python_version()}")


def _asked() -> dict[str | None, list[tuple[str, str]]]:
    """Extra, None for the core -> names and versions of the packages that fedsolve's metadata ask for."""
    found: dict[str | None, list[tuple[str, str]]] = {}
    try:
        requirements = importlib.metadata.requires(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:  # run from its sources
        return found
    for match in filter(None, map(_REQUIREMENT.match, requirements)):
        if match["name"] != _PACKAGE and match["extra"] not in _COLLECTIONS:
            found.setdefault(match["extra"], []).append((match["name"], match["versions"].strip()))
    return found


def _packages() -> list[Line]:
    asked = _asked()
    lines = [_package(name, versions) for name, versions in asked.pop(None, [])]
    for extra, packages in asked.items():
        each = [_package(*package) for package in packages]
        words = ", ".join(f"{line.name} {line.words}" for line in each)
        lines.append(Line(f"[{extra}]", all(line.found for line in each), words))
    return lines


def _package(name: str, versions: str) -> Line:
    needed = f" (needs {versions})" if versions else ""
    try:
        return Line(name, True, f"{importlib.metadata.version(name)}{needed}")
    except importlib.metadata.PackageNotFoundError:
        return Line(name, False, f"is missing{needed}")


def _device() -> Line:
    import jax

    from fedsolve.engine.compute.layout import cores

    found = jax.devices()
    if jax.default_backend() != "cpu":
        return Line("devices", True, f"{len(found)} x {found[0].device_kind}")
    return Line("devices", True, f"CPU, {cores()} cores as {len(found)}")


def _cache() -> Line:
    from fedsolve.core.xla.compiler import use_compile_cache

    folder = use_compile_cache()
    if folder is None:
        return Line("cache", False, "compiled programs are not kept")
    return Line("cache", True, f"compiled programs are kept in {folder}")


def _data(given: Path | None) -> list[Line]:
    from fedsolve.data.sources import data_dir
    from fedsolve.tasks.datasets.download import DATASETS

    try:
        folder = data_dir(given)
    except InvalidInput as error:
        return [Line("data", False, str(error))]
    lines = [Line("data", True, str(folder))]
    for name, one in DATASETS.items():
        if one.files:
            missing = [file for file in one.files if not (folder / file).exists()]
            words = f"{', '.join(missing)} not there" if missing else f"for the task {one.task}"
            lines.append(Line(f"  {name}", not missing, words))
    return lines
