"""The commands `run`, `compare` and `sweep`: what was typed, over a file or not, as a configuration that is run."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import typer

from fedsolve.cli.configuration import arguments as arg
from fedsolve.cli.processes.devices import start_jax
from fedsolve.cli.processes.distributed_init import is_started, join, spread
from fedsolve.core.errors import InvalidInput


@arg.with_run_options()
def run(
    context: typer.Context,
    task: arg.TaskName = None,
    name: arg.Name = None,
    settings: arg.Settings = None,
    seeds: arg.Seeds = None,
    validation: arg.Validation = None,
    task_set: arg.TaskOptions = None,
    config: arg.ConfigFile = None,
    data_dir: arg.DataDir = None,
    out: arg.Out = None,
    resume: arg.Resume = None,
    processes: arg.Processes = None,
    trust: arg.Trust = None,
    track: arg.Track = None,
    watch: arg.Watch = False,
    as_json: arg.AsJson = False,
    **options: Any,
) -> None:
    """Run one method on one task, into a folder with its record, model, plots and page."""
    names = [] if name is None else [name]
    resolved = _resolve(
        context, task, names, settings, task_set, config, data_dir, resume, options,
        seeds=seeds, validation=validation, trust=trust,
    )  # fmt: skip
    resolved = _shared(resolved, processes, resume is not None, context.obj)
    if len(resolved.method) > 1:
        labels = ", ".join(m.shown for m in resolved.method)
        raise InvalidInput(
            f"{len(resolved.method)} methods ({labels}): name one after the task or compare them"
        )
    from fedsolve.cli.commands.runs import run_command

    raise typer.Exit(run_command(resolved, out, resume, as_json, watch, track or ()))


@arg.with_run_options()
def compare(
    context: typer.Context,
    task: arg.TaskName = None,
    names: arg.Names = None,
    settings: arg.SettingsOfEach = None,
    weighting: arg.Weighting = None,
    seeds: arg.Seeds = None,
    validation: arg.Validation = None,
    task_set: arg.TaskOptions = None,
    config: arg.ConfigFile = None,
    data_dir: arg.DataDir = None,
    out: arg.Out = None,
    resume: arg.Resume = None,
    trust: arg.Trust = None,
    track: arg.Track = None,
    watch: arg.Watch = False,
    as_json: arg.AsJson = False,
    **options: Any,
) -> None:
    """Run several methods on one task, into a folder with a table, a plot and a page of all."""
    resolved = _resolve(
        context, task, names or [], settings, task_set, config, data_dir, resume, options, weighting,
        seeds, validation, trust,
    )  # fmt: skip
    start_jax(_devices(resolved))
    from fedsolve.cli.commands.compare import compare_command

    raise typer.Exit(compare_command(resolved, out, resume, as_json, watch, track or ()))


@arg.with_run_options(swept=True)
def sweep(
    context: typer.Context,
    task: arg.TaskName = None,
    name: arg.Name = None,
    grid: arg.Grid = None,
    seeds: arg.Seeds = None,
    select: arg.Select = None,
    validation: arg.Validation = None,
    settings: arg.Settings = None,
    task_set: arg.TaskOptions = None,
    config: arg.ConfigFile = None,
    parallel_trials: arg.ParallelTrials = None,
    data_dir: arg.DataDir = None,
    out: arg.Out = None,
    resume: arg.ResumeSweep = None,
    trust: arg.Trust = None,
    watch: arg.Watch = False,
    as_json: arg.AsJson = False,
    **options: Any,
) -> None:
    """Run one method at every setting of a grid, with several seeds, as one program; choose the best setting.

    For example: fedsolve sweep digits FedAdam --grid client_lr=1e-3:1:7log --grid server_lr=1e-3:1:7log --seeds 5
    """
    from fedsolve.cli.configuration.sweep_prepare import sweep_from_options, sweep_to_resume

    if resume is not None:
        _refuse_others(context, "a sweep is resumed as it was")
        resolved = sweep_to_resume(resume, trust)
    else:
        typed = {
            "grid": grid,
            "seeds": seeds,
            "select": select,
            "validation": validation,
            "parallel_trials": parallel_trials,
        }
        resolved = sweep_from_options(
            config, task, name, settings or [], task_set or [], options, data_dir, typed, trust
        )
    start_jax()
    from fedsolve.cli.commands.sweeps import sweep_command

    raise typer.Exit(sweep_command(resolved, out, resume, as_json, watch))


def _shared(config: Any, processes: int | None, resumed: bool, arguments: Sequence[str]) -> Any:
    """The configuration as this process shares it with the others of its run, which are started or met; JAX is set up.

    Where it has started them it does not return: the first of them says what there is to say.
    """
    devices = _devices(config)
    if processes is not None and processes > 1:
        config = spread(config, processes, resumed)
        if not is_started():
            from fedsolve.cli.processes.local_processes import run_locally

            raise SystemExit(run_locally(arguments, processes))
        devices = config.run.devices // processes
    elif is_started():  # each process of a cluster has its own, and a run goes on with what there is
        devices = 1
        if resumed:
            config = config.model_copy(update={"run": config.run.model_copy(update={"devices": None})})
    start_jax(devices)
    join()
    return config


def _devices(config: Any) -> int:
    """How many devices a configuration asks for."""
    return config.run.devices or prod((config.run.mesh or {}).values())


def _resolve(
    context: typer.Context,
    task: str | None,
    names: Sequence[str],
    settings: Sequence[str] | None,
    task_set: Sequence[str] | None,
    config: Path | None,
    data_dir: Path | None,
    resume: Path | None,
    options: dict[str, Any],
    weighting: str | None = None,
    seeds: str | None = None,
    validation: float | None = None,
    trust: Sequence[str] | None = None,
) -> Any:
    """The configuration that options (and the file they name) describe."""
    from fedsolve.cli.configuration.options import from_options, to_resume

    if resume is not None:
        _refuse_others(context, "only --rounds can change", "rounds")
        resolved = to_resume(resume, options["rounds"], trust)
    else:
        resolved = from_options(
            config, task, names, settings or [], task_set or [], options, data_dir, weighting,
            seeds, validation, trust,
        )  # fmt: skip
    if resolved.sweep is not None:
        given = f"--resume {resume}" if resume else f"--config {config}"
        raise InvalidInput(f"this is the configuration of a sweep: use `fedsolve sweep {given}`")
    return resolved


def _refuse_others(context: typer.Context, allowed: str, *kept: str) -> None:
    """Raise `InvalidInput` if more than --resume and --json was typed, besides the parameters `kept`."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        typed = source is not None and source.name == "COMMANDLINE" and context.params[parameter.name or ""]
        if typed and parameter.name not in (
            "resume",
            "as_json",
            "watch",
            "track",
            "processes",
            "trust",
            *kept,
        ):
            is_option = parameter.param_type_name == "option"
            name = parameter.opts[0] if is_option else str(parameter.metavar).rstrip(".")
            raise InvalidInput(f"{name} does not go with --resume: {allowed}")
