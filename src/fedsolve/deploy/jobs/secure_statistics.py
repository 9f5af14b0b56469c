"""The job `statistics` under secure sums: clients enrol, and the sum of their replies is opened."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput, Unavailable
from fedsolve.data.column_statistics.pooled import (
    MOST_CLIENTS,
    check_summable,
    from_numbers,
    from_sums,
    width,
)
from fedsolve.data.column_statistics.replies import Measure
from fedsolve.data.column_statistics.report import Statistics
from fedsolve.deploy.client.secure_sums import LEAST_SUM
from fedsolve.deploy.jobs.column_questions import ask_columns
from fedsolve.deploy.jobs.column_records import Masks, columns_digest, read_masked, request_record
from fedsolve.deploy.jobs.job import Job
from fedsolve.deploy.nodes.transport import Polling, missing_clients_advice
from fedsolve.deploy.run_log import say
from fedsolve.deploy.secure.byte_reader import RoundIsOver, SumNotOpened
from fedsolve.deploy.secure_rounds.questions import ask
from fedsolve.deploy.secure_rounds.secure_records import Question
from fedsolve.deploy.secure_rounds.server_keys import KEYS_FILE, ServerKeys
from fedsolve.deploy.server.settings import Settings
from fedsolve.deploy.site_names import SiteNames

_ATTEMPTS = 4


class NodesOfClients:
    """Which client is at which node, by what each says; no model is needed.

    Args:
        grid: Flower's grid.
        settings: number of clients, and how long is waited.
        experiment: of the secure sums.

    Attributes:
        names: what each client is called.
    """

    refused: Mapping[int, str] = MappingProxyType({})
    """Nobody: a node that refuses does not say here which client it is."""

    def __init__(self, grid: Grid, settings: Settings, experiment: str) -> None:
        self._grid, self._settings, self._experiment = grid, settings, experiment
        self.names = SiteNames()
        self._clients: dict[int, int] = {}  # by node

    def poll(self) -> dict[int, int]:
        """The clients that are connected now, each with its node."""
        nodes = set(self._grid.get_node_ids())
        new = sorted(nodes - set(self._clients))
        question = Question(self._experiment, "who", b"")

        def take(node: int, answer: bytes) -> bool:
            client = int.from_bytes(answer, "little")
            if client >= self._settings.population or client in self._clients.values():
                raise InvalidInput(f"it says that it is client {client}: give each node its own client-id")
            self._clients[node] = client
            return False

        if new:
            seconds = self._settings.connect_seconds
            failed = ask(
                self._grid, {node: (node, question) for node in new}, seconds, 8, take, is_known=False
            )
            for node, reason in failed.items():
                say(f"node {node} does not count: {reason}")
        return {client: node for node, client in self._clients.items() if node in nodes}

    def wait(self, clients: Iterable[int], seconds: float) -> dict[int, int]:
        """Wait for these clients, until the deadline; then who is connected."""
        deadline, polling = time.monotonic() + seconds, Polling()
        while not set(clients) <= set(connected := self.poll()) and time.monotonic() < deadline:
            polling.pause(deadline - time.monotonic())
        return connected


def summed_statistics(grid: Grid, settings: Settings, job: Job, run_config: Mapping[str, Any]) -> Statistics:
    """Statistics from the sum of the clients' replies, of which the server sees no client's part.

    Raises:
        InvalidInput: too few or too many clients for a sum, columns that cannot be added up, or a sum that none have.
        Unavailable: a client is missing, or too few reply.
    """
    population = settings.population
    if not LEAST_SUM <= population <= MOST_CLIENTS:
        raise InvalidInput(f"sums are of {LEAST_SUM} to {MOST_CLIENTS:,} clients: population = {population}")
    requests = check_summable(job.columns)
    experiment, notes = f"statistics-{secrets.token_hex(4)}", []
    nodes = NodesOfClients(grid, settings, experiment)
    path = Path(settings.out) / KEYS_FILE
    keys = ServerKeys(path, grid, nodes, experiment, settings.round_seconds, say)
    keys.load_or_enrol(population, settings.connect_seconds)
    asked = SumAsked(grid, settings, requests, columns_digest(requests, run_config), experiment)
    opened = asked.opened(nodes, keys, notes)
    clients = len(opened.clients)
    sums = from_numbers(requests, np.frombuffer(opened.words, "<i8"), clients)
    return from_sums(requests, sums, clients, job.minimum, notes)


@dataclass(frozen=True)
class SumAsked:
    """The question of which the clients' replies are added up."""

    grid: Grid
    settings: Settings
    requests: Mapping[str, Measure]
    digest: bytes
    experiment: str

    def opened(
        self, nodes: NodesOfClients, keys: ServerKeys, notes: list[str], attempts: int = _ATTEMPTS
    ) -> Any:
        """The sum of the replies of those that are connected; without those at fault it is tried again."""
        connected = nodes.poll()
        clients = keys.ready(sorted(connected))
        if len(clients) < LEAST_SUM:
            advice = missing_clients_advice(self.grid, LEAST_SUM)
            raise Unavailable(f"{len(clients)} clients are connected: {advice}")
        attempt = keys.begin("statistics", 0, clients, 0, width(self.requests), self.digest)
        refused = self._collect({connected[c]: c for c in clients}, attempt, nodes.names)
        notes += refused
        try:
            return keys.open(attempt)
        except SumNotOpened as error:
            words = "; ".join([f"no sum of the columns: {error}", *refused[:1]])
            found = error.at_fault or error.disputes or error.unwilling
            if attempts == 1 or not found or isinstance(error, RoundIsOver):
                raise Unavailable(words) from None
            notes.append(words)
            say(f"{words}: the others are asked again")
        return self.opened(nodes, keys, notes, attempts - 1)

    def _collect(self, clients: Mapping[int, int], attempt: Any, names: SiteNames) -> list[str]:
        """Add up what clients reply, each at its node, until the time is over; of whom none counts, and why."""

        def take(node: int, answer: RecordDict) -> bool:
            attempt.add(clients[node], read_masked(answer, clients[node]))
            return False

        records = {
            node: request_record(self.requests, Masks(self.experiment, attempt.order(client)))
            for node, client in clients.items()
        }
        failed = ask_columns(self.grid, records, self.settings.round_seconds, take)
        notes = [f"{names(clients[node])}: {reason}" for node, reason in failed.items()]
        for node, reason in failed.items():
            say(f"{names(clients[node])} does not count: {reason}")
        return notes
