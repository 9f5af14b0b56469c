"""`fedsolve run`, `compare` and `sweep`: from checked arguments to a folder with records, tables, plots and a page."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedsolve.cli.configuration.command_options import CompareRequest, RunRequest, SweepRequest, metric_names
from fedsolve.cli.configuration.config import Config
from fedsolve.cli.configuration.prepare import (
    Prepared,
    PreparedSweep,
    check_shown,
    prepare,
    prepare_sweep,
    untuned_note,
)
from fedsolve.cli.console import emit_json, say
from fedsolve.cli.folders import (
    TRIAL_FOLDERS,
    document,
    how_to_resume,
    new_run_folder,
    page_meanwhile,
    print_result,
    run_folders,
    save_config,
    write_report,
)
from fedsolve.cli.progress import open_display
from fedsolve.cli.show import check_trackers, finish_method, follow, runs_of
from fedsolve.cli.sweep_result import all_diverged, print_sweep, save_page, sweep_page_meanwhile
from fedsolve.config.weighting import different_objectives
from fedsolve.core.errors import Diverged, Interrupted, InvalidInput
from fedsolve.engine.compute.sharding import is_first
from fedsolve.engine.compute.workers import open_units
from fedsolve.engine.load import keep_start
from fedsolve.engine.prepare import check_all_begin
from fedsolve.engine.running_page import final_history
from fedsolve.engine.scheduler import scheduled_runs
from fedsolve.engine.sweep import run_sweep
from fedsolve.folders.files import locked
from fedsolve.folders.run_folder import SWEEP
from fedsolve.report.plots import load_meanwhile
from fedsolve.report.table import result_rows
from fedsolve.results.history import History
from fedsolve.results.record_files import method_folders, read_failure
from fedsolve.results.sweep import SUMMARY, SweepRecord, axes_text, load, require_parquet, save


class Outcome(NamedTuple):
    histories: Sequence[History]
    failures: Mapping[str, str]


def compare_command(config: Config, request: CompareRequest) -> int:
    if len(config.method) < 2:
        raise InvalidInput(
            f"only {config.method[0].shown} to compare: name two methods or use `fedsolve run`"
        )
    track = request.track or ()
    check_trackers(track)
    prepared = prepare(config, request.resume)
    metrics = metric_names(request.metrics)
    check_shown(metrics, prepared.task, prepared.algorithms[0])
    # every method is looked at before the first has run for an hour
    check_all_begin(prepared.algorithms, prepared.task, prepared.options)
    config = prepared.config
    what = f"{len(config.method)} methods on {config.task}"
    with new_run_folder(request, config, f"{config.task}-comparison", what) as folder, locked(folder):
        keep_start(folder, prepared.task)
        load_meanwhile()
        with page_meanwhile(folder, config):
            outcomes = _run_all(prepared, folder, track, request.executor)
        histories = [history for outcome in outcomes.values() for history in outcome.histories]
        notes = [f"{run}: {why}" for outcome in outcomes.values() for run, why in outcome.failures.items()]
        methods = {m.shown: a for m, a in zip(config.method, prepared.algorithms, strict=True)}
        notes += untuned_note(config) + different_objectives(methods, "--weighting uniform")
        write_report(folder, config, prepared.task, histories, notes)
    diverged = [label for label, outcome in outcomes.items() if outcome.failures]
    if request.as_json:
        status = "diverged" if diverged else "finished"
        methods = _method_rows(config, folder, outcomes, request)
        about = document(status, folder, config.task, config.run.rounds, methods=methods)
        emit_json(about | {"notes": notes})
    else:
        noted = [f"{h.label}: {note}" for h in histories for note in h.notes]
        lines = [f"note: {note}" for note in [*notes, *dict.fromkeys(noted)]]
        print_result(histories, lines, folder, "", metrics, request.target)
    if diverged:
        say(f"error: diverged: {', '.join(diverged)}")
    return Diverged.exit_code if diverged else 0


def _run_all(
    prepared: Prepared, folder: Path, track: Sequence[str], executor: str | None
) -> dict[str, Outcome]:
    # those that a former call finished are only read
    config, outcomes = prepared.config, {}
    folders = run_folders(folder, config)
    places = dict(zip(folders, method_folders(folder, list(folders)), strict=True))
    former = {label: _earlier_outcome(config, runs) for label, runs in folders.items()}
    # a comparison that goes on runs what has not ended; the others are read from their records
    left = [index for index, label in enumerate(folders) if former[label] is None]
    methods = []
    for index in left:
        method = config.method[index]
        place = places[method.shown]
        # its settings have the weighting of all
        save_config(place, config.model_copy(update={"method": [method], "weighting": None}))
        methods.append(runs_of(prepared, index, place, track))
    with (
        open_display(list(folders), prepared.rounds) as display,
        open_units(executor if left else None, folder) as units,
        scheduled_runs(methods, prepared.task, prepared.options, units) as finish,
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


def _earlier_outcome(config: Config, places: Mapping[str, Path]) -> Outcome | None:
    # None where a run of it has not ended
    histories = [final_history(place, config.run.rounds) for place in places.values()]
    known = [history for history in histories if history is not None]
    if len(known) < len(histories):
        return None
    failures = {run: why for run, place in places.items() if (why := read_failure(place)) is not None}
    return Outcome(known, failures)


def _method_rows(
    config: Config, folder: Path, outcomes: Mapping[str, Outcome], request: CompareRequest
) -> list[dict[str, Any]]:
    histories = [history for outcome in outcomes.values() for history in outcome.histories]
    rows = result_rows(histories, request.target, metric_names(request.metrics))
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
    """Run or continue a configuration of one method; `Diverged` where all of its seeds have diverged."""
    track = request.track or ()
    check_trackers(track)
    prepared = prepare(config, request.resume)
    config = prepared.config
    method, metrics = config.method[0], metric_names(request.metrics)
    check_shown(metrics, prepared.task, prepared.algorithms[0])
    if request.executor is not None and prepared.seeds is None:
        raise InvalidInput("--executor runs several seeds: give --seeds, or leave it out")
    if not is_first():
        return follow(prepared, request.resume)
    what = f"{method.shown} on {config.task}"
    load_meanwhile()
    with (
        new_run_folder(request, config, f"{config.task}-{method.shown}", what) as folder,
        page_meanwhile(folder, config),
        open_display([method.shown], prepared.rounds) as display,
    ):
        keep_start(folder, prepared.task)
        try:
            runs = [runs_of(prepared, 0, folder, track)]
            with (
                open_units(request.executor, folder) as units,
                scheduled_runs(runs, prepared.task, prepared.options, units) as finish,
            ):
                results = finish_method(finish, prepared, 0, folder, display)
            results.check_alive()
        except (Interrupted, KeyboardInterrupt):
            how = how_to_resume("run", folder, config)
            raise Interrupted(f"interrupted {display.where()}; {how}") from None
    histories, failures = results.histories, list(results.failures)
    write_report(folder, config, prepared.task, histories, failures, results.runs[0].timeline)
    notes = [*failures, *dict.fromkeys(note for h in histories for note in h.notes)]
    if request.as_json:
        status = "diverged" if failures else "finished"
        row = result_rows(histories, request.target, metrics)[0]
        emit_json(document(status, folder, config.task, config.run.rounds, result=row, notes=notes))
    else:
        print_result(histories, [f"note: {note}" for note in notes], folder, "", metrics, request.target)
    return Diverged.exit_code if failures else 0


# `fedsolve sweep`: every setting of a grid with every seed, into a folder with tables, plots and a page.


def sweep_command(config: Config, request: SweepRequest) -> int:
    require_parquet()
    prepared = prepare_sweep(config, request.resume)
    config = prepared.config
    with new_run_folder(request, config, f"{config.task}-{prepared.method.shown}-sweep") as folder:
        keep_start(folder, prepared.run.task)
        if (folder / SUMMARY).exists():
            found = load(folder)
        else:
            with sweep_page_meanwhile(config, folder):
                found = _run(prepared, folder, request)
            save(found, folder)
    failure = all_diverged(found)
    command = "" if failure else prepared.command(found.best_settings)
    save_page(folder, found, config.title, command)
    print_sweep(folder, found, command, request.as_json)
    if failure:
        say(f"error: {failure}")
    return Diverged.exit_code if failure else 0


def _run(prepared: PreparedSweep, folder: Path, request: SweepRequest) -> SweepRecord:
    label, trials = prepared.method.shown, folder / TRIAL_FOLDERS
    if not request.as_json:
        seeds = prepared.section.seeds
        assert isinstance(seeds, list)
        several = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
        drawn = prepared.section.trials or 0
        runs = (drawn or math.prod(map(len, prepared.grid.values()))) * len(seeds)
        rounds = f"{runs:,} runs of {prepared.config.run.rounds:,} rounds"
        sizes = axes_text(prepared.grid, drawn)
        say(f"{label} on {prepared.config.task}, {sizes} x {several}, into {folder}: {rounds}")
    with open_display([label], None) as display:
        display.begin(label)
        try:
            found = run_sweep(
                prepared.algorithm,
                prepared.run.task,
                prepared.grid,
                prepared.options(),
                out=trials,
                resume=(trials / SWEEP.file).exists(),
                progress=display,
                executor=request.executor,
            )
        except (Interrupted, KeyboardInterrupt):
            how = how_to_resume("sweep", folder, prepared.config)
            raise Interrupted(f"interrupted {display.where()}; {how}") from None
    return dataclasses.replace(found, settings=prepared.settings())
