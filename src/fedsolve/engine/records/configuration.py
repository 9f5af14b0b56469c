"""The configuration that runs from Python leave: what the command line runs again, where its parts have names.

A method, a task or a sampling that no configuration can name is told in words, and the file is there to be shown alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedsolve.config.build import named, to_plain
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.building import Made
from fedsolve.core.errors import Diverged, Interrupted
from fedsolve.core.sampling import Bernoulli
from fedsolve.data.partitions import Partition
from fedsolve.engine.compute.processes import is_first
from fedsolve.engine.options import RunOptions, written_options
from fedsolve.engine.records.identity import describe, provenance
from fedsolve.folders.files import write_atomically
from fedsolve.results.record_files import CONFIG
from fedsolve.tasks.task import Task


@contextlib.contextmanager
def writing_config(
    out: str | Path | None,
    methods: Mapping[str, Algorithm],
    task: Task,
    options: RunOptions,
    seeds: Sequence[int] | None,
) -> Iterator[None]:
    """Leave the configuration of the runs within in their folder, if there is one and they were not refused."""
    try:
        yield
    except (Interrupted, Diverged):
        _write(out, methods, task, options, seeds)
        raise
    _write(out, methods, task, options, seeds)


def _write(
    out: str | Path | None,
    methods: Mapping[str, Algorithm],
    task: Task,
    options: RunOptions,
    seeds: Sequence[int] | None,
) -> None:
    if out is None or not is_first() or not Path(out).is_dir():
        return
    unnamed: dict[str, str] = {}
    table = _task(task, unnamed) | {"run": _run(options.with_defaults(task), unnamed)}
    if seeds is not None:
        table["run"].pop("seed", None)
        table["seeds"] = list(seeds)
    table["method"] = [_method(label, method, unnamed) for label, method in methods.items()]
    table |= {"unnamed": unnamed} if unnamed else {}
    words = "; what [unnamed] tells in words is in no configuration" if unnamed else ""
    write_atomically(Path(out) / CONFIG, f"# {provenance()}; left by Python{words}\n{tomli_w.dumps(table)}")


def _task(task: Task, unnamed: dict[str, str]) -> dict[str, Any]:
    """The task's keys; in words what has none."""
    made = task.made_by
    if made is None:
        unnamed["task"] = f"{task.name}, {task.data.num_clients:,} clients"
        return {"task": task.name}
    return task_table(made, unnamed)


def task_table(made: Made, unnamed: dict[str, str]) -> dict[str, Any]:
    """The keys of a task that a catalogue's builder made; options that have no names come into `unnamed`, in words."""
    options: dict[str, Any] = {}
    for name, value in made.options.items():
        given = {"name": value.name, **vars(value)} if isinstance(value, Partition) else value
        given = str(given) if isinstance(given, Path) else given
        if isinstance(given, bool | int | float | str | Mapping):
            options[name] = to_plain(given)
        elif given is not None:
            unnamed[f"task option {name}"] = describe(value)
    held_out = {} if made.validation is None else {"validation": made.validation}
    return {"task": made.name, **held_out, "task_options": options}


def _run(options: RunOptions, unnamed: dict[str, str]) -> dict[str, Any]:
    """The section `[run]`."""
    section: dict[str, Any] = {}
    for option in written_options():
        value = getattr(options, option.name, None)
        if isinstance(value, str | int | float | Mapping):
            section[option.name] = value
        elif value is not None:
            unnamed[option.name] = describe(value)
    sampling = options.sampling
    if isinstance(sampling, Bernoulli):
        section["participation"] = sampling.p
    elif sampling is not None:
        unnamed["sampling"] = describe(sampling)
    return section


def _method(label: str, method: Algorithm, unnamed: dict[str, str]) -> dict[str, Any]:
    """A section `[[method]]`."""
    recipe = named(method)
    if recipe is None:
        unnamed[f"method {label}"] = describe(method)
        return {"name": name_of(method), "label": label}
    name, settings = recipe
    return {"name": name, "label": label, "settings": settings}
