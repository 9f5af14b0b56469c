"""What a run or a comparison leaves in its folder: records, the final model, plots and the page."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.cli.configuration.config import Config
from fedsolve.cli.terminal.console import emit, emit_rich, say
from fedsolve.cli.terminal.folders import run_folders
from fedsolve.core.fleets import Timeline
from fedsolve.engine.running_page import page_so_far
from fedsolve.folders.files import write_atomically
from fedsolve.report import plots
from fedsolve.report.figures import CAPTION, labels_by_client, waiting
from fedsolve.report.page import PAGE, write_page
from fedsolve.report.table import result_table
from fedsolve.results.history import History
from fedsolve.results.record_files import MODEL
from fedsolve.tasks.task import Task

_CURVES, _COMPARISON, _CLIENTS, _FLEET = "curves.png", "comparison.png", "clients.png", "fleet.png"


def write_report(
    folder: Path,
    config: Config,
    task: Task,
    histories: Sequence[History],
    notes: Sequence[str] = (),
    timeline: Timeline | None = None,
) -> None:
    """The plots and the page of one run or of a comparison."""
    several = len(config.method) > 1
    pictures = {}
    if can_draw():
        plots.save(plots.comparison(histories), folder / (_COMPARISON if several else _CURVES))
        if timeline is not None:
            pictures[CAPTION] = plots.png(waiting(timeline))
            write_atomically(folder / _FLEET, pictures[CAPTION])
        if _has_labels(task):
            drawn = plots.png(labels_by_client(task.data, title=f"Labels by client: {task.name}"))
            write_atomically(folder / _CLIENTS, drawn)
            pictures["How many examples of each label every client holds."] = drawn
    write_page(
        folder / PAGE,
        histories,
        title=_title(config),
        how_tuned=config.how_tuned,
        notes=notes,
        pictures=pictures,
    )


def page_meanwhile(folder: Path, config: Config) -> AbstractContextManager[None]:
    """The page of a run or a comparison while it goes on; see `engine.running_page`."""
    places = [(label, place) for label, of in run_folders(folder, config).items() for place in of.values()]
    return page_so_far(folder, places, _title(config), config.task, config.run.rounds)


def _title(config: Config) -> str:
    several = len(config.method) > 1
    named = f"{len(config.method)} methods" if several else config.method[0].shown
    return config.title or f"{named} on {config.task}"


def can_draw() -> bool:
    """Whether plots can be drawn; if not that is said."""
    if importlib.util.find_spec("matplotlib") is not None:
        return True
    say("note: no plots, because matplotlib is not installed: install fedsolve[plot]")
    return False


def report_files(folder: Path) -> dict[str, str]:
    """The plots and the page that a folder has, by what they are."""
    names = {"page": PAGE, "picture": _COMPARISON, "curves": _CURVES, "fleet": _FLEET, "clients": _CLIENTS}
    names |= {"model": MODEL}
    found = {kind: folder / name for kind, name in names.items()}
    return {kind: str(path) for kind, path in found.items() if path.exists()}


def document(status: str, folder: Path, task: str, rounds: int, **facts: Any) -> dict[str, Any]:
    """What is said of a run or a comparison as one JSON document."""
    about = {"status": status, "folder": str(folder), "task": task, "rounds": rounds}
    return {**about, **facts, "files": report_files(folder)}


def print_result(
    histories: Sequence[History],
    notes: Sequence[str],
    folder: Path,
    title: str = "",
    metrics: Sequence[str] | None = None,
    target: float | None = None,
) -> None:
    """The table of some runs, remarks on them, and where their page and plots are."""
    if histories:
        emit_rich(result_table(histories, target, title, metrics))
    lines = [*notes, *(f"{kind:8} {path}" for kind, path in report_files(folder).items())]
    emit("\n".join(lines))


def _has_labels(task: Task) -> bool:
    """Whether each example has one label of a finite set."""
    labels = getattr(task.data.examples, "y", None)
    if labels is None:
        return False
    array = np.asarray(labels)
    return array.ndim == 1 and not np.issubdtype(array.dtype, np.inexact)
