"""From a configuration to a sweep that can start: the grid checked, each value built once, defaults filled in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fedsolve.cli.configuration.config import Config, MethodSection, RunSection, SweepSection
from fedsolve.cli.configuration.prepare import (
    Prepared,
    metrics_of,
    prepare,
    resolve_run,
    run_options,
    task_defaults,
)
from fedsolve.cli.configuration.settings import (
    build_method,
    checked_grid,
    resolve_settings,
    which_seeds,
    with_one_weighting,
    with_values,
)
from fedsolve.config.build import inline_toml
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.engine.sweep_grid import SweepOptions
from fedsolve.results.history import Setting
from fedsolve.results.sweep import Selection
from fedsolve.tasks.task import Task


@dataclass(frozen=True)
class PreparedSweep:
    """A sweep ready to run.

    Attributes:
        config: the configuration with every default filled in; the grid's axes are not among the settings.
        run: what `prepare` made of it at the first setting of the grid.
    """

    config: Config
    run: Prepared

    @property
    def method(self) -> MethodSection:
        """The method swept."""
        return self.config.method[0]

    @property
    def section(self) -> SweepSection:
        """The section `[sweep]`."""
        assert self.config.sweep is not None
        return self.config.sweep

    @property
    def grid(self) -> dict[str, list[Any]]:
        """The axes with their values, None where 'none' is written."""
        return {
            axis: [None if v == "none" else v for v in values] for axis, values in self.section.grid.items()
        }

    def algorithm(self, **values: Any) -> Algorithm:
        """The method at one setting of the grid."""
        return build_method(self.method, values)

    def options(self) -> SweepOptions:
        """The options of the sweep besides its method, task and grid."""
        section = self.section
        assert isinstance(section.seeds, list)
        return SweepOptions(
            run=run_options(self.config.run),
            seeds=tuple(section.seeds),
            selection=Selection.parse(section.select or ""),
            validation=section.validation,
            parallel_trials=section.parallel_trials,
        )

    def settings(self) -> dict[str, Setting]:
        """What all trials share, as flat text and numbers, for the record."""
        found = self.run.settings(self.method)
        hidden = {"seed", "devices", *(axis.partition(".")[0] for axis in self.grid)}
        if self.config.run.chunk is None:
            hidden.add("chunk")
        shared: dict[str, Setting] = {k: v for k, v in found.items() if k not in hidden}
        return shared | {"validation": self.section.validation}

    def command(self, values: Mapping[str, Any]) -> str:
        """The command that runs one setting, with the first seed."""
        return _run_command(_run_at(self.config, values), self.run.task, self.grid)


def command_as_written(config: Config, values: Mapping[str, Any]) -> str:
    """The same of a configuration whose code is not to be imported: all that the file has is written."""
    return _run_command(_run_at(config, values))


def _run_at(config: Config, values: Mapping[str, Any]) -> Config:
    """The configuration of the run at one setting of a sweep, all of whose seeds are named, with the first of them."""
    assert config.sweep is not None
    seeds, swept = config.sweep.seeds, config.method[0]
    first = seeds[0] if isinstance(seeds, list) else 0
    method = swept.model_copy(update={"settings": with_values(swept.settings, values)})
    run = config.run.model_copy(update={"seed": first})
    return config.model_copy(update={"method": [method], "run": run, "sweep": None})


def _run_command(config: Config, task: Task | None = None, always: Collection[str] = ()) -> str:
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


def prepare_sweep(config: Config) -> PreparedSweep:
    """Check the grid, build the method once for each value of each axis, and fill in all defaults.

    Raises:
        InvalidInput: an unknown axis or rule (with the nearest match), or a value that does not fit.
    """
    config = with_one_weighting(config).model_copy(update={"weighting": None})  # an axis may replace it
    section, method = config.sweep, config.method[0]
    assert section is not None
    standard = Selection.standard(config.run.rounds)
    if section.select is None:
        section = section.model_copy(update={"select": f"{standard.metric}:{standard.last}"})
    if (config.run.devices or 1) > 1:
        raise InvalidInput(f"run.devices = {config.run.devices}: a sweep runs on one device; leave it out")
    seeds = which_seeds([config.run.seed] if section.seeds is None else section.seeds)
    grid = checked_grid(method, section.grid, len(seeds))
    first = {axis: values[0] for axis, values in grid.items()}
    at_first = method.model_copy(update={"settings": with_values(method.settings, first)})
    run = config.run.model_copy(update={"devices": 1})
    prepared = prepare(config.model_copy(update={"method": [at_first], "run": run, "sweep": None}))
    _check_rule(section, prepared)
    if section.validation is not None:
        prepared.task.hold_out(section.validation)
    resolved = prepared.config.method[0]
    kept = _off_the_grid(method.settings, resolved.settings, grid)
    whole = prepared.config.model_copy(
        update={
            "method": [resolved.model_copy(update={"settings": kept})],
            "run": prepared.config.run.model_copy(update={"chunk": config.run.chunk, "seed": 0}),
            "sweep": section.model_copy(update={"grid": grid, "seeds": list(seeds)}),
        }
    )
    return PreparedSweep(whole, prepared)


def _check_rule(section: SweepSection, prepared: Prepared) -> None:
    """Raise `InvalidInput` unless the runs of a sweep measure what the best setting is selected by."""
    metric = Selection.parse(section.select or "").metric
    if metric.startswith("validation_") and section.validation is None and prepared.task.validation is None:
        raise InvalidInput(
            f"the rule '{section.select}' needs examples held out of training: give --validation 0.1"
        )
    measured = metrics_of(prepared.task, prepared.algorithms[0], section.validation is not None)
    if metric not in measured:
        raise unknown("metric of the selection", metric, measured)


def _off_the_grid(
    given: Mapping[str, Any], resolved: Mapping[str, Any], grid: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings that no axis has; a table of which an axis has one key stays as it was given."""
    heads = {axis: axis.partition(".")[0] for axis in grid}
    kept = {key: value for key, value in resolved.items() if key not in heads.values()}
    tables = [head for axis, head in heads.items() if axis != head and head in given]
    return kept | {head: given[head] for head in tables}
