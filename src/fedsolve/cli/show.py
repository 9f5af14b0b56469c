"""`fedsolve show`: how a run, a comparison or a sweep stands, and where its page and plots are."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedsolve.cli.configuration.command_options import metric_names
from fedsolve.cli.configuration.config import CONFIG, Config, load
from fedsolve.cli.configuration.prepare import Prepared
from fedsolve.cli.configuration.trust import imports_document, imports_lines
from fedsolve.cli.console import emit_json
from fedsolve.cli.folders import FLOWER, command_of, document, how_to_resume, print_result, run_folders
from fedsolve.cli.progress import Lines
from fedsolve.core.errors import Interrupted, InvalidInput
from fedsolve.engine.load import BEGAN
from fedsolve.engine.load import load as load_results
from fedsolve.engine.results import Result, Results
from fedsolve.engine.running_page import RunStatus, run_status
from fedsolve.engine.scheduler import RunPlan, WaitForResults, run_single
from fedsolve.engine.sweep_result import Sweep
from fedsolve.folders.files import locked_within
from fedsolve.folders.run_folder import RUN
from fedsolve.report.table import result_rows
from fedsolve.report.trackers import tracker
from fedsolve.results.history import History, group_by_seed
from fedsolve.results.metrics import summary
from fedsolve.results.record_files import ANALYSIS_FILE, STATISTICS_FILE, SUMMARY, read_history

_SECONDS_BETWEEN = 2.0
_IDLE_SECONDS = 30.0
"""Between the runs of a method nothing may run for a while, and before the first."""


class Shown(NamedTuple):
    metrics: Sequence[str] | None
    target: float | None


def follow_command(folder: Path, as_json: bool, metrics: str | None, target: float | None) -> None:
    # until it has ended, or nothing has run there for a while
    before, ran = "", time.monotonic()
    try:
        while True:
            running = bool(locked_within(folder))  # looked at first: what ends meanwhile is shown as ended
            with contextlib.redirect_stdout(io.StringIO()) as now:
                over = show_command(folder, as_json, metrics, target)
            if now.getvalue() != before:
                before = now.getvalue()
                show_command(folder, as_json, metrics, target)
            ran = time.monotonic() if running else ran
            if not running and (over or time.monotonic() - ran > _IDLE_SECONDS):
                return
            time.sleep(_SECONDS_BETWEEN)
    except KeyboardInterrupt:
        raise Interrupted("no longer followed; what runs goes on") from None


def show_command(
    folder: Path, as_json: bool, metrics: str | None = None, target: float | None = None
) -> bool:
    """Print how a run, a comparison or a sweep stands, and return whether it has ended."""
    shown = Shown(metric_names(metrics), target)
    if any((folder / file).exists() for file in (STATISTICS_FILE, ANALYSIS_FILE)):
        from fedsolve.deploy.flower import check_flower

        check_flower()
        from fedsolve.cli.federation.jobs import show_without_run

        return show_without_run(folder, as_json)
    if not (folder / CONFIG).is_file():
        _show_saved(folder, as_json, shown)
        return True
    config = load(folder)
    if config.sweep is not None:
        from fedsolve.cli.sweep_result import show_sweep

        _check_no_sweep_options(folder, shown)
        show_sweep(config, folder, as_json)
        return (folder / SUMMARY).exists()
    runs = [
        run_status(name, label, place, config.task, config.run.rounds)
        for label, places in run_folders(folder, config).items()
        for name, place in places.items()
    ]
    over = all(s.status in ("finished", "diverged") for s in runs)
    if as_json:
        about = _document(folder, config.task, config.run.rounds, runs, shown)
        emit_json(about | imports_document(config))
        return over
    histories = [s.history for s in runs if s.history is not None]
    title = f"{config.task}, {config.run.rounds} rounds"
    print_result(histories, _lines(config, folder, runs) + _begun(histories), folder, title, *shown)
    return over


def _lines(config: Config, folder: Path, runs: list[RunStatus]) -> list[str]:
    lines = [_line(s, config.run.rounds) for s in runs if s.status != "finished"]
    statuses = {s.status for s in runs}
    if statuses & {"unfinished", "waiting"} and "running" not in statuses:
        demo = (folder / FLOWER).is_dir()
        again = "a demo cannot be resumed: start a new one with `fedsolve federate demo`"
        in_python = "resume with resume=True in the Python program that began it"
        how = in_python if config.unnamed else how_to_resume(command_of(config), folder)
        lines.append(again if demo else how)
    if config.unnamed:
        lines.append("by Python, as objects that have no names in a configuration:")
        lines += [f"  {what}: {words}" for what, words in config.unnamed.items()]
    return lines + imports_lines(config)


def _show_saved(folder: Path, as_json: bool, shown: Shown) -> None:
    # records without a configuration, as `save` in Python or a run on a real federation leaves them
    alone = read_history(folder)
    found = load_results(folder) if alone is None else alone
    if isinstance(found, Sweep):
        from fedsolve.cli.sweep_result import print_sweep

        _check_no_sweep_options(folder, shown)
        print_sweep(folder, found, "", as_json)
        return
    histories = [found] if isinstance(found, History) else found.histories
    rounds = max(int(history.evaluations["round"][-1]) for history in histories)
    if as_json:
        runs = [RunStatus(history.label, "finished", history) for history in histories]
        emit_json(_document(folder, histories[0].task, rounds, runs, shown))
    else:
        print_result(histories, _begun(histories), folder, f"{histories[0].task}, {rounds} rounds", *shown)


def _begun(histories: Sequence[History]) -> list[str]:
    return [note for history in histories for note in history.notes if note.startswith(BEGAN)][:1]


def _check_no_sweep_options(folder: Path, shown: Shown) -> None:
    if shown != (None, None):
        raise InvalidInput(f"{folder} holds a sweep: --metrics and --target are for runs and comparisons")


def _line(of: RunStatus, rounds: int) -> str:
    if of.status == "diverged":
        return f"{of.label}: diverged: {of.message}"
    return f"{of.label}: {of.status}, {of.done} of {rounds} rounds"


def _document(folder: Path, task: str, rounds: int, runs: list[RunStatus], shown: Shown) -> dict[str, Any]:
    methods = [
        {
            "label": s.label,
            "status": s.status,
            "rounds": s.done,
            "result": None if s.history is None else result_rows([s.history], shown.target, shown.metrics)[0],
            "error": s.message or None,
        }
        for s in runs
    ]
    statuses = {s.status for s in runs}
    status = "finished" if statuses == {"finished"} else "running" if "running" in statuses else "unfinished"
    return document(status, folder, task, rounds, methods=methods)


# One method of a configuration, run in its folder with one seed or several.


def runs_of(prepared: Prepared, index: int, folder: Path, track: Sequence[str] = ()) -> RunPlan:
    method = prepared.config.method[index]
    return RunPlan(
        algorithm=prepared.algorithms[index],
        seeds=prepared.seeds,
        callbacks_of=lambda seed: [tracker(name, folder) for name in track],
        out=folder,
        resume=any((place / RUN.file).exists() for place in _places(prepared, index, folder)),
        label=method.shown,
    )


def finish_method(
    finish: WaitForResults, prepared: Prepared, index: int, folder: Path, display: Lines
) -> Results:
    method = prepared.config.method[index]
    label = method.shown
    display.begin(label)
    runs = finish(display)
    results = Results(tuple(_with_settings(run, prepared.settings(method)) for run in runs))
    for run, place in zip(results.runs, _places(prepared, index, folder), strict=True):
        run.save(place)
    if results.failures:
        diverged = "diverged" if len(runs) == 1 else f"{len(results.failures)} of {len(runs)} seeds diverged"
        display.end(label, diverged, done=False)
    else:
        (method_found,) = group_by_seed(results.histories)
        final: dict[str, Any] = {name: x[-1] for name, x in method_found.history.evaluations.items()}
        display.end(label, f"finished, {summary(final)}")
    return results


def _places(prepared: Prepared, index: int, folder: Path) -> Collection[Path]:
    method = prepared.config.method[index]
    return run_folders(folder, prepared.config.model_copy(update={"method": [method]}))[method.shown].values()


def _with_settings(run: Result, settings: dict[str, Any]) -> Result:
    own = settings | {"seed": run.history.settings["seed"]}
    return dataclasses.replace(run, history=dataclasses.replace(run.history, settings=own))


def check_trackers(names: Sequence[str]) -> None:
    for name in names:
        tracker(name, Path())


def follow(prepared: Prepared, resume: Path | None) -> int:
    # the other processes of a run do its rounds, and write and print nothing
    goes_on = resume is not None and (resume / RUN.file).exists()
    method = RunPlan(algorithm=prepared.algorithms[0], out=resume, resume=goes_on)
    run_single(method, prepared.task, prepared.options)
    return 0
