"""Asking a cohort for one round: who is asked, and which of the replies count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedsolve.deploy.client.client_state import StateLost
from fedsolve.deploy.messages import records
from fedsolve.deploy.messages.codec import Expected, record_to_reply
from fedsolve.deploy.messages.message import TRAIN, TrainReply, TrainRequest
from fedsolve.deploy.messages.sanitize import reading
from fedsolve.deploy.monitoring.client_status import Cause
from fedsolve.deploy.monitoring.phases import PhaseClock
from fedsolve.deploy.nodes.client_registry import ClientRegistry
from fedsolve.deploy.nodes.exchange import Exchange, Replies
from fedsolve.deploy.nodes.pending_requests import PendingRequests, send_and_wait
from fedsolve.deploy.server.coordinator import Coordinator
from fedsolve.deploy.server.server_state import Accepted
from fedsolve.deploy.server.settings import Settings


class ReplyCollector(Exchange[TrainRequest, Accepted]):
    """Asks clients for rounds of a coordinator, and remembers who kept a round waiting."""

    def __init__(
        self,
        grid: Grid,
        coordinator: Coordinator,
        settings: Settings,
        registry: ClientRegistry,
        phases: PhaseClock,
        log: Callable[[str], None],
    ) -> None:
        self._coordinator, self._settings, self._registry = coordinator, settings, registry
        self._phases = phases
        super().__init__(
            grid, TRAIN, settings.round_seconds, settings.grace, self._read, registry.clients, log
        )

    def collect(
        self,
        clients: list[int],
        replies: Replies[Accepted],
        is_retry: bool,
        beside: Callable[[], PendingRequests[Any, Any]] | None = None,
    ) -> None:
        """Ask clients for this round, and validate what comes back until the round closes.

        Clients that kept an earlier one waiting are left alone, unless this is a retry or too few would be left. With
        `beside`, the messages carry these requests too, and the round closes when the wait for them ends as well.
        """
        with self._phases.during("wait"):
            clients, connected = self._connected(clients, replies, is_retry)
        with self._phases.during("orders"):
            self._coordinator.begin_attempt(clients)
            requests = {connected[client]: self._coordinator.train_request(client) for client in clients}
            orders = PendingRequests(self, requests, replies, self._round)
            pending = [orders, beside()] if beside else [orders]
        send_and_wait(pending, self._round, self._phases)
        for client in orders.silent:
            self.reject(replies, client, Cause.NO_ANSWER, f"no answer within {self.waited}")
        self._note_late_answers(connected)

    def _connected(
        self, clients: list[int], replies: Replies[Accepted], is_retry: bool
    ) -> tuple[list[int], dict[int, int]]:
        """The clients that are asked now, and the node of each that is connected."""
        connected = self._registry.poll()
        if not is_retry:
            clients = self._without_backoff(clients, connected, replies)
        if not set(clients) <= set(connected):
            connected = self._registry.wait(clients, self._settings.connect_seconds)
        for client in clients:
            if client in connected:
                continue
            if (why := self._registry.refused.get(client)) is not None:
                why = why.removeprefix(f"{self._names(client)}: ")
                self.reject(replies, client, Cause.REFUSED, f"refused: {why}")
                continue
            self.backoff.record_miss(client, None, self._round)
            reason = f"not connected within {self._settings.connect_seconds:g} s"
            self.reject(replies, client, Cause.NOT_CONNECTED, reason)
        return [client for client in clients if client in connected], connected

    def _without_backoff(
        self, clients: list[int], connected: dict[int, int], replies: Replies[Accepted]
    ) -> list[int]:
        """The clients that are asked now; all of them if too few would be left."""
        skipped = {
            client
            for client in clients
            if self.backoff.is_backing_off(client, connected.get(client), self._round)
        }
        if len(clients) - len(skipped) < replies.needed:
            return clients
        for client in sorted(skipped):
            reason = "not asked: it left an earlier round without an answer"
            self.reject(replies, client, Cause.NOT_ASKED, reason)
        return [client for client in clients if client not in skipped]

    def _note_late_answers(self, connected: dict[int, int]) -> None:
        """An answer to an order that is over is no part of any round; it shows that its client is alive."""
        clients = {node: client for client, node in connected.items()}
        for node in self.take_late():
            if node in clients:
                self.backoff.record_answer(clients[node])
                self._clients.heard(clients[node])
                self._log(
                    f"{self._names(clients[node])} answers, too late for the round that it was asked for"
                )

    @property
    def _round(self) -> int:
        return self._coordinator.state.round + 1

    def _read(self, request: TrainRequest, answer: RecordDict) -> Accepted:
        return read_and_validate(self._coordinator, request.client, answer)


def read_and_validate(coordinator: Coordinator, client: int, answer: RecordDict) -> Accepted:
    """What a client answered to this round's order, validated.

    Raises:
        InvalidInput: why it does not count, whatever it is made of.
    """
    with reading("the reply"):
        try:
            expected = Expected(coordinator.max_message_bytes, coordinator.returned_buffers)
            reply = record_to_reply(TrainReply, answer, expected)
        except StateLost:
            coordinator.report_lost_state(client)
            raise
        records.clear_record(answer)
        return coordinator.validate_reply(client, reply)
