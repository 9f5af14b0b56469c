"""What a deployment says of itself: lines of its log, files that others may follow, and whom it tells of each round."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedsolve.core.errors import FedsolveError
from fedsolve.deploy.metrics import RunMetrics
from fedsolve.deploy.sanitize import sanitize
from fedsolve.deploy.server.coordinator import LARGEST, SITE, WHOSE, Coordinator
from fedsolve.deploy.server.evaluation import EvaluationResult, save_client_metrics
from fedsolve.deploy.site_names import numbered
from fedsolve.deploy.status import ClientStatuses, StatusFile
from fedsolve.folders.logs import append_line
from fedsolve.folders.untrusted import read_text
from fedsolve.report.style import human_time
from fedsolve.results.clients import CLIENT_METRICS
from fedsolve.results.columns import dumps

ROUNDS = "rounds.jsonl"
"""One line a round, written as the run goes."""
FAILED = "failed.txt"
"""Why a run ended early, in one line."""
_LARGEST = 2**16  # bytes of it


def say(line: str) -> None:
    print(f"fedsolve: {line}", flush=True)


class _OneLine(logging.Filter):
    """Keeps out of Flower's log what it says of an error of ours, which has been said in one line: its traceback, and
    that it is unhandled.
    """

    def __init__(self) -> None:
        super().__init__()
        self._has_ended = False

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        self._has_ended |= isinstance(error, FedsolveError)
        return not isinstance(error, FedsolveError) and not (
            self._has_ended and record.getMessage().startswith("Exit Code:")
        )


def end_in_one_line() -> None:
    """From now on errors of ours end this process without a traceback in Flower's log."""
    log = logging.getLogger("flwr")
    if not any(isinstance(other, _OneLine) for other in log.filters):
        log.addFilter(_OneLine())


def tell_failure(error: Exception, folder: Path | None) -> None:
    """Why a run ended early, in its folder (None where that belongs to another run) and in the log."""
    reason = str(error) if isinstance(error, FedsolveError) else sanitize(f"{type(error).__name__}: {error}")
    say(f"error: {reason}")
    if folder is not None:
        try:
            (folder / FAILED).write_text(f"{reason}\n", encoding="utf-8")
        except OSError as full:  # which must not hide it
            say(f"{folder / FAILED} cannot be written: {full.strerror}")


def read_reason(folder: Path) -> str:
    """Why a run ended early, in one line; that it cannot be read where that is so."""
    try:
        return " ".join(read_text(folder / FAILED, _LARGEST, follow=False).split())
    except (OSError, UnicodeDecodeError):
        return f"{FAILED} cannot be read"


def round_reporter(folder: Path) -> Callable[[dict[str, Any]], None]:
    """Writes one line a round, in words to the log and as data to a file that others may follow."""

    def report(entry: dict[str, Any]) -> None:
        append_line(folder / ROUNDS, dumps({**entry, "time": time.time()}))
        loss = "" if entry["loss"] is None else f", loss {entry['loss']:.4g}"
        norm = entry[LARGEST]
        whose = entry.get(SITE) or (None if norm is None else numbered(entry[WHOSE]))
        largest = "" if norm is None else f", largest norm {norm:.4g} ({whose})"
        say(
            f"round {entry['round']} of {entry['rounds']}: {entry['replies']} replies, {entry['rejected']} rejected, "
            f"{entry['bytes_up']:,} bytes up, {entry['bytes_down']:,} down{loss}{largest}, "
            f"{human_time(entry['seconds'])}{_longest_phase(entry)}"
        )

    return report


def _longest_phase(entry: Mapping[str, Any]) -> str:
    # What most of a round was spent on, in words; '' if nothing took half of it.
    phase, seconds = max(entry.get("phases", {}).items(), key=lambda pair: pair[1], default=("", 0.0))
    return f" ({phase} {human_time(seconds)})" if phase and seconds >= 0.5 * entry["seconds"] else ""


# Who is told what happens in a run: its log and files, the status of its clients, and the metrics of Prometheus.


@dataclass(frozen=True)
class Reports:
    """Who is told what happens in a run."""

    round: Callable[[dict[str, Any]], None]  # told of every round as plain data
    # told what clients measured, each time that they are asked
    client_metrics: Callable[[EvaluationResult], None]
    log: Callable[[str], None]
    clients: ClientStatuses
    status: Callable[[], None]  # writes down what is known of the clients
    metrics: RunMetrics


def reports_of(folder: Path, label: str, rounds: int, coordinator: Coordinator) -> Reports:
    """Those of a run, going on from what its folder says of its clients."""
    status = StatusFile(folder, coordinator.experiment, label, rounds, coordinator.method.is_stateful, say)
    clients = status.restore(coordinator.population)
    clients.hides_cohorts = coordinator.algorithm.traits.secret_cohorts
    metrics, log_round = RunMetrics(clients, label, coordinator.state.round, rounds), round_reporter(folder)

    def tell_round(entry: dict[str, Any]) -> None:
        log_round(entry | ({"reasons": []} if clients.hides_cohorts else {}))
        metrics.round(entry)

    def save_status() -> None:
        status.save(clients, coordinator.state.round, coordinator.written_last_used)

    clients.changed = save_status  # before the first round, too, while clients are waited for
    tell_measured = partial(save_client_metrics, folder / CLIENT_METRICS)
    return Reports(tell_round, tell_measured, say, clients, save_status, metrics)
