"""What a run or a comparison leaves in its folder: records, the final model, pictures and the page."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import save

from fedsolve.cli.config import Config
from fedsolve.cli.console import say
from fedsolve.cli.folders import CLIENTS, COMPARISON, CURVES, FAILURE, HISTORY, METRICS, MODEL, PAGE
from fedsolve.files import write_atomically
from fedsolve.report import plots
from fedsolve.report.clients import labels_by_client
from fedsolve.report.columns import write_jsonl
from fedsolve.report.history import History
from fedsolve.report.page import write_page
from fedsolve.tasks.task import Task
from fedsolve.types import Params


def write_record(folder: Path, history: History, params: Params) -> None:
    """The evaluations, the final model and, last, the whole record: once it is there the run is finished."""
    write_jsonl(folder / METRICS, history.evaluations)
    write_model(folder / MODEL, params, {"task": history.task, "method": history.label})
    write_atomically(folder / HISTORY, history.to_json(indent=1))


def write_failure(folder: Path, history: History, message: str) -> None:
    """The record of a run that diverged, and why."""
    write_jsonl(folder / METRICS, history.evaluations)
    write_atomically(folder / FAILURE, f"{message}\n")
    write_atomically(folder / HISTORY, history.to_json(indent=1))


def write_model(path: Path, params: Params, facts: dict[str, str]) -> None:
    """Parameters as a safetensors file, each leaf under its place in the tree, such as `0.weight`."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    arrays = {
        jax.tree_util.keystr(place, simple=True, separator=".") or "params": np.ascontiguousarray(leaf)
        for place, leaf in leaves
    }
    # one entry, because safetensors writes several in any order and equal models shall be equal files
    write_atomically(path, save(arrays, metadata={"fedsolve": json.dumps(facts)}))


def write_report(
    folder: Path, config: Config, task: Task, histories: Sequence[History], notes: Sequence[str] = ()
) -> None:
    """The pictures and the page of one run or of a comparison."""
    several = len(config.method) > 1
    pictures = {}
    if importlib.util.find_spec("matplotlib") is None:
        say("note: no pictures, because matplotlib is not installed: install fedsolve[plot]")
    else:
        plots.save(plots.comparison(histories), folder / (COMPARISON if several else CURVES))
        if _has_labels(task):
            figure = labels_by_client(task.data, title=f"Labels by client: {task.name}")
            plots.save(figure, folder / CLIENTS)
            pictures["How many examples of each label every client holds."] = figure
    named = f"{len(config.method)} methods" if several else config.method[0].shown
    write_page(
        folder / PAGE,
        histories,
        title=config.title or f"{named} on {config.task}",
        how_tuned=config.how_tuned,
        notes=notes,
        pictures=pictures,
    )


def report_files(folder: Path) -> dict[str, str]:
    """The pictures and the page that a folder has, by what they are."""
    names = {"page": PAGE, "picture": COMPARISON, "curves": CURVES, "clients": CLIENTS, "model": MODEL}
    found = {kind: folder / name for kind, name in names.items()}
    return {kind: str(path) for kind, path in found.items() if path.exists()}


def _has_labels(task: Task) -> bool:
    """Whether each example has one label of a finite set."""
    labels = getattr(task.data.examples, "y", None)
    if labels is None:
        return False
    array = np.asarray(labels)
    return array.ndim == 1 and not np.issubdtype(array.dtype, np.inexact)
