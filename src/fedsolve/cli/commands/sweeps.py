"""`fedsolve sweep`: every setting of a grid with every seed, into a folder with tables, plots and a page."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from fedsolve.cli.commands.sweep_result import all_diverged, print_sweep, save_page, sweep_page_meanwhile
from fedsolve.cli.configuration.config import Config
from fedsolve.cli.configuration.requests import SweepRequest
from fedsolve.cli.configuration.sweep_prepare import PreparedSweep, prepare_sweep
from fedsolve.cli.terminal.console import say
from fedsolve.cli.terminal.folders import TRIAL_FOLDERS, begun, how_to_resume
from fedsolve.cli.terminal.sweep_progress import open_sweep_display
from fedsolve.core.errors import Diverged, Interrupted
from fedsolve.engine.sweep import run_sweep
from fedsolve.folders.run_folder import SWEEP
from fedsolve.results.sweep import SUMMARY, SweepRecord, load, require_parquet, save


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
