"""The job `statistics` under secure sums: clients enrol, and each round is the sum of their replies."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput, Unavailable
from fedsolve.data.column_statistics.protocol import Gathered, Rounds
from fedsolve.data.column_statistics.summed_columns import MOST_CLIENTS, from_numbers, width
from fedsolve.deploy.client.secure_sums import LEAST_SUM
from fedsolve.deploy.jobs.column_records import ACTION, Masks, columns_digest, read_masked, request_record
from fedsolve.deploy.nodes.transport import MARGIN, Mailbox, Polling, missing_clients_advice
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


class SummedColumns:
    """The clients, as they add up what they reply about their columns.

    Args:
        grid: Flower's grid.
        settings: number of clients, and how long is waited for whom.
        folder: of the job, for the keys.
        run_config: the configuration of Flower's run, which clients have too.

    Raises:
        InvalidInput: too few or too many clients for a sum.
        Unavailable: a client is missing.
    """

    def __init__(self, grid: Grid, settings: Settings, folder: Path, run_config: Mapping[str, Any]) -> None:
        population = settings.population
        if not LEAST_SUM <= population <= MOST_CLIENTS:
            raise InvalidInput(
                f"sums are of {LEAST_SUM} to {MOST_CLIENTS:,} clients: population = {population}"
            )
        self._grid, self._settings, self._run_config = grid, settings, run_config
        self._experiment, self._round = f"statistics-{secrets.token_hex(4)}", 0
        self._nodes = NodesOfClients(grid, settings, self._experiment)
        self.names, seconds = self._nodes.names, settings.round_seconds
        self._keys = ServerKeys(folder / KEYS_FILE, grid, self._nodes, self._experiment, seconds, say)
        self._keys.load_or_enrol(population, settings.connect_seconds)

    def ask(self, rounds: Rounds) -> Mapping[str, Gathered]:
        """The sums of the clients' replies in a round, by column.

        Raises:
            InvalidInput: columns that cannot be added up.
            Unavailable: too few clients reply.
        """
        if rounds.all_columns:
            raise InvalidInput("sums are of columns that are named: name them")
        requests = dict(rounds.requests)
        opened = self._opened(requests, rounds, _ATTEMPTS)
        self._round += 1
        return from_numbers(requests, np.frombuffer(opened.words, "<i8"), len(opened.clients))

    def _opened(self, requests: dict[str, Any], rounds: Rounds, attempts: int) -> Any:
        """The sum of the replies of those that are connected; without those at fault it is tried again."""
        connected = self._nodes.poll()
        clients = self._keys.ready(sorted(connected))
        if len(clients) < LEAST_SUM:
            raise Unavailable(
                f"{len(clients)} clients are connected: {missing_clients_advice(self._grid, LEAST_SUM)}"
            )
        digest = columns_digest(requests, self._run_config)
        attempt = self._keys.begin("statistics", self._round, clients, 0, width(requests), digest)
        records = {
            connected[c]: request_record(requests, False, Masks(self._experiment, attempt.order(c)))
            for c in clients
        }
        refused = self._collect(records, {connected[c]: c for c in clients}, attempt, rounds)
        try:
            return self._keys.open(attempt)
        except SumNotOpened as error:
            words = f"no sum of the columns: {error}{refused}"
            found = error.at_fault or error.disputes or error.unwilling
            if attempts == 1 or not found or isinstance(error, RoundIsOver):
                raise Unavailable(words) from None
            rounds.note(words)
            say(f"{words}: the others are asked again")
        return self._opened(requests, rounds, attempts - 1)

    def _collect(
        self, records: Mapping[int, RecordDict], clients: Mapping[int, int], attempt: Any, rounds: Rounds
    ) -> str:
        """Add up what clients reply until all have or the time is over; of whom none counts, and why, in words."""
        mailbox, seconds = Mailbox(self._grid), self._settings.round_seconds
        ttl, group = seconds + MARGIN, str(self._round)
        messages = {
            node: Message(record, node, f"query.{ACTION}", group_id=group, ttl=ttl)
            for node, record in records.items()
        }
        failed = dict.fromkeys(mailbox.send(messages), "the request could not be sent")
        deadline, polling = time.monotonic() + seconds, Polling()
        while mailbox.waiting and time.monotonic() < deadline:
            for node, answer in mailbox.collect():
                polling.has_arrived()
                try:
                    if isinstance(answer, str):
                        raise InvalidInput(answer)
                    attempt.add(clients[node], read_masked(answer, clients[node]))
                except InvalidInput as error:
                    failed[node] = str(error)
            if mailbox.waiting:
                polling.pause(deadline - time.monotonic())
        failed |= dict.fromkeys(mailbox.waiting, f"no reply within {seconds:g} s")
        mailbox.close(ttl)
        for node, reason in failed.items():
            rounds.note(f"{self.names(clients[node])}: {reason}")
            say(f"{self.names(clients[node])} does not count: {reason}")
        return "".join(f"; {self.names(clients[node])}: {reason}" for node, reason in [*failed.items()][:1])
