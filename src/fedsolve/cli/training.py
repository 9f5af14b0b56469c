"""The commands `run`, `compare` and `sweep`, whose request becomes a configuration that is run; `show` and `stop`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsolve.cli.configuration.command_options import (
    AsJson,
    CompareRequest,
    Metrics,
    Request,
    RunRequest,
    SweepRequest,
    Target,
    with_request,
)
from fedsolve.cli.processes import is_started, join, spread, start_jax
from fedsolve.core.errors import InvalidInput

if TYPE_CHECKING:
    from fedsolve.cli.configuration.config import Config


_ALLOWED_ON_RESUME = (
    "resume", "as_json", "track", "processes", "executor", "trust", "metrics", "target",
)  # fmt: skip
"""What may be typed beside `--resume`."""


@with_request(RunRequest)
def run(context: typer.Context, request: RunRequest) -> None:
    """Run one method on one task; write its record, model, plots and page to a folder."""
    config = _join_processes(_config(context, request), request, context.obj)
    if len(config.method) > 1:
        labels = ", ".join(m.shown for m in config.method)
        raise InvalidInput(
            f"{len(config.method)} methods ({labels}): name one after the task or compare them"
        )
    from fedsolve.cli.runs import run_command

    raise typer.Exit(run_command(config, request))


@with_request(CompareRequest)
def compare(context: typer.Context, request: CompareRequest) -> None:
    """Run several methods on one task; write a table, a plot and a page of all to a folder."""
    config = _on_devices_of(request.resume, _config(context, request))
    start_jax(_devices(config))
    from fedsolve.cli.runs import compare_command

    raise typer.Exit(compare_command(config, request))


@with_request(SweepRequest)
def sweep(context: typer.Context, request: SweepRequest) -> None:
    """Run one method at every setting of a grid, with several seeds, and select the best setting.

    For example: fedsolve sweep digits FedAdam --grid client_lr=1e-3:1:7log --grid server_lr=1e-3:1:7log --seeds 5
    """
    config = _config(context, request)
    start_jax()
    from fedsolve.cli.runs import sweep_command

    raise typer.Exit(sweep_command(config, request))


def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run, a comparison or a sweep.")],
    as_json: AsJson = False,
    metrics: Metrics = None,
    target: Target = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Repeat after every change until the run ends.")
    ] = False,
) -> None:
    """Show the table of a run, a comparison or a sweep, finished or not, and the paths of its plots and page."""
    from fedsolve.cli.show import follow_command, show_command

    (follow_command if follow else show_command)(folder, as_json, metrics, target)


def stop(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a run, a comparison, a sweep or a study.")
    ],
) -> None:
    """Save and stop a run after its current round, as Ctrl-C does, and wait until it has stopped."""
    from fedsolve.cli.console import say
    from fedsolve.folders.files import stop_within

    stop_within(folder)
    say(f"stopped: nothing runs in {folder} any more")


def _join_processes(config: Config, request: RunRequest, arguments: Sequence[str]) -> Config:
    # where this process starts the others it does not return: the first of them says what there is to say
    devices, processes, resumed = _devices(config), request.processes, request.resume is not None
    if processes is not None and processes > 1:
        config = spread(config, processes, resumed)
        if not is_started():
            from fedsolve.cli.processes import run_locally

            raise SystemExit(run_locally(arguments, processes))
        assert config.run.devices is not None
        devices = config.run.devices // processes
    elif is_started():  # each process of a cluster has its own, and a run goes on with what there is
        devices = 1
        if resumed:
            config = config.model_copy(update={"run": config.run.model_copy(update={"devices": None})})
    else:
        config = _on_devices_of(request.resume, config)
        devices = _devices(config)
    start_jax(devices)
    join()
    return config


def _devices(config: Config) -> int | None:
    # None where the layout of a round decides
    return config.run.devices if config.run.mesh is None else prod(config.run.mesh.values())


def _on_devices_of(folder: str | Path | None, config: Config) -> Config:
    # a run goes on on as many devices as it had, where none are given
    if folder is None or config.run.devices is not None or config.run.mesh is not None:
        return config
    from fedsolve.core.xla.compiler import cores
    from fedsolve.folders.run_folder import RUN, read_manifest

    # the same number of devices gives the same bits; fewer cores than it had give the same to rounding
    checkpoints = sorted(Path(folder).glob(f"**/{RUN.file}"))
    if not checkpoints:
        return config
    had = min(read_manifest(checkpoints[0])["identity"].get("devices", 1), cores())
    return config.model_copy(update={"run": config.run.model_copy(update={"devices": had})})


def _config(context: typer.Context, request: Request) -> Config:
    from fedsolve.cli.configuration.overlay import from_options

    taken = _ALLOWED_ON_RESUME if request.swept else (*_ALLOWED_ON_RESUME, "rounds")
    allowed = "a sweep is resumed as it was" if request.swept else "only --rounds can change"
    for parameter in context.command.params if request.resume is not None else ():
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        typed = source is not None and source.name == "COMMANDLINE" and context.params[name]
        if typed and name not in taken:
            is_option = parameter.param_type_name == "option"
            shown = parameter.opts[0] if is_option else str(parameter.metavar).rstrip(".")
            raise InvalidInput(f"{shown} does not go with --resume: {allowed}")
    return from_options(request)
