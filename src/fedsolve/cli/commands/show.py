"""`fedsolve show`: how a run, a comparison or a sweep stands, and where its page and plots are."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedsolve.cli.configuration.config import CONFIG, Config, load
from fedsolve.cli.configuration.requests import names_of
from fedsolve.cli.configuration.trust import imports_document, imports_lines
from fedsolve.cli.terminal.console import emit_json
from fedsolve.cli.terminal.folders import FLOWER, command_of, how_to_resume, run_folders
from fedsolve.cli.terminal.outputs import document, print_result
from fedsolve.core.errors import Interrupted, InvalidInput
from fedsolve.engine.running_page import Standing, standing
from fedsolve.folders.files import held_within
from fedsolve.report.table import result_rows
from fedsolve.results.history import History
from fedsolve.results.record_files import read_history
from fedsolve.results.sweep import SUMMARY

_SECONDS_BETWEEN = 2.0
_PATIENCE = 30.0
"""Between the runs of a method nothing may run for a while, and before the first."""


class Shown(NamedTuple):
    """What the table of runs shows besides what it always has."""

    metrics: Sequence[str] | None
    target: float | None


def follow_command(folder: Path, as_json: bool, metrics: str | None, target: float | None) -> None:
    """Print how it stands whenever that changes, until it has ended, or nothing has run there for a while.

    Raises:
        Interrupted: Ctrl-C; what runs goes on.
    """
    before, ran = "", time.monotonic()
    try:
        while True:
            running = bool(held_within(folder))  # looked at first: what ends meanwhile is shown as ended
            with contextlib.redirect_stdout(io.StringIO()) as now:
                over = show_command(folder, as_json, metrics, target)
            if now.getvalue() != before:
                before = now.getvalue()
                show_command(folder, as_json, metrics, target)
            ran = time.monotonic() if running else ran
            if not running and (over or time.monotonic() - ran > _PATIENCE):
                return
            time.sleep(_SECONDS_BETWEEN)
    except KeyboardInterrupt:
        raise Interrupted("no longer followed; what runs goes on") from None


def show_command(
    folder: Path, as_json: bool, metrics: str | None = None, target: float | None = None
) -> bool:
    """Print how a run, a comparison or a sweep stands; of runs with the metrics and the target that are typed.

    Returns:
        Whether it has ended.
    """
    shown = Shown(names_of(metrics), target)
    if not (folder / CONFIG).is_file():
        if (history := read_history(folder)) is not None:  # a run on a real federation
            _show_record(folder, history, as_json, shown)
            return True
        raise InvalidInput(f"{folder} holds no run: it has no {CONFIG}")
    config = load(folder)
    if config.sweep is not None:
        from fedsolve.cli.commands.sweep_result import show_sweep

        if metrics is not None or target is not None:
            raise InvalidInput(f"{folder} holds a sweep: --metrics and --target are for runs and comparisons")
        show_sweep(config, folder, as_json)
        return (folder / SUMMARY).exists()
    standings = [
        standing(name, label, place, config.task, config.run.rounds)
        for label, places in run_folders(folder, config).items()
        for name, place in places.items()
    ]
    over = all(s.status in ("finished", "diverged") for s in standings)
    if as_json:
        about = _document(folder, config.task, config.run.rounds, standings, shown)
        emit_json(about | imports_document(config))
        return over
    histories = [s.history for s in standings if s.history is not None]
    title = f"{config.task}, {config.run.rounds} rounds"
    print_result(histories, _lines(config, folder, standings), folder, title, *shown)
    return over


def _lines(config: Config, folder: Path, standings: list[Standing]) -> list[str]:
    """What is said below the table: runs that are not finished and how they go on, what has no name, and files."""
    lines = [_line(s, config.run.rounds) for s in standings if s.status != "finished"]
    statuses = {s.status for s in standings}
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


def _show_record(folder: Path, history: History, as_json: bool, shown: Shown) -> None:
    """A finished record alone, as a deployment leaves it."""
    rounds = int(history.evaluations["round"][-1])
    if as_json:
        standings = [Standing(history.label, "finished", history)]
        emit_json(_document(folder, history.task, rounds, standings, shown))
    else:
        print_result([history], [], folder, f"{history.task}, {rounds} rounds", *shown)


def _line(of: Standing, rounds: int) -> str:
    if of.status == "diverged":
        return f"{of.label}: diverged: {of.message}"
    return f"{of.label}: {of.status}, {of.done} of {rounds} rounds"


def _document(
    folder: Path, task: str, rounds: int, standings: list[Standing], shown: Shown
) -> dict[str, Any]:
    methods = [
        {
            "label": s.label,
            "status": s.status,
            "rounds": s.done,
            "result": None if s.history is None else result_rows([s.history], shown.target, shown.metrics)[0],
            "error": s.message or None,
        }
        for s in standings
    ]
    statuses = {s.status for s in standings}
    status = "finished" if statuses == {"finished"} else "running" if "running" in statuses else "unfinished"
    return document(status, folder, task, rounds, methods=methods)
