"""`fedsolve list`, `settings`, `cite` and `doctor`: what there is, what was tuned, who wrote it, what is installed."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsolve.cli.configuration.command_options import AsJson, DataDir
from fedsolve.cli.console import emit, emit_json, emit_table, say
from fedsolve.cli.processes import start_jax
from fedsolve.config.references import is_reference
from fedsolve.core.errors import InvalidInput, unknown

if TYPE_CHECKING:
    from fedsolve.cli.configuration.config import Configured


_JAX = "bradbury2018jax"
# what the last column is; else the paper
_LAST = {"geometries": "Operations", "schedules": "Parameters", "communication": "Sum enough"}


def _geometries() -> list[dict[str, Any]]:
    from fedsolve.geometry import GEOMETRIES
    from fedsolve.geometry.blocks import OPERATIONS

    rows = []
    for name, cls in GEOMETRIES.items():
        operations = [operation for operation in OPERATIONS if hasattr(cls, operation)]
        row = {"name": name, "summary": _summary(cls), "citation": "", "operations": operations}
        rows.append(row | {"last": ", ".join(operations), "parameters": _parameters(cls)})
    return rows


def _schedules() -> list[dict[str, Any]]:
    from fedsolve.config.schedule_names import SCHEDULES, OptaxFunction

    rows = []
    for name, made_by in SCHEDULES.items():
        if isinstance(made_by, OptaxFunction):
            summary = f"optax.{made_by.function}: {made_by.summary}"
            parameters = list(made_by.signature())
        else:
            summary, parameters = _summary(made_by), _parameters(made_by)
        row = {"name": name, "summary": summary, "citation": "", "parameters": parameters}
        rows.append(row | {"last": ", ".join(parameters)})
    return rows


def _experiments() -> list[dict[str, Any]]:
    from fedsolve.cli.reproduce import time_of
    from fedsolve.studies.reproduce import PROGRAMS, entries, find, repository

    rows = []
    if repository() is None:
        say(
            f"the studies of the papers are in {PROGRAMS}/ of fedsolve's repository: list them in a clone of it"
        )
    for name in entries():
        try:
            found = find(name)
        except InvalidInput as error:  # of another distribution: it hides no one else's
            say(f"left out: {error}")
            continue
        summary = " ".join(
            filter(None, (found.summary.rstrip("."), f"({time_of(found)})" * bool(time_of(found))))
        )
        rows.append({"name": name, "summary": summary, "citation": found.citation, "minutes": found.minutes})
    return rows


def _algorithms() -> list[dict[str, Any]]:
    from fedsolve.cli.configuration.prepare import with_defaults
    from fedsolve.config.build import loop_support, wrapper_arguments
    from fedsolve.config.catalogue import ALGORITHMS, WRAPPERS

    def loop(name: str) -> dict[str, Any]:
        found = loop_support(name)
        return {"trained_client": found.refused or True, "trained_client_needs": list(found.needs)}

    rows = [
        _entry(name, entry, settings=with_defaults(name, {}), **loop(name))
        for name, entry in ALGORITHMS.items()
    ]
    for name, entry in WRAPPERS.items():
        row = {"name": f"{name}+X", "summary": f"{entry.summary}, around any method X, as {name}+FedAdam"}
        settings = {k: a.default for k, a in wrapper_arguments(entry).items() if not a.is_needed}
        rows.append({**row, "citation": entry.citation, "settings": settings, **loop(f"{name}+FedAvg")})
    return rows


def _communication() -> list[dict[str, Any]]:
    from fedsolve.deploy.communication import examples, payload

    rows = []
    for name, algorithm in examples().items():
        found = payload(algorithm)
        row = {
            "name": name,
            "summary": found.summary,
            "citation": "",
            "last": f"no: {found.not_a_sum}" if found.not_a_sum else "yes",
            "sum_is_enough": not found.not_a_sum,
            "down": [f._asdict() for f in found.down],
            "up": [f._asdict() for f in found.up],
        }
        rows.append(row)
    return rows


def _tasks() -> list[dict[str, Any]]:
    from fedsolve.cli.configuration.prepare import task_defaults
    from fedsolve.tasks.catalogue import TASKS

    return [_entry(name, entry, options=task_defaults(name)) for name, entry in TASKS.items()]


def _partitions() -> list[dict[str, Any]]:
    from fedsolve.data.partitions import PARTITIONS

    return [_entry(name, cls, parameters=_parameters(cls)) for name, cls in PARTITIONS.items()]


def _entry(name: str, entry: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "summary": entry.summary, "citation": entry.citation, **more}


def _summary(cls: Any) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def _parameters(cls: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(cls)]


KINDS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "algorithms": _algorithms,
    "tasks": _tasks,
    "partitions": _partitions,
    "geometries": _geometries,
    "schedules": _schedules,
    "experiments": _experiments,
    "communication": _communication,
}
"""What can be listed, and its rows."""


def complete_kind(incomplete: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def list_(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.", autocompletion=complete_kind)
    ],
    as_json: AsJson = False,
) -> None:
    """List all names of one kind, such as methods, tasks or partitions, one per line."""
    former = {"travels": "communication", "methods": "algorithms"}  # and another word
    kind = former.get(kind, kind)
    if kind not in KINDS:
        raise unknown("list", kind, KINDS)
    from fedsolve.config.catalogue import short

    rows = KINDS[kind]()
    if as_json:
        emit_json([{k: v for k, v in row.items() if k != "last"} | _paper(row["citation"]) for row in rows])
        return
    emit_table(
        ("Name", "What it is", _LAST.get(kind, "Paper")),
        [(r["name"], r["summary"], r["last"] if kind in _LAST else short(r["citation"])) for r in rows],
    )


def _paper(key: str) -> dict[str, str]:
    from fedsolve.config.catalogue import short, title

    return {"paper": short(key), "title": title(key)} if key else {}


def settings(
    task: Annotated[
        str,
        typer.Argument(metavar="[TASK]", help="Task, or study (`fedsolve list experiments`). Default: all."),
    ] = "",
    method: Annotated[str, typer.Argument(metavar="[METHOD]", help="Method. Default: all.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show the best settings that the stored studies found, with their grids, scores, costs and origins.

    For example: fedsolve settings femnist FedAdam. Use one with `fedsolve run femnist FedAdam --tuned`.
    """
    from fedsolve.config.catalogue import ALGORITHMS
    from fedsolve.studies.settings import settings

    if not method and (task in ALGORITHMS or "+" in task):
        task, method = "", task
    found = settings(task or None, method or None)
    if as_json:
        emit_json([vars(one) for one in found])
        return
    heads = ("Task", "Best setting", "Score", "Chosen", "Study, processor time, origin")
    emit_table(heads, [one.in_words() for one in found], unbroken=0)


def cite(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file, or the folder of a run.")],
) -> None:
    """Print the BibTeX entries for a run or study: its methods, task, partition and JAX."""
    from fedsolve.cli.configuration.config import CONFIG, parse, read_toml
    from fedsolve.cli.configuration.study import parse_study
    from fedsolve.config.catalogue import BIBTEX

    saved = config.is_dir() and not (config / CONFIG).is_file()
    if saved and (config / "results.json").is_file():
        raise InvalidInput(f"{config} has the results of a study: give the study's TOML file")
    table = {} if saved else read_toml(config)
    parsed = parse_study if {"study", "claim"} & table.keys() else parse
    keys, unknown = _cited_records(config) if saved else _cited_config(parsed(table, str(config)))
    emit("\n\n".join(BIBTEX[key] for key in dict.fromkeys([*keys, _JAX]) if key))
    if unknown:
        say(f"note: no paper is known of {', '.join(unknown)}; add the BibTeX yourself")


def _cited_config(config: Configured) -> tuple[list[str], list[str]]:
    # the keys of the papers, and what has none; the user's own code is not imported to find papers
    from fedsolve.cli.configuration.prepare import task_defaults
    from fedsolve.cli.configuration.trust import would_import
    from fedsolve.config.build import citations
    from fedsolve.data.partitions import as_partition
    from fedsolve.tasks.catalogue import entry

    keys, unknown = list[str](), [f"the {what}" for what in would_import(config)]
    unnamed = getattr(config, "unnamed", {})  # a study has none
    for method in config.method:
        if f"method {method.shown}" in unnamed:
            # an object of Python, perhaps in wrappers of the catalogue
            keys += _known_papers(method.name)
            unknown.append(f"the method {method.shown}")
        else:
            keys += citations(method.name)
    options = config.task_options
    if "task" in unnamed:
        unknown.append(f"the task {config.task}")
    elif not is_reference(config.task):
        keys.append(entry(config.task).citation)
        options = task_defaults(config.task) | options
    partition: Any = options.get("partition")
    return ([*keys, as_partition(partition).citation] if partition is not None else keys), unknown


def _cited_records(folder: Path) -> tuple[list[str], list[str]]:
    # of what `save` in Python left: names alone are known
    from fedsolve.engine.load import load
    from fedsolve.engine.sweep_result import Sweep
    from fedsolve.results.record_files import FEDERATION
    from fedsolve.tasks.catalogue import TASKS

    found = load(folder)
    records = [found] if isinstance(found, Sweep) else found.histories
    keys, unknown = list[str](), list[str]()
    for name in dict.fromkeys(record.label for record in records):
        keys += (papers := _known_papers(name))
        unknown += [] if papers else [f"the method {name}"]
    for task in dict.fromkeys(record.task for record in records if record.task != FEDERATION):
        keys += [TASKS[task].citation] if task in TASKS else []
        unknown += [] if task in TASKS else [f"the task {task}"]
    return keys, unknown


def _known_papers(name: str) -> list[str]:
    from fedsolve.config.catalogue import ALGORITHMS, WRAPPERS

    entries = [found for part in name.split("+") if (found := WRAPPERS.get(part) or ALGORITHMS.get(part))]
    return [key for found in entries for key in found.papers]


# `fedsolve doctor`: a line for each package, extra, device and data set, as (name, whether it is there, words).


_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?P<versions>[^;]*)(?:;.*extra == ['\"](?P<extra>[\w-]+)['\"])?")
_NO_FEATURES = ("all", "test", "dev")  # extras that only name others, or are for those who work on fedsolve

Line = tuple[str, bool, str]


def doctor(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check the installation: list packages, missing extras, devices and data sets, one per line."""
    start_jax()
    lines = [*_installed(), *_machine(), *_data(data_dir)]
    if as_json:
        emit_json([{"name": name, "found": found, "words": words} for name, found, words in lines])
        return
    from rich.text import Text

    there = {True: Text("yes", "green"), False: Text("no", "yellow")}
    emit_table(("", "", ""), [(Text(n), there[found], Text(w)) for n, found, w in lines], unbroken=2)


def _installed() -> Iterator[Line]:
    # what fedsolve's metadata ask for: each package of the core, then one line for each extra
    from fedsolve.engine.identity import provenance

    version = provenance().split(", jax")[0].removeprefix("fedsolve ")
    yield "fedsolve", True, f"{version}, Python {platform.python_version()}"
    try:
        requirements = importlib.metadata.requires("fedsolve") or []
    except importlib.metadata.PackageNotFoundError:  # run from its sources
        return
    extras: dict[str, list[Line]] = {}
    for match in filter(None, map(_REQUIREMENT.match, requirements)):
        package = _package(match["name"], match["versions"].strip())
        if match["extra"] is None:
            yield package
        elif match["name"] != "fedsolve" and match["extra"] not in _NO_FEATURES:
            extras.setdefault(match["extra"], []).append(package)
    for extra, packages in extras.items():
        words = ", ".join(f"{name} {words}" for name, _, words in packages)
        yield f"[{extra}]", all(found for _, found, _ in packages), words


def _package(name: str, versions: str) -> Line:
    needed = f" (needs {versions})" if versions else ""
    try:
        return name, True, f"{importlib.metadata.version(name)}{needed}"
    except importlib.metadata.PackageNotFoundError:
        return name, False, f"is missing{needed}"


def _machine() -> Iterator[Line]:
    import jax

    from fedsolve.core.xla.compiler import cores, use_compile_cache

    found = jax.devices()
    on_cpu = jax.default_backend() == "cpu"
    yield (
        "devices",
        True,
        f"CPU, {cores()} cores as {len(found)}" if on_cpu else (f"{len(found)} x {found[0].device_kind}"),
    )
    folder = use_compile_cache()
    kept = "compiled programs are not kept" if folder is None else f"compiled programs are kept in {folder}"
    yield "cache", folder is not None, kept


def _data(given: Path | None) -> Iterator[Line]:
    from fedsolve.data.sources import data_dir
    from fedsolve.tasks.datasets.download import DATASETS

    try:
        folder = data_dir(given)
    except InvalidInput as error:
        yield "data", False, str(error)
        return
    yield "data", True, str(folder)
    for name, one in DATASETS.items():
        missing = [file for file in one.files if not (folder / file).exists()]
        if one.files:
            words = f"{', '.join(missing)} not there" if missing else f"for the task {one.task}"
            yield f"  {name}", not missing, words
