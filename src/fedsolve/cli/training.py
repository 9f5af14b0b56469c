"""The commands `run`, `compare` and `sweep`, whose request becomes a configuration that is run; `show` and `stop`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from fedsolve.cli.configuration.config import Config
from fedsolve.cli.configuration.prepare import (
    Prepared,
    PreparedSweep,
    check_shown,
    prepare,
    prepare_sweep,
    untuned,
)
from fedsolve.cli.configuration.typed import (
    AsJson,
    CompareRequest,
    Metrics,
    Request,
    RunRequest,
    SweepRequest,
    Target,
    names_of,
    takes,
)
from fedsolve.cli.console import emit_json, say
from fedsolve.cli.folders import (
    TRIAL_FOLDERS,
    begun,
    document,
    how_to_resume,
    page_meanwhile,
    print_result,
    run_folders,
    save_config,
    write_report,
)
from fedsolve.cli.processes import is_started, join, spread, start_jax
from fedsolve.cli.progress import open_display, open_sweep_display
from fedsolve.cli.show import check_trackers, finish_method, follow, runs_of
from fedsolve.cli.sweep_result import all_diverged, print_sweep, save_page, sweep_page_meanwhile
from fedsolve.config.weighting import different_objectives
from fedsolve.core.errors import Diverged, Interrupted, InvalidInput
from fedsolve.engine.compute.sharding import is_first
from fedsolve.engine.prepare import check_all_begin
from fedsolve.engine.running_page import ended
from fedsolve.engine.scheduler import MethodRuns, running
from fedsolve.engine.sweep import run_sweep
from fedsolve.folders.files import locked
from fedsolve.folders.run_folder import SWEEP
from fedsolve.report.plots import load_meanwhile
from fedsolve.report.table import result_rows
from fedsolve.results.history import History
from fedsolve.results.record_files import method_folders, read_failure
from fedsolve.results.sweep import SUMMARY, SweepRecord, load, require_parquet, save

_RESUMED_WITH = ("resume", "as_json", "track", "processes", "trust", "metrics", "target")
"""What may be typed beside `--resume`."""


@takes(RunRequest)
def run(context: typer.Context, request: RunRequest) -> None:
    """Run one method on one task; write its record, model, plots and page to a folder."""
    config = _shared(_config(context, request), request, context.obj)
    if len(config.method) > 1:
        labels = ", ".join(m.shown for m in config.method)
        raise InvalidInput(
            f"{len(config.method)} methods ({labels}): name one after the task or compare them"
        )

    raise typer.Exit(run_command(config, request))


@takes(CompareRequest)
def compare(context: typer.Context, request: CompareRequest) -> None:
    """Run several methods on one task; write a table, a plot and a page of all to a folder."""
    config = _on_devices_of(request.resume, _config(context, request))
    start_jax(_devices(config))

    raise typer.Exit(compare_command(config, request))


@takes(SweepRequest)
def sweep(context: typer.Context, request: SweepRequest) -> None:
    """Run one method at every setting of a grid, with several seeds, and select the best setting.

    For example: fedsolve sweep digits FedAdam --grid client_lr=1e-3:1:7log --grid server_lr=1e-3:1:7log --seeds 5
    """
    config = _config(context, request)
    start_jax()

    raise typer.Exit(sweep_command(config, request))


def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run, a comparison or a sweep.")],
    as_json: AsJson = False,
    metrics: Metrics = None,
    target: Target = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show it again when it changes, until it ends.")
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
    """Ask what runs in a folder to save and stop after its current round, as Ctrl-C does, and wait until it has."""
    from fedsolve.cli.console import say
    from fedsolve.folders.files import stop_within

    stop_within(folder)
    say(f"stopped: nothing runs in {folder} any more")


def _shared(config: Config, request: RunRequest, arguments: Sequence[str]) -> Config:
    """The configuration as this process shares it with the others of its run, which are started or met; JAX is set up.

    Where it has started them it does not return: the first of them says what there is to say.
    """
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
    """How many devices a configuration asks for, None where it leaves that to the layout of a round."""
    return config.run.devices if config.run.mesh is None else prod(config.run.mesh.values())


def _on_devices_of(folder: str | Path | None, config: Config) -> Config:
    """The configuration of a run that goes on in a folder: on as many devices as it had, where none are given."""
    if folder is None or config.run.devices is not None or config.run.mesh is not None:
        return config
    from fedsolve.core.xla.compiler import cores
    from fedsolve.folders.run_folder import RUN, read_manifest

    checkpoints = sorted(Path(folder).glob(f"**/{RUN.file}"))
    if not checkpoints:
        return config
    had = min(read_manifest(checkpoints[0])["identity"].get("devices", 1), cores())
    return config.model_copy(update={"run": config.run.model_copy(update={"devices": had})})


def _config(context: typer.Context, request: Request) -> Config:
    """The configuration that a request describes.

    Raises:
        InvalidInput: as `from_options`; something was typed that does not go with `--resume`.
    """
    from fedsolve.cli.configuration.typed import from_options

    taken = _RESUMED_WITH if request.swept else (*_RESUMED_WITH, "rounds")
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


# `fedsolve compare`: several methods on one task, a folder for each, one table, plot and page.


class Outcome(NamedTuple):
    """How the runs of one method ended: their records, and why runs diverged, by run."""

    histories: Sequence[History]
    failures: Mapping[str, str]


def compare_command(config: Config, request: CompareRequest) -> int:
    """Run what is not finished of a comparison, write its folder and print the table.

    Returns:
        The exit code: 3 if a method diverged.
    """
    if len(config.method) < 2:
        raise InvalidInput(
            f"only {config.method[0].shown} to compare: name two methods or use `fedsolve run`"
        )
    track = request.track or ()
    check_trackers(track)
    prepared = prepare(config)
    metrics = names_of(request.metrics)
    check_shown(metrics, prepared.task, prepared.algorithms[0])
    check_all_begin(prepared.algorithms, prepared.task, prepared.options)
    config = prepared.config
    what = f"{len(config.method)} methods on {config.task}"
    with begun(request, config, f"{config.task}-comparison", what) as folder, locked(folder):
        load_meanwhile()
        with page_meanwhile(folder, config):
            outcomes = _run_all(prepared, folder, track)
        histories = [history for outcome in outcomes.values() for history in outcome.histories]
        notes = [f"{run}: {why}" for outcome in outcomes.values() for run, why in outcome.failures.items()]
        methods = {m.shown: a for m, a in zip(config.method, prepared.algorithms, strict=True)}
        notes += untuned(config) + different_objectives(methods, "--weighting uniform")
        write_report(folder, config, prepared.task, histories, notes)
    diverged = [label for label, outcome in outcomes.items() if outcome.failures]
    if request.as_json:
        status, methods = "diverged" if diverged else "finished", _methods(config, folder, outcomes, request)
        about = document(status, folder, config.task, config.run.rounds, methods=methods)
        emit_json(about | {"notes": notes})
    else:
        noted = [f"{h.label}: {note}" for h in histories for note in h.notes]
        lines = [f"note: {note}" for note in [*notes, *dict.fromkeys(noted)]]
        print_result(histories, lines, folder, "", metrics, request.target)
    if diverged:
        say(f"error: diverged: {', '.join(diverged)}")
    return Diverged.exit_code if diverged else 0


def _run_all(prepared: Prepared, folder: Path, track: Sequence[str]) -> dict[str, Outcome]:
    """Run the methods, by label; those that a former call finished are only read."""
    config, outcomes = prepared.config, {}
    folders = run_folders(folder, config)
    places = dict(zip(folders, method_folders(folder, list(folders)), strict=True))
    former = {label: _former(config, runs) for label, runs in folders.items()}
    left = [index for index, label in enumerate(folders) if former[label] is None]
    methods = [_begin(prepared, index, places[config.method[index].shown], track) for index in left]
    with (
        open_display(list(folders), prepared.rounds) as display,
        running(methods, prepared.task, prepared.options) as finish,
    ):
        for index, (label, runs) in enumerate(folders.items()):
            known = former[label]
            if known is not None:
                how = "diverged before" if known.failures else "finished before"
                display.end(label, how, done=not known.failures)
                outcomes[label] = known
                continue
            try:
                results = finish_method(finish, prepared, index, places[label], display)
            except (Interrupted, KeyboardInterrupt):
                done = f"{len(outcomes)} of {len(folders)} methods ended"
                how = how_to_resume("compare", folder, config)
                raise Interrupted(f"{label} interrupted {display.where()}, {done}; {how}") from None
            failures = {run: result.failure for run, result in zip(runs, results.runs, strict=True)}
            outcomes[label] = Outcome(results.histories, {run: why for run, why in failures.items() if why})
    return outcomes


def _former(config: Config, places: Mapping[str, Path]) -> Outcome | None:
    """How a method ended in a former call; None where a run of it has not."""
    histories = [ended(place, config.run.rounds) for place in places.values()]
    known = [history for history in histories if history is not None]
    if len(known) < len(histories):
        return None
    failures = {run: why for run, place in places.items() if (why := read_failure(place)) is not None}
    return Outcome(known, failures)


def _begin(prepared: Prepared, index: int, place: Path, track: Sequence[str]) -> MethodRuns:
    """The runs of a method in its own folder, whose configuration is a run's."""
    config = prepared.config
    # its settings have the weighting of all
    save_config(place, config.model_copy(update={"method": [config.method[index]], "weighting": None}))
    return runs_of(prepared, index, place, track)


def _methods(
    config: Config, folder: Path, outcomes: Mapping[str, Outcome], request: CompareRequest
) -> list[dict[str, Any]]:
    """What a JSON document says of each method."""
    histories = [history for outcome in outcomes.values() for history in outcome.histories]
    rows = result_rows(histories, request.target, names_of(request.metrics))
    places = method_folders(folder, list(outcomes))
    return [
        {
            "label": method.shown,
            "algorithm": method.name,
            "folder": str(place),
            "status": "diverged" if outcome.failures else "finished",
            "result": row,
            "error": "; ".join(outcome.failures.values()) or None,
        }
        for method, place, outcome, row in zip(config.method, places, outcomes.values(), rows, strict=True)
    ]


# `fedsolve run`: one method on one task, into a folder that can be resumed and run again.


def run_command(config: Config, request: RunRequest) -> int:
    """Run or continue a configuration of one method; write its folder and print its result.

    Returns:
        The exit code: 3 if a seed diverged; where all did, `Diverged` is raised.
    """
    track = request.track or ()
    check_trackers(track)
    prepared = prepare(config)
    config = prepared.config
    method, metrics = config.method[0], names_of(request.metrics)
    check_shown(metrics, prepared.task, prepared.algorithms[0])
    if not is_first():
        return follow(prepared, request.resume)
    what = f"{method.shown} on {config.task}"
    load_meanwhile()
    with (
        begun(request, config, f"{config.task}-{method.shown}", what) as folder,
        page_meanwhile(folder, config),
        open_display([method.shown], prepared.rounds) as display,
    ):
        try:
            with running([runs_of(prepared, 0, folder, track)], prepared.task, prepared.options) as finish:
                results = finish_method(finish, prepared, 0, folder, display)
            results.check_alive()
        except (Interrupted, KeyboardInterrupt):
            how = how_to_resume("run", folder, config)
            raise Interrupted(f"interrupted {display.where()}; {how}") from None
    histories, failures = results.histories, list(results.failures)
    write_report(folder, config, prepared.task, histories, failures, results.runs[0].timeline)
    notes = [*failures, *dict.fromkeys(note for h in histories for note in h.notes)]
    if request.as_json:
        status, row = (
            "diverged" if failures else "finished",
            result_rows(histories, request.target, metrics)[0],
        )
        emit_json(document(status, folder, config.task, config.run.rounds, result=row, notes=notes))
    else:
        print_result(histories, [f"note: {note}" for note in notes], folder, "", metrics, request.target)
    return Diverged.exit_code if failures else 0


# `fedsolve sweep`: every setting of a grid with every seed, into a folder with tables, plots and a page.


def sweep_command(config: Config, request: SweepRequest) -> int:
    """Run or continue a sweep, write its folder and print the best settings.

    Returns:
        The exit code: 3 if all settings diverged.
    """
    require_parquet()
    prepared = prepare_sweep(config)
    config = prepared.config
    with begun(request, config, f"{config.task}-{prepared.method.shown}-sweep") as folder:
        if (folder / SUMMARY).exists():
            found = load(folder)
        else:
            with sweep_page_meanwhile(config, folder):
                found = _run(prepared, folder, request.as_json)
            save(found, folder)
    failure = all_diverged(found)
    command = "" if failure else prepared.command(found.best_settings)
    save_page(folder, found, config.title, command)
    print_sweep(folder, found, command, request.as_json)
    if failure:
        say(f"error: {failure}")
    return Diverged.exit_code if failure else 0


def _run(prepared: PreparedSweep, folder: Path, as_json: bool) -> SweepRecord:
    """The sweep itself, from where its folder is."""
    label, trials = prepared.method.shown, folder / TRIAL_FOLDERS
    if not as_json:
        sizes = " x ".join(f"{len(values)} {axis}" for axis, values in prepared.grid.items())
        seeds = prepared.section.seeds
        assert isinstance(seeds, list)
        several = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
        runs = math.prod(map(len, prepared.grid.values())) * len(seeds)
        rounds = f"{runs:,} runs of {prepared.config.run.rounds:,} rounds"
        say(f"{label} on {prepared.config.task}, {sizes} x {several}, into {folder}: {rounds}")
    with open_sweep_display(label) as display:
        try:
            found = run_sweep(
                prepared.algorithm,
                prepared.run.task,
                prepared.grid,
                prepared.options(),
                out=trials,
                resume=(trials / SWEEP.file).exists(),
                label=label,
                progress=display,
            )
        except (Interrupted, KeyboardInterrupt):
            where = f"interrupted after {display.where()}"
            how = how_to_resume("sweep", folder, prepared.config)
            raise Interrupted(f"{where}; {how}") from None
    return dataclasses.replace(found, settings=prepared.settings())
