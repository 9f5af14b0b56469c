"""Options of the command line over the configuration file: the file first, then what was typed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from fedsolve.cli.configuration.grids import parse_seeds
from fedsolve.cli.configuration.trust import admit
from fedsolve.cli.configuration.values import parse_assignments
from fedsolve.config.catalogue import current_name
from fedsolve.config.references import is_reference
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.engine.options import exclusive_options
from fedsolve.tasks.catalogue import entry

_HERE = "command line"


def from_options(
    path: Path | None,
    task: str | None,
    names: Sequence[str],
    settings: Sequence[str],
    options: Sequence[str],
    run: Mapping[str, Any],
    data_dir: Path | None,
    weighting: str | None = None,
    seeds: str | None = None,
    validation: float | None = None,
    trust: Sequence[str] | None = None,
) -> Config:
    """The configuration in a file (if any) with everything typed laid over it.

    Args:
        path: the TOML file.
        task: name of the task; another than the file's drops the options of the file's task.
        names: methods; of those that the file has, by label or name, its settings are kept.
        settings: `key=value` for every method that has the key, or `label.key=value` for one.
        options: `key=value` for the task.
        run: keys of the section `[run]`; None where not typed.
        data_dir: the data folder, for tasks that read files.
        weighting: how all methods weigh clients; it replaces what the file has, of each method too.
        seeds: how many or which, in place of the file's seed or seeds.
        validation: share of every client's examples that is held out of training.
        trust: modules that the file may name though they do not lie beside it.

    Raises:
        InvalidInput: no task or method, something unknown or ill-typed, or code named by the file that may not run.
    """
    if path is None and trust:
        raise InvalidInput(
            "--trust says which modules a file may name: give it with --config, or leave it out"
        )
    table = {} if path is None else read_toml(path / CONFIG if path.is_dir() else path)
    origin = _HERE if path is None else str(path)
    if "task" not in table and not task:
        raise InvalidInput("no task: give TASK or a --config with one (see `fedsolve list tasks`)")
    if "method" not in table and not names:
        raise InvalidInput(
            "no method: name one after the task or give a --config with one (see `fedsolve list algorithms`)"
        )
    typed = {"task": task or table.get("task"), "method": table.get("method") or [{"name": n} for n in names]}
    config = check_runnable(parse({**table, **typed}, origin), Path(origin))
    result = to_table(config)
    if path is not None and task not in (None, table.get("task")):
        result["task_options"] = {}
    result["task_options"] = result.get("task_options", {}) | parse_assignments(options, "--task-set")
    if data_dir is not None:
        _check_reads_files(result["task"])
        result["task_options"]["data_dir"] = str(data_dir)
    methods = _chosen(config.method, names)
    if path is not None:
        used = config.model_copy(update={"method": [MethodSection(**method) for method in methods]})
        admit(used, path, trust, [*([task] if task else []), *names])
    if weighting is not None:
        result["weighting"] = weighting
        for method in methods:
            method.get("settings", {}).pop("weighting", None)
    result["method"] = _with_settings(methods, parse_assignments(settings, "--set"))
    if seeds is not None and run.get("seed") is not None:
        raise InvalidInput("give --seed or --seeds, not both")
    result["run"] = _with_run(result.get("run", {}), run)
    if seeds is not None:
        result["seeds"] = parse_seeds(seeds)
        result["run"].pop("seed", None)
    if validation is not None:
        result["validation"] = validation
    if seeds is None and run.get("seed") is not None:
        result.pop("seeds", None)
    return parse(result, _HERE)


def _check_reads_files(task: str) -> None:
    """Raise `InvalidInput` if a task of the catalogue reads no data files, to which --data-dir would lead."""
    if not is_reference(task) and "data_dir" not in inspect.signature(entry(task).builder).parameters:
        raise InvalidInput(f"--data-dir: the task {task} reads no data files: leave it out")


def to_resume(folder: Path, rounds: int | None, trust: Sequence[str] | None = None) -> Config:
    """The configuration of a folder that is to be continued, with more rounds if asked.

    Raises:
        InvalidInput: there is no run, it has more rounds than are asked for, or it names code that may not run.
    """
    if not (folder / CONFIG).is_file():
        raise InvalidInput(f"{folder} holds no run to resume: it has no {CONFIG}")
    config = check_runnable(load(folder), folder)
    admit(config, folder, trust)
    if rounds is None:
        return config
    if rounds < config.run.rounds:
        raise InvalidInput(f"--rounds {rounds} is less than the {config.run.rounds} of the run: give more")
    return parse(to_table(config) | {"run": {**to_table(config)["run"], "rounds": rounds}}, _HERE)


def _chosen(methods: Sequence[MethodSection], names: Sequence[str]) -> list[dict[str, Any]]:
    """The methods named, from the file where it has them; all of the file if none is named."""
    if not names:
        return [m.model_dump(exclude_none=True) for m in methods]
    chosen: list[dict[str, Any]] = []
    for name in names:
        found = [m for m in methods if m.shown == name] or [
            m for m in methods if m.name == current_name(name)
        ]
        chosen += [m.model_dump(exclude_none=True) for m in found] or [{"name": name}]
    return chosen


def _with_settings(methods: list[dict[str, Any]], assigned: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Methods with typed settings: each key goes to every method that has it, or to the one it names."""
    from fedsolve.config.build import arguments

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
    """The section [run] with typed values; one of two that exclude each other replaces the other."""
    given = {key: _as_number(value) for key, value in typed.items() if value is not None}
    result = dict(section)
    for pair in exclusive_options():
        if any(key in given for key in pair):
            result = {key: value for key, value in result.items() if key not in pair}
    return result | given


def _as_number(value: Any) -> Any:
    """What was typed for an option that takes numbers and words: a number where it is one."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value) else value
