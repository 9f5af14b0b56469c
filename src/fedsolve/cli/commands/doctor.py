"""`fedsolve doctor`: what is installed, on which devices it runs, which data are there; a line each."""

from __future__ import annotations

import importlib.metadata
import operator
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from fedsolve.cli.configuration.requests import AsJson, DataDir
from fedsolve.cli.processes.devices import start_jax
from fedsolve.cli.terminal.console import emit_json, emit_table
from fedsolve.core.errors import InvalidInput

_PACKAGE = "fedsolve"
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?P<versions>[^;]*)(?:;.*extra == ['\"](?P<extra>[\w-]+)['\"])?")
_COLLECTIONS = ("all", "test", "dev")
"""Extras that only name others, or are for those who work on fedsolve."""


@dataclass(frozen=True)
class Line:
    """What is said of one thing: whether it is there, in words, and what to do where it is not."""

    name: str
    found: bool
    words: str
    remedy: str = ""


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
        words = f"{line.words}: {line.remedy}" if line.remedy else line.words
        there = Text("yes", "green") if line.found else Text("no", "yellow")
        rows.append((Text(line.name), there, Text(words)))
    emit_table(("", "", ""), rows, unbroken=2)


def _own() -> Line:
    from fedsolve.engine.records.identity import provenance

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
    """A line for each package of the core, then one for each extra."""
    asked = _asked()
    lines = [_package(name, versions) for name, versions in asked.pop(None, [])]
    for extra, packages in asked.items():
        each = [_package(*package) for package in packages]
        found = all(line.found for line in each)
        words = ", ".join(f"{line.name} {line.words}" for line in each)
        lines.append(Line(f"[{extra}]", found, words, "" if found else f"pip install '{_PACKAGE}[{extra}]'"))
    return lines


def _package(name: str, versions: str) -> Line:
    remedy = f"pip install '{name}{versions}'"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Line(name, False, "is missing", remedy)
    if not fits(version, versions):
        return Line(name, False, f"{version}, of which fedsolve was not tried", remedy)
    return Line(name, True, version)


def fits(version: str, versions: str) -> bool:
    """Whether a version lies within bounds such as '>=0.10,<0.13', by their numbers alone.

    >>> fits("0.10.2", ">=0.10,<0.13"), fits("0.13.0", ">=0.10,<0.13"), fits("2.13.0+cpu", ">=2.13,<3")
    (True, False, True)
    """
    compare = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq}
    bounds = re.findall(r"(>=|<=|==|>|<)\s*([\d.]+)", versions)
    return all(compare[sign](_numbers(version), _numbers(bound)) for sign, bound in bounds)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[+a-z]", version)[0]))


def _device() -> Line:
    import jax

    from fedsolve.engine.compute.layout import cores

    found = jax.devices()
    if jax.default_backend() != "cpu":
        return Line("devices", True, f"{len(found)} x {found[0].device_kind}")
    more = f"; --devices {cores()} makes each core one" if len(found) < cores() else ""
    return Line("devices", True, f"CPU, {cores()} cores as {len(found)}{more}")


def _cache() -> Line:
    from fedsolve.core.xla.compile_cache import VARIABLE, use_compile_cache

    folder = use_compile_cache()
    if folder is None:
        return Line("cache", False, "compiled programs are not kept", f"set {VARIABLE} to a writable folder")
    return Line("cache", True, f"compiled programs are kept in {folder}")


def _data(given: Path | None) -> list[Line]:
    from fedsolve.data.sources import data_dir
    from fedsolve.tasks.datasets.public_datasets import DATASETS

    try:
        folder = data_dir(given)
    except InvalidInput as error:
        return [Line("data", False, str(error))]
    lines = [Line("data", True, str(folder))]
    for name, one in DATASETS.items():
        if one.files:
            missing = [file for file in one.files if not (folder / file).exists()]
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            words = f"{missing[0]}{more} not there" if missing else f"for the task {one.task}"
            lines.append(Line(f"  {name}", not missing, words, f"fedsolve data {name}" if missing else ""))
    return lines
