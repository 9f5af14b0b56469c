"""Who is told what happens in a run: its log and files, the status of its clients, and the metrics of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedsolve.deploy.exchange import Replies
from fedsolve.deploy.metrics import RunMetrics
from fedsolve.deploy.run_log import round_reporter, save_client_metrics, say
from fedsolve.deploy.server.coordinator import LARGEST, SITE, WHOSE, Coordinator
from fedsolve.deploy.server.evaluation import EvaluationResult
from fedsolve.deploy.site_names import SiteNames
from fedsolve.deploy.status import ClientStatuses, StatusFile
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


def traffic(replies: Replies[Any]) -> dict[str, int]:
    """Bytes and rejected replies of a round."""
    return {
        "bytes_up": replies.bytes_up,
        "bytes_down": replies.bytes_down,
        "rejected": len(replies.rejected),
    }


def round_entry(
    round: int, rounds: int, replies: Replies[Any], logged: Mapping[str, Any], names: SiteNames
) -> dict[str, Any]:
    """What is reported of a round as plain data, but for its metrics and its seconds.

    Args:
        round: its number, from 1.
        rounds: of the run.
        replies: to its orders.
        logged: what the record has of it.
        names: what each client is called.
    """
    whose = logged.get(WHOSE)
    return {
        "round": round,
        "rounds": rounds,
        "asked": replies.asked,
        "replies": len(replies.accepted),
        **traffic(replies),
        "causes": {cause.value: n for cause, n in sorted(replies.causes.items())},
        "loss": logged.get("client_loss"),
        "epsilon": logged.get("epsilon"),
        LARGEST: logged.get(LARGEST),
        WHOSE: whose,
        "reasons": [f"{names(client)}: {reason}" for client, reason in replies.rejected],
        **({SITE: names.given[whose]} if whose in names.given else {}),
    }
