"""What a deployment says of itself: lines of its log, and the files of its folder that others may follow."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedsolve.deploy.messages.message import PARTS
from fedsolve.deploy.server.evaluation_result import EvaluationResult
from fedsolve.deploy.server.outliers import LARGEST, WHOSE
from fedsolve.folders.append_log import append_line
from fedsolve.folders.sealed_json import sealed
from fedsolve.folders.store import INTACT
from fedsolve.results.columns import dumps

ROUNDS = "rounds.jsonl"
"""One line a round, written as the run goes."""
FAILED = "failed.txt"
"""Why a run ended early, in one line."""


def say(line: str) -> None:
    """One line for the run's log."""
    print(f"fedsolve: {line}", flush=True)


def write_failure(folder: Path, reason: str) -> None:
    """Why a run ended early, in its folder; a full disk must not hide it."""
    try:
        (folder / FAILED).write_text(f"{reason}\n", encoding="utf-8")
    except OSError as error:
        say(f"{folder / FAILED} cannot be written: {error.strerror}")


def save_client_metrics(path: Path, result: EvaluationResult) -> None:
    """Add what clients measured to a file, client by client: a line for each part of their examples."""
    for part in PARTS:
        append_line(path, sealed(dumps(result.line(part))), INTACT)


def round_reporter(folder: Path) -> Callable[[dict[str, Any]], None]:
    """Writes one line a round, in words to the log and as data to a file that others may follow."""

    def report(entry: dict[str, Any]) -> None:
        append_line(folder / ROUNDS, dumps({**entry, "time": time.time()}), INTACT)
        loss = "" if entry["loss"] is None else f", loss {entry['loss']:.4g}"
        norm = entry[LARGEST]
        largest = "" if norm is None else f", largest norm {norm:.4g} (client {entry[WHOSE]})"
        say(
            f"round {entry['round']} of {entry['rounds']}: {entry['replies']} replies, {entry['rejected']} rejected, "
            f"{entry['bytes_up']:,} bytes up, {entry['bytes_down']:,} down{loss}{largest}, {entry['seconds']:.1f} s"
        )

    return report
