"""A sweep in the terminal: its progress, and what is printed of it, finished or not."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.cli.configuration.config import Config
from fedsolve.cli.configuration.prepare import command_as_written, prepare_sweep, search_of
from fedsolve.cli.configuration.trust import imports_document, imports_lines, would_import
from fedsolve.cli.console import emit, emit_json, emit_rich
from fedsolve.cli.folders import TRIAL_FOLDERS, can_draw, how_to_resume
from fedsolve.core.errors import Diverged
from fedsolve.engine.sweep_grid import check_grid
from fedsolve.engine.sweep_rounds import results_so_far
from fedsolve.folders.files import is_locked
from fedsolve.folders.run_folder import SWEEP
from fedsolve.report.page import SoFar, written_meanwhile
from fedsolve.report.sweep_page import PAGE, write_page, write_sweep_page
from fedsolve.report.sweep_plots import edges, outcome_lines, rule_text, setting_rows, setting_table
from fedsolve.results.sweep import CURVES, SUMMARY, TRIALS, Selection, SweepRecord, load, points_of, summary


def print_sweep(
    folder: Path, found: SweepRecord, command: str, as_json: bool, more: Mapping[str, Any] | None = None
) -> None:
    if as_json:
        emit_json(_document(folder, found, command) | dict(more or {}))
        return
    title = f"{found.label} on {found.task}, {found.rounds[-1]} rounds: {rule_text(found)}"
    emit(title)
    emit_rich(setting_table(found).rich())
    lines = [*outcome_lines(found), *(f"note: {note}" for note in found.notes if note not in edges(found))]
    lines += [
        f"{'picture' if path.endswith('.png') else kind:8} {path}" for kind, path in _files(folder).items()
    ]
    emit("\n".join(lines + ([f"run it   {command}"] if command else [])))


def save_page(folder: Path, found: SweepRecord, title: str, command: str) -> None:
    write_sweep_page(folder, found, title=title, command=command, draw=can_draw())


def sweep_so_far(config: Config, folder: Path) -> SweepRecord | None:
    """A sweep under way up to the last evaluation of all of its trials; None before they all have begun."""
    assert config.sweep is not None
    if not (folder / TRIAL_FOLDERS / SWEEP.file).exists():
        return None
    run, section = config.run, config.sweep
    seeds = section.seeds if isinstance(section.seeds, list) else []
    search = search_of(section)
    grid = check_grid(section.axes, len(seeds), search)
    # the rounds at which a sweep evaluates: every `eval_every`, and the last
    rounds = np.unique([*range(0, run.rounds, run.eval_every or run.rounds), run.rounds])
    shape = (len(points_of(grid, search.kind)), len(seeds), len(rounds))
    metrics, diverged, stopped, seconds = results_so_far(folder / TRIAL_FOLDERS, shape)
    # shape (settings, seeds, rounds): an evaluation counts once all trials have come to it or have ended
    seen = ~np.isnan(metrics["train_loss"]) | ((diverged >= 0) | (stopped[:, None] >= 0))[..., None]
    count = int(np.cumprod(seen.all((0, 1))).sum())
    if not count:
        return None
    return SweepRecord(
        label=config.method[0].shown,
        task=config.task,
        grid=grid,
        seeds=tuple(seeds),
        rounds=rounds[:count],
        metrics={name: values[..., :count] for name, values in metrics.items()},
        diverged=diverged,
        selection=Selection.parse(section.select or ""),
        seconds=seconds,
        search=search.record(section.grid),
        stopped=stopped,
    )


def sweep_page_meanwhile(config: Config, folder: Path) -> AbstractContextManager[None]:
    last: list[object] = []

    def write(goes_on: bool) -> bool:
        found = sweep_so_far(config, folder) if is_locked(folder / TRIAL_FOLDERS) or not goes_on else None
        if found is None or last == (now := [goes_on, len(found.rounds)]):
            return False
        so_far = SoFar(f"all runs after round {found.rounds[-1]:,} of {config.run.rounds:,}", goes_on)
        write_page(folder / PAGE, found, {}, title=config.title, so_far=so_far)
        last[:] = now
        return True

    return written_meanwhile(write)


def show_sweep(config: Config, folder: Path, as_json: bool) -> None:
    assert config.sweep is not None
    if (folder / SUMMARY).exists():
        found = load(folder)
        imports = would_import(config)  # which showing it does not do
        command = ""
        if not all_diverged(found):
            best = found.best_settings
            command = (
                command_as_written(config, best) if imports else prepare_sweep(config, folder).command(best)
            )
        print_sweep(folder, found, command, as_json, imports_document(config))
        if imports and not as_json:
            emit("\n".join(imports_lines(config)))
        return
    standing = "running" if is_locked(folder / TRIAL_FOLDERS) else "unfinished"
    if as_json:
        facts: dict[str, Any] = {"status": standing, "folder": str(folder), "task": config.task}
        facts |= {"label": config.method[0].shown, "rounds": config.run.rounds, "files": {}}
        emit_json(facts | imports_document(config))
        return
    lines = [f"{config.method[0].shown}: {standing} sweep"]
    lines += [how_to_resume("sweep", folder)] if standing == "unfinished" else []
    if (so_far := sweep_so_far(config, folder)) is not None:
        emit_rich(setting_table(so_far).rich())
        lines[0] += f", all runs after round {so_far.rounds[-1]:,} of {config.run.rounds:,}"
    emit("\n".join(lines + imports_lines(config)))


def _document(folder: Path, found: SweepRecord, command: str) -> dict[str, Any]:
    facts = summary(found)
    best = facts.pop("best")
    failure = all_diverged(found)
    return {
        "status": "diverged" if failure else "finished",
        "folder": str(folder),
        **{name: facts[name] for name in ("task", "label", "grid", "search", "seeds", "selection")},
        "rounds": int(found.rounds[-1]),
        "best": None if best is None else best | {"command": command},
        "share_within_5_percent": facts["share_within_5_percent"],
        "ranking": setting_rows(found),
        "trials": facts["lanes"],
        "trials_diverged": facts["lanes_diverged"],
        "seconds": facts["seconds"],
        "notes": facts["notes"],
        "error": failure,
        "files": _files(folder),
    }


def all_diverged(found: SweepRecord) -> str | None:
    try:
        found.best  # noqa: B018
    except Diverged as error:
        return str(error)
    return None


def _files(folder: Path) -> dict[str, str]:
    names = {"page": PAGE, "trials": TRIALS, "curves": CURVES, "summary": SUMMARY}
    found = {kind: folder / name for kind, name in names.items()}
    found |= {path.stem: path for path in sorted(folder.glob("*.png"))}
    return {kind: str(path) for kind, path in found.items() if path.exists()}
