"""`fedsolve compare`: several methods on one task, a folder for each, one table, plot and page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsolve.cli.commands.runs import (
    begun,
    check_trackers,
    how_to_resume,
    print_notes_and_files,
    rounds_of,
    run_method,
    where,
)
from fedsolve.cli.configuration.config import Config
from fedsolve.cli.configuration.prepare import Prepared, prepare
from fedsolve.cli.configuration.requests import CompareRequest
from fedsolve.cli.configuration.settings import resolve_settings
from fedsolve.cli.terminal.console import emit_json, emit_rich, say
from fedsolve.cli.terminal.folders import ended, read_failure, run_folders, save_config
from fedsolve.cli.terminal.outputs import report_files, write_report
from fedsolve.cli.terminal.progress import ProgressDisplay, open_display
from fedsolve.cli.watch.commands import watched
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import Diverged, Interrupted, InvalidInput
from fedsolve.engine.prepare import check_all_begin
from fedsolve.engine.records.identity import provenance
from fedsolve.folders.lock import locked
from fedsolve.report.table import result_rows, result_table
from fedsolve.results.history import History
from fedsolve.results.record_files import method_folders


@dataclass
class Outcome:
    """How the runs of a comparison ended: records by method, and why runs diverged, by method and run."""

    histories: dict[str, list[History]] = field(default_factory=dict)
    failures: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def all_histories(self) -> list[History]:
        """The record of every run."""
        return [history for runs in self.histories.values() for history in runs]

    @property
    def lines(self) -> list[str]:
        """A line for each run that diverged."""
        return [f"{name}: {why}" for of_method in self.failures.values() for name, why in of_method.items()]


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
    check_all_begin(prepared.algorithms, prepared.task, prepared.options)
    config = prepared.config
    what = f"{len(config.method)} methods on {config.task}"
    with begun(request, config, f"{config.task}-comparison", what) as folder, locked(folder):
        with watched(folder, request.watch):
            outcome = _run_all(prepared, folder, track)
        histories, failures = outcome.all_histories, outcome.lines
        failures += untuned(config) + objectives(config, prepared.algorithms)
        write_report(folder, config, prepared.task, histories, failures)
    if request.as_json:
        emit_json(_document(config, folder, outcome) | {"notes": failures})
    else:
        emit_rich(result_table(histories))
        noted = [f"{h.label}: {note}" for h in histories for note in h.notes]
        print_notes_and_files([*failures, *dict.fromkeys(noted)], folder)
    if outcome.failures:
        say(f"error: diverged: {', '.join(outcome.failures)}")
    return Diverged.exit_code if outcome.failures else 0


def objectives(config: Config, algorithms: Sequence[Algorithm]) -> list[str]:
    """One line if the methods minimise different objectives, as they weigh clients differently; none if they do not."""
    by: dict[str, list[str]] = {}
    for method, algorithm in zip(config.method, algorithms, strict=True):
        by.setdefault(algorithm.traits.weighting, []).append(method.shown)
    if len(by) < 2:
        return []
    return [
        f"different objectives: {', '.join(by['uniform'])} minimise the mean loss over clients (weighting uniform), "
        f"{', '.join(by['examples'])} over examples; one for all: --weighting uniform"
    ]


def untuned(config: Config) -> list[str]:
    """One line on the methods whose settings are the defaults, which suit no task in particular; none if none are."""
    named = [m for m in config.method if _tunable(m.settings) == _tunable(resolve_settings(m.name, {}))]
    if not named:
        return []
    swept = next((m.name for m in named if "client_lr" in m.settings), None)
    axis = "client_lr=1e-3:10:9log" if swept else "AXIS=VALUES"
    return [
        f"at default settings, not tuned for {config.task}: {', '.join(m.shown for m in named)}; "
        f"tune before comparing: fedsolve sweep {config.task} {swept or named[0].name} --grid {axis}"
    ]


def _tunable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without the weighting: it chooses the objective."""
    return {key: value for key, value in settings.items() if key != "weighting"}


def _run_all(prepared: Prepared, folder: Path, track: Sequence[str]) -> Outcome:
    """Run the methods one after another; those that a former call finished are only read."""
    config, outcome = prepared.config, Outcome()
    folders = run_folders(folder, config)
    with open_display(list(folders), rounds_of(prepared)) as display:
        for index, (label, places) in enumerate(folders.items()):
            try:
                _run_one(prepared, index, folder, places, display, outcome, track)
            except (Interrupted, KeyboardInterrupt):
                ended = f"{len(outcome.histories)} of {len(folders)} methods ended"
                how = how_to_resume("compare", folder, config)
                raise Interrupted(f"{label} interrupted {where(display)}, {ended}; {how}") from None
    return outcome


def _run_one(
    prepared: Prepared,
    index: int,
    folder: Path,
    places: Mapping[str, Path],
    display: ProgressDisplay,
    outcome: Outcome,
    track: Sequence[str],
) -> None:
    config = prepared.config
    label = config.method[index].shown
    kept = {name: ended(place, config.run.rounds) for name, place in places.items()}
    failures = {name: why for name, place in places.items() if (why := read_failure(place)) is not None}
    if (known := [history for history in kept.values() if history is not None]) and len(known) == len(kept):
        outcome.histories[label] = known
        display.end(label, "diverged before" if failures else "finished before", done=not failures)
    else:
        place = method_folders(folder, [m.shown for m in config.method])[index]
        # its settings have the weighting of all
        single = config.model_copy(update={"method": [config.method[index]], "weighting": None})
        save_config(place, single, provenance())
        results = run_method(prepared, index, place, display, track)
        outcome.histories[label] = list(results.histories)
        failures = {name: run.failure for name, run in zip(places, results.runs, strict=True) if run.failure}
    if failures:
        outcome.failures[label] = failures


def _document(config: Config, folder: Path, outcome: Outcome) -> dict[str, Any]:
    rows = dict(zip(outcome.histories, result_rows(outcome.all_histories), strict=True))
    methods = [
        {
            "label": method.shown,
            "algorithm": method.name,
            "folder": str(place),
            "status": "diverged" if method.shown in outcome.failures else "finished",
            "result": rows[method.shown],
            "error": "; ".join(outcome.failures.get(method.shown, {}).values()) or None,
        }
        for method, place in zip(
            config.method, method_folders(folder, [m.shown for m in config.method]), strict=True
        )
    ]
    return {
        "status": "diverged" if outcome.failures else "finished",
        "folder": str(folder),
        "task": config.task,
        "rounds": config.run.rounds,
        "methods": methods,
        "files": report_files(folder),
    }
