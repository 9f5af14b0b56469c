"""`fedsolve compare`: several methods on one task, a folder for each, one table, plot and page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedsolve.cli.commands.method import check_trackers, finish_method, runs_of
from fedsolve.cli.configuration.config import Config
from fedsolve.cli.configuration.prepare import Prepared, check_shown, prepare
from fedsolve.cli.configuration.requests import CompareRequest, names_of
from fedsolve.cli.configuration.settings import untuned
from fedsolve.cli.terminal.console import emit_json, say
from fedsolve.cli.terminal.folders import begun, how_to_resume, run_folders, save_config
from fedsolve.cli.terminal.outputs import document, page_meanwhile, print_result, write_report
from fedsolve.cli.terminal.progress import open_display
from fedsolve.config.weighting import different_objectives
from fedsolve.core.errors import Diverged, Interrupted, InvalidInput
from fedsolve.engine.prepare import check_all_begin
from fedsolve.engine.running_page import ended
from fedsolve.engine.scheduler import MethodRuns, running
from fedsolve.folders.files import locked
from fedsolve.report.plots import load_meanwhile
from fedsolve.report.table import result_rows
from fedsolve.results.history import History
from fedsolve.results.record_files import method_folders, read_failure


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
