"""Who is told what happens in a run: its log and files, the status of its clients, and the metrics of Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedsolve.deploy.monitoring.client_status import ClientStatuses
from fedsolve.deploy.monitoring.metrics import RunMetrics
from fedsolve.deploy.monitoring.status_file import StatusFile
from fedsolve.deploy.run_log import round_reporter, save_client_metrics, say
from fedsolve.deploy.server.coordinator import Coordinator
from fedsolve.deploy.server.evaluation_result import EvaluationResult
from fedsolve.results.clients import CLIENT_METRICS


@dataclass(frozen=True)
class Reports:
    """Who is told what happens in a run.

    Attributes:
        round: told of every round as plain data.
        client_metrics: told what clients measured, each time that they are asked.
        log: told in one line.
        clients: told who answers and who fails.
        status: writes down what is known of the clients.
        metrics: what Prometheus may be shown.
    """

    round: Callable[[dict[str, Any]], None]
    client_metrics: Callable[[EvaluationResult], None]
    log: Callable[[str], None]
    clients: ClientStatuses
    status: Callable[[], None]
    metrics: RunMetrics


def reports_of(folder: Path, label: str, rounds: int, coordinator: Coordinator) -> Reports:
    """Those of a run, going on from what its folder says of its clients.

    Args:
        folder: the run's.
        label: the method's name.
        rounds: of the run.
        coordinator: where it goes on.
    """
    status = StatusFile(folder, coordinator.experiment, label, rounds, coordinator.method.is_stateful, say)
    clients = status.restore(coordinator.population)
    metrics, log_round = RunMetrics(clients, label, coordinator.state.round, rounds), round_reporter(folder)

    def tell_round(entry: dict[str, Any]) -> None:
        log_round(entry)
        metrics.round(entry)

    def save_status() -> None:
        status.save(clients, coordinator.state.round, coordinator.state.last_used_round)

    clients.changed = save_status  # before the first round, too, while clients are waited for
    tell_measured = partial(save_client_metrics, folder / CLIENT_METRICS)
    return Reports(tell_round, tell_measured, say, clients, save_status, metrics)
