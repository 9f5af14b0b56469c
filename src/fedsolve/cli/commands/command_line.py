"""A run's configuration as the command one would type, defaults left out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from typing import Any

from fedsolve.cli.configuration.config import Config, RunSection
from fedsolve.cli.configuration.prepare import resolve_run, task_defaults
from fedsolve.cli.configuration.settings import resolve_settings
from fedsolve.config.config_objects import inline_toml
from fedsolve.tasks.task import Task


def run_command_line(config: Config, task: Task | None = None, always: Collection[str] = ()) -> str:
    """The command `fedsolve run ...` that runs a configuration of one method; settings in `always` are written.

    Without the task nothing is known of defaults: the user's own code is not imported, and all is written.
    """
    method = config.method[0]
    words = ["fedsolve", "run", config.task, method.name]
    standard = {} if task is None else resolve_settings(method.name, {})
    for key, value in method.settings.items():
        if key in always or standard.get(key) != value:
            words += ["--set", f"{key}={_typed(value)}"]
    options = {} if task is None else task_defaults(config.task)
    for key, value in config.task_options.items():
        if options.get(key) != value and key != "data_dir":
            words += ["--task-set", f"{key}={_typed(value)}"]
    if "data_dir" in config.task_options:
        words += ["--data-dir", str(config.task_options["data_dir"])]
    given = config.run.model_dump(exclude_none=True, exclude={"chunk"})
    standard_run = RunSection(rounds=config.run.rounds)
    run = standard_run if task is None else resolve_run(standard_run, task)
    usual = run.model_dump(exclude_none=True, exclude={"rounds"})
    for key, value in given.items():
        if usual.get(key) != value:
            words += [f"--{key.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _typed(value: Any) -> str:
    """A value as one types it: a word without quotes."""
    word = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w-]*", value)
    return value if word and value not in ("true", "false", "nan", "inf") else inline_toml(value)
