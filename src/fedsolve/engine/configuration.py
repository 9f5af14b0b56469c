"""The configuration that runs from Python leave, for `fedsolve show` and `fedsolve watch`.

Python's objects have no names in a configuration: the file tells each in words, and cannot be run by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedsolve.algorithm import Algorithm, name_of
from fedsolve.engine.identity import describe, provenance
from fedsolve.engine.processes import is_first
from fedsolve.errors import Diverged, Interrupted
from fedsolve.files import write_atomically
from fedsolve.options import RunOptions, written_options
from fedsolve.results.record_files import CONFIG
from fedsolve.sampling import Bernoulli
from fedsolve.tasks.task import Task


@contextlib.contextmanager
def configured(
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
    given = vars(options.with_defaults(task))
    unnamed = {"task": f"{task.name}, {task.data.num_clients:,} clients"}
    unnamed |= {f"method {label}": describe(method) for label, method in methods.items()}
    run: dict[str, Any] = {}
    for option in written_options():
        value = given.get(option.name)
        if isinstance(value, str | int | float):
            run[option.name] = value
        elif value is not None:
            unnamed[option.name] = describe(value)
    sampling = options.sampling
    if isinstance(sampling, Bernoulli):
        run["participation"] = sampling.p
    elif sampling is not None:
        unnamed["sampling"] = describe(sampling)
    table: dict[str, Any] = {"task": task.name, "run": run, "unnamed": unnamed}
    if seeds is not None:
        run.pop("seed", None)
        table["seeds"] = list(seeds)
    table["method"] = [{"name": name_of(method), "label": label} for label, method in methods.items()]
    comment = f"# {provenance()}; left by Python: what [unnamed] tells in words is in no configuration\n"
    write_atomically(Path(out) / CONFIG, comment + tomli_w.dumps(table))
