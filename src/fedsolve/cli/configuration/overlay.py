"""Options of the command line over the configuration file: the file first, then what was typed."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsolve.cli.configuration.command_options import Request, SweepRequest
from fedsolve.cli.configuration.config import (
    CONFIG,
    Config,
    MethodSection,
    check_runnable,
    load,
    parse,
    read_toml,
    to_table,
)
from fedsolve.cli.configuration.trust import check_trusted
from fedsolve.cli.configuration.values import (
    EXAMPLE,
    check_labels,
    parse_assignments,
    parse_grid,
    parse_method,
    parse_seeds,
)
from fedsolve.cli.console import say
from fedsolve.config.build import arguments
from fedsolve.config.catalogue import ALGORITHMS, current_name
from fedsolve.config.references import is_reference
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.engine.options import exclusive_options
from fedsolve.results.record_files import no_record
from fedsolve.tasks.catalogue import entry

_COMMAND_LINE = "command line"


def from_options(request: Request) -> Config:
    """The configuration that a command runs: of the folder that it resumes, or of a file under what was typed."""
    swept = isinstance(request, SweepRequest)
    if request.resume is not None:
        config = _resumed_config(request.resume, request.run.get("rounds"), request.trust)
        if swept and config.sweep is None:
            command = "run" if len(config.method) == 1 else "compare"
            raise InvalidInput(
                f"{request.resume} holds no sweep: resume it with `fedsolve {command} --resume {request.resume}`"
            )
    else:
        config = _sweep_config(request) if swept else _merged_config(request)
        config = _with_tuned(config) if getattr(request, "tuned", False) else config
    if config.sweep is not None and not swept:
        given = f"--resume {request.resume}" if request.resume else f"--config {request.config}"
        raise InvalidInput(f"this is the configuration of a sweep: use `fedsolve sweep {given}`")
    return config


def _with_tuned(config: Config) -> Config:
    # the best setting of the stored studies below that of the method, whose own values stay
    from fedsolve.studies.settings import choose

    method = config.method[0]
    run = config.run.model_dump(exclude_none=True) | {"validation": config.validation}
    found, words = choose(method.name, config.task, config.task_options, run, method.settings)
    say(words)
    section = method.model_copy(update={"settings": dict(found.settings) | method.settings})
    return config.model_copy(update={"method": [section, *config.method[1:]]})


def _resumed_config(folder: Path, rounds: int | None, trust: Sequence[str] | None) -> Config:
    if not (folder / CONFIG).is_file():
        raise no_record(folder, f"holds no run to resume: it has no {CONFIG}")
    config = check_runnable(load(folder), folder)
    check_trusted(config, folder, trust)
    if rounds is None:
        return config
    if rounds < config.run.rounds:
        raise InvalidInput(f"--rounds {rounds} is less than the {config.run.rounds} of the run: give more")
    return parse(to_table(config) | {"run": {**to_table(config)["run"], "rounds": rounds}}, _COMMAND_LINE)


def _merged_config(request: Request) -> Config:
    path = request.config
    if path is None and request.trust:
        raise InvalidInput(
            "--trust says which modules a file may name: give it with --config, or leave it out"
        )
    file = {} if path is None else read_toml(path)
    # the file alone is checked first, so that what is wrong in it is said of the file
    config = _complete(request, file)
    table = to_table(config)
    task_options = {} if request.task not in (None, file.get("task")) else table.get("task_options", {})
    table["task_options"] = task_options | _typed_task_options(request, config.task)
    # of methods that are typed, those of the file keep its settings; others begin with their defaults
    in_file = config.method if "method" in file else ()
    named = [parse_method(text, [m.shown for m in in_file]) for text in request.methods]
    methods = _selected_methods(in_file, named)
    if path is not None:
        # only what is going to run is imported: a method that the file has and nobody asks for is not
        used = config.model_copy(update={"method": [MethodSection(**method) for method in methods]})
        tasks = [request.task] if request.task else []
        check_trusted(used, path, request.trust, [*tasks, *(method["name"] for method in named)])
    if request.weighting is not None:
        table["weighting"] = request.weighting
        for method in methods:
            method.get("settings", {}).pop("weighting", None)
    # settings last: they go to the methods that are left
    table["method"] = _with_settings(methods, parse_assignments(request.settings or (), "--set"))
    table = _with_seeds(table | {"run": _with_run(table.get("run", {}), request.run)}, request)
    if request.validation is not None:
        table["validation"] = request.validation
    return parse(table, _COMMAND_LINE)


def _complete(request: Request, file: Mapping[str, Any]) -> Config:
    # what a file has, and where it has none the task and the methods that were typed
    names = request.methods
    if "task" not in file and not request.task:
        raise InvalidInput("no task: give TASK or a --config with one (see `fedsolve list tasks`)")
    if request.task in ALGORITHMS:
        raise InvalidInput(
            f"{request.task} is a method: the task comes first, such as `fedsolve run digits {request.task}`"
        )
    if "method" not in file and not names:
        raise InvalidInput(
            "no method: name one after the task or give a --config with one (see `fedsolve list algorithms`)"
        )
    origin = _COMMAND_LINE if request.config is None else str(request.config)
    methods = file.get("method") or [parse_method(text) for text in names]
    table = {**file, "task": request.task or file.get("task"), "method": methods}
    return check_runnable(parse(table, origin), Path(origin))


def _typed_task_options(request: Request, task: str) -> dict[str, Any]:
    found = parse_assignments(request.task_set or (), "--task-set")
    if request.data_dir is None:
        return found
    if not is_reference(task) and "data_dir" not in inspect.signature(entry(task).builder).parameters:
        raise InvalidInput(f"--data-dir: the task {task} reads no data files: leave it out")
    return found | {"data_dir": str(request.data_dir)}


def _with_seeds(table: dict[str, Any], request: Request) -> dict[str, Any]:
    # seeds that were typed replace a seed of the file, and the other way round
    one = request.run.get("seed")
    if request.seeds is not None and one is not None:
        raise InvalidInput("give --seed or --seeds, not both")
    if request.seeds is not None:
        run = {key: value for key, value in table["run"].items() if key != "seed"}
        return table | {"run": run, "seeds": parse_seeds(request.seeds)}
    return table if one is None else {key: value for key, value in table.items() if key != "seeds"}


def _sweep_config(request: SweepRequest) -> Config:
    grid = parse_grid(request.grid or [])
    for axis in grid:
        if axis in parse_assignments(request.settings or [], "--set"):
            raise InvalidInput(f"{axis} is given by --set and by --grid: give one of them")
    # seeds and validation are of [sweep] here
    # [sweep] has its own keys for what else is run.seed and the validation of a run
    config = _merged_config(dataclasses.replace(request, seeds=None, validation=None))
    if len(config.method) > 1:
        labels = ", ".join(m.shown for m in config.method)
        raise InvalidInput(f"{len(config.method)} methods ({labels}): name the one to sweep")
    table = to_table(config)
    section = dict(table.get("sweep", {}))
    if grid:
        section["grid"] = grid
    if "grid" not in section:
        raise InvalidInput(f"no grid: give at least one axis, such as {EXAMPLE}")
    if request.seeds is not None:
        section["seeds"] = parse_seeds(request.seeds)
    own = ("search", "trials", "search_seed", "halving", "select", "validation", "parallel_trials")
    typed = {name: getattr(request, name) for name in own}
    section |= {name: value for name, value in typed.items() if value is not None}
    origin = _COMMAND_LINE if request.config is None else str(request.config)
    return parse(table | {"sweep": section}, origin)


def _selected_methods(
    methods: Sequence[MethodSection], named: Sequence[dict[str, str]]
) -> list[dict[str, Any]]:
    # of a file that has a method, its settings are kept
    if not named:
        return [m.model_dump(exclude_none=True) for m in methods]
    chosen: list[dict[str, Any]] = []
    for typed in named:
        name = current_name(typed["name"])
        in_file = [m for m in methods if m.shown == typed["name"]] or [m for m in methods if m.name == name]
        # the label that was typed replaces the file's; the name may be a label of the file
        label = {key: value for key, value in typed.items() if key == "label"}
        chosen += [m.model_dump(exclude_none=True) | label for m in in_file] or [typed | {"name": name}]
    check_labels(_COMMAND_LINE, [m.get("label") or m["name"] for m in chosen])
    return chosen


def _with_settings(methods: list[dict[str, Any]], assigned: Mapping[str, Any]) -> list[dict[str, Any]]:
    # each key goes to every method that has it, or to the one it names
    known = {m.get("label") or m["name"]: arguments(m["name"]) for m in methods}
    result = {m.get("label") or m["name"]: {**m, "settings": dict(m.get("settings", {}))} for m in methods}
    for key, value in assigned.items():
        label, dot, name = key.rpartition(".")
        if dot and label not in known:
            raise unknown("method of --set", label, known)
        takers = [label] if dot else [shown for shown, keys in known.items() if name in keys]
        if not takers or name not in known[takers[0]]:
            raise unknown(
                f"setting of {label or ', '.join(known)}", name, {k for v in known.values() for k in v}
            )
        for taker in takers:
            result[taker]["settings"][name] = value
    return list(result.values())


def _with_run(section: Mapping[str, Any], typed: Mapping[str, Any]) -> dict[str, Any]:
    # one of two options that exclude each other replaces the other
    given = {key: _as_number(value) for key, value in typed.items() if value is not None}
    result = dict(section)
    for pair in exclusive_options():
        if any(key in given for key in pair):
            result = {key: value for key, value in result.items() if key not in pair}
    return result | given


def _as_number(value: Any) -> Any:
    # an option that takes numbers and words is typed as text
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value) else value
