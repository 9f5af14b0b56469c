"""`fedsolve sweep`: every setting of a grid with every seed, into a folder with tables, plots and a page."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from pathlib import Path
from typing import Any

from fedsolve.cli.commands.command_line import run_command_line
from fedsolve.cli.commands.runs import begun, how_to_resume
from fedsolve.cli.configuration.config import Config
from fedsolve.cli.configuration.requests import SweepRequest
from fedsolve.cli.configuration.sweep_prepare import PreparedSweep, best_setting, prepare_sweep
from fedsolve.cli.configuration.trust import imports_document, imports_lines, would_import
from fedsolve.cli.terminal.console import emit, emit_json, emit_rich, say
from fedsolve.cli.terminal.progress_file import ProgressFile
from fedsolve.cli.terminal.sweep_progress import how_far, open_sweep_display
from fedsolve.cli.watch.commands import watched
from fedsolve.core.errors import Diverged, Interrupted
from fedsolve.engine.progress import SweepProgress
from fedsolve.engine.sweep.sweep import run_sweep
from fedsolve.folders.run_folder import SWEEP
from fedsolve.report.sweeps.sweep_page import PAGE, write_report
from fedsolve.report.sweeps.sweep_table import outcome_lines, setting_rows, setting_table
from fedsolve.report.sweeps.sweep_words import rule_text
from fedsolve.results.sweep import Sweep
from fedsolve.results.sweep_files import CURVES, SUMMARY, TRIALS, load, require_parquet, save, summary


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
            with watched(folder, request.watch):
                found = _run(prepared, folder, request.as_json)
            save(found, folder)
    command = best_command(prepared, found)
    draw = importlib.util.find_spec("matplotlib") is not None
    if not draw:
        say("note: no plots, because matplotlib is not installed: install fedsolve[plot]")
    write_report(folder, found, title=config.title, command=command, draw=draw)
    failure = all_diverged(found)
    if request.as_json:
        emit_json(document(folder, found, command))
    else:
        print_sweep(folder, found, command)
    if failure:
        say(f"error: {failure}")
    return Diverged.exit_code if failure else 0


def print_sweep(folder: Path, found: Sweep, command: str) -> None:
    """The ten best settings, what came out, where the files are, and how to run the best again."""
    title = f"{found.label} on {found.task}, {found.rounds[-1]} rounds: {rule_text(found)}"
    emit(title)
    emit_rich(setting_table(found, 10))
    lines = [*outcome_lines(found), *(f"note: {note}" for note in found.notes)]
    lines += [
        f"{'picture' if path.endswith('.png') else kind:8} {path}"
        for kind, path in sweep_files(folder).items()
    ]
    emit("\n".join(lines + ([f"run it   {command}"] if command else [])))


def show_sweep(config: Config, folder: Path, as_json: bool) -> None:
    """What `fedsolve show` prints of a sweep, finished or not."""
    assert config.sweep is not None
    if (folder / SUMMARY).exists():
        found = load(folder)
        imports = would_import(config)  # which showing it does not do
        command = _best_as_written(config, found) if imports else best_command(prepare_sweep(config), found)
        if as_json:
            emit_json(document(folder, found, command) | imports_document(config))
        else:
            print_sweep(folder, found, command)
            if imports:
                emit("\n".join(imports_lines(config)))
        return
    if as_json:
        facts: dict[str, Any] = {"status": "unfinished", "folder": str(folder), "task": config.task}
        facts |= {"label": config.method[0].shown, "rounds": config.run.rounds, "files": {}}
        emit_json(facts | imports_document(config))
        return
    lines = [f"{config.method[0].shown}: unfinished sweep", how_to_resume("sweep", folder)]
    emit("\n".join(lines + imports_lines(config)))


def document(folder: Path, found: Sweep, command: str) -> dict[str, Any]:
    """A finished sweep as plain data."""
    facts = summary(found)
    best = facts.pop("best")
    failure = all_diverged(found)
    return {
        "status": "diverged" if failure else "finished",
        "folder": str(folder),
        **{name: facts[name] for name in ("task", "label", "grid", "seeds", "selection")},
        "rounds": int(found.rounds[-1]),
        "best": None if best is None else best | {"command": command},
        "share_within_5_percent": facts["share_within_5_percent"],
        "ranking": setting_rows(found),
        "lanes": facts["lanes"],
        "lanes_diverged": facts["lanes_diverged"],
        "seconds": facts["seconds"],
        "notes": facts["notes"],
        "error": failure,
        "files": sweep_files(folder),
    }


def best_command(prepared: PreparedSweep, found: Sweep) -> str:
    """The command that runs the best setting with the first seed; '' if all diverged."""
    if all_diverged(found):
        return ""
    return run_command_line(prepared.best(found.best_settings), prepared.run.task, found.grid)


def _best_as_written(config: Config, found: Sweep) -> str:
    """The same command without importing the user's own task and method: all that the file has is written."""
    return "" if all_diverged(found) else run_command_line(best_setting(config, found.best_settings))


def all_diverged(found: Sweep) -> str | None:
    """What to say if all settings diverged; None if not."""
    try:
        found.best  # noqa: B018
    except Diverged as error:
        return str(error)
    return None


def sweep_files(folder: Path) -> dict[str, str]:
    """The page, tables and plots that a folder has, by what they are."""
    names = {"page": PAGE, "lanes": TRIALS, "curves": CURVES, "summary": SUMMARY}
    found = {kind: folder / name for kind, name in names.items()}
    found |= {path.stem: path for path in sorted(folder.glob("*.png"))}
    return {kind: str(path) for kind, path in found.items() if path.exists()}


def _run(prepared: PreparedSweep, folder: Path, as_json: bool) -> Sweep:
    """The sweep itself, from where its folder is."""
    label, kept = prepared.method.shown, folder / "lanes"
    if not as_json:
        sizes = " x ".join(f"{len(values)} {axis}" for axis, values in prepared.grid.items())
        seeds = prepared.section.seeds
        assert isinstance(seeds, list)
        several = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
        runs = math.prod(map(len, prepared.grid.values())) * len(seeds)
        rounds = f"{runs:,} runs of {prepared.config.run.rounds:,} rounds"
        say(f"{label} on {prepared.config.task}, {sizes} x {several}, into {folder}: {rounds}")
    kept_progress = ProgressFile(folder, f"{label}, a sweep")
    with open_sweep_display(label) as display:

        def tell(progress: SweepProgress) -> None:
            display(progress)
            kept_progress("trial-rounds", progress.done, progress.total)

        try:
            found = run_sweep(
                prepared.algorithm,
                prepared.run.task,
                prepared.grid,
                prepared.options(),
                out=kept,
                resume=(kept / SWEEP.file).exists(),
                label=label,
                progress=tell,
            )
        except (Interrupted, KeyboardInterrupt):
            where = f"interrupted after {how_far(display.last)}"
            how = how_to_resume("sweep", folder, prepared.config)
            raise Interrupted(f"{where}; {how}") from None
    kept_progress.remove()
    return dataclasses.replace(found, settings=prepared.settings())
