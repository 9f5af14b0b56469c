"""Asking a cohort for one round: who is asked, how long the round stays open, which of the replies count."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.client.client_state import StateLost
from fedsolve.deploy.messages import records
from fedsolve.deploy.messages.codec import Expected, record_to_reply, to_record
from fedsolve.deploy.messages.message import TrainReply
from fedsolve.deploy.messages.sanitize import reading
from fedsolve.deploy.messages.validation import TooLarge
from fedsolve.deploy.nodes.registry import ClientRegistry
from fedsolve.deploy.nodes.transport import MARGIN, Mailbox, send_and_collect
from fedsolve.deploy.server.backoff import Backoff
from fedsolve.deploy.server.coordinator import Coordinator
from fedsolve.deploy.server.server_state import Accepted
from fedsolve.deploy.server.settings import Settings


@dataclass
class RoundReplies:
    """What came of one round's messages so far.

    Attributes:
        needed: replies that must count for the round to be used.
        wanted: replies that end the round at once.
        accepted: the replies that count, by client.
        rejected: clients that do not count, each with the reason, in the order in which that was found.
        too_large: whether a reply did not count because its numbers are not finite or too large (`TooLarge`).
        bytes_down, bytes_up: of all messages of the round.
    """

    needed: int
    wanted: int
    accepted: dict[int, Accepted] = field(default_factory=dict)
    rejected: list[tuple[int, str]] = field(default_factory=list)
    too_large: bool = False
    bytes_down: int = 0
    bytes_up: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether no more replies are wanted."""
        return len(self.accepted) >= self.wanted

    @property
    def is_enough(self) -> bool:
        """Whether so many count that the round can be used."""
        return len(self.accepted) >= self.needed


class ReplyCollector:
    """Asks clients for rounds of a coordinator, and remembers who kept a round waiting.

    Args:
        grid: Flower's grid.
        coordinator: makes the orders and validates the replies.
        settings: deadlines.
        registry: which client sits at which node.
        log: told in one line what happens.
    """

    def __init__(
        self,
        grid: Grid,
        coordinator: Coordinator,
        settings: Settings,
        registry: ClientRegistry,
        log: Callable[[str], None],
    ) -> None:
        self._coordinator, self._settings, self._registry, self._log = coordinator, settings, registry, log
        self._mailbox, self._backoff = Mailbox(grid), Backoff()
        self._closes = math.inf

    def collect(self, clients: list[int], replies: RoundReplies, is_retry: bool) -> None:
        """Ask clients for this round, and validate what comes back until the round closes.

        The round closes when all that are wanted count or all have answered, a grace time after enough count, at the
        latest at its deadline. Clients that kept an earlier one waiting are left alone, unless this is a retry or too
        few would be left.
        """
        connected = self._registry.poll()
        if not is_retry:
            clients = self._without_backoff(clients, connected, replies)
        if not set(clients) <= set(connected):
            connected = self._registry.wait(clients, self._settings.connect_seconds)
        for client in clients:
            if client not in connected:
                self._backoff.record_miss(client, None, self._round)
                self.reject(replies, client, f"not connected within {self._settings.connect_seconds:g} s")
        by_node = {connected[client]: client for client in clients if client in connected}
        self._send_and_validate(by_node, replies)
        self._note_late_answers(connected)

    def _without_backoff(
        self, clients: list[int], connected: dict[int, int], replies: RoundReplies
    ) -> list[int]:
        """The clients that are asked now; all of them if too few would be left."""
        skipped = {
            client
            for client in clients
            if self._backoff.is_backing_off(client, connected.get(client), self._round)
        }
        if len(clients) - len(skipped) < replies.needed:
            return clients
        for client in sorted(skipped):
            self.reject(replies, client, "not asked: it left an earlier round without an answer")
        return [client for client in clients if client not in skipped]

    def _send_and_validate(self, by_node: dict[int, int], replies: RoundReplies) -> None:
        """Send the orders to these nodes and validate the answers as they come."""
        seconds, self._closes = self._settings.round_seconds, math.inf
        orders = self._orders(by_node, replies)
        for node, answer in send_and_collect(self._mailbox, orders, seconds, lambda: self._closes):
            self._take(by_node[node], answer, replies)
        if not replies.is_complete:
            self._miss_silent_nodes(by_node, replies)
        self._mailbox.close(seconds + MARGIN)

    def _orders(self, by_node: dict[int, int], replies: RoundReplies) -> dict[int, Message]:
        ttl, messages = self._settings.round_seconds + MARGIN, {}
        for node, client in by_node.items():
            record = to_record(self._coordinator.train_request(client))
            replies.bytes_down += records.record_bytes(record)
            messages[node] = Message(record, node, "train", group_id=str(self._round), ttl=ttl)
        return messages

    def _take(self, client: int, answer: RecordDict | str, replies: RoundReplies) -> None:
        """Accept or reject one answer; when the round closes follows from how many count then."""
        if isinstance(answer, str):
            self.reject(replies, client, answer)
            return
        self._backoff.record_answer(client)
        replies.bytes_up += records.record_bytes(answer)
        if replies.is_complete:
            return
        try:
            replies.accepted[client] = read_and_validate(self._coordinator, client, answer)
        except InvalidInput as error:
            replies.too_large |= isinstance(error, TooLarge)
            self.reject(replies, client, str(error))
        if replies.is_complete:
            self._closes = -math.inf
        elif self._settings.grace is not None and replies.is_enough:
            self._closes = min(self._closes, time.monotonic() + self._settings.grace)

    def _miss_silent_nodes(self, by_node: dict[int, int], replies: RoundReplies) -> None:
        limit = (
            f"{self._settings.round_seconds:g} s"
            if self._closes == math.inf
            else f"{self._settings.grace:g} s of grace after enough others"
        )
        for node in self._mailbox.waiting:
            self._backoff.record_miss(by_node[node], node, self._round)
            self.reject(replies, by_node[node], f"no answer within {limit}")

    def _note_late_answers(self, connected: dict[int, int]) -> None:
        """An answer to an order that is over is no part of any round; it shows that its client is alive."""
        clients = {node: client for client, node in connected.items()}
        for node, _ in self._mailbox.late:
            if node in clients:
                self._backoff.record_answer(clients[node])
                self._log(f"client {clients[node]} answers, too late for the round that it was asked for")
        self._mailbox.late.clear()

    @property
    def _round(self) -> int:
        return self._coordinator.state.round + 1

    def reject(self, replies: RoundReplies, client: int, reason: str) -> None:
        """Note, in the log too, that a client does not count in this round."""
        replies.rejected.append((client, reason))
        self._log(f"round {self._round}: client {client} does not count: {reason}")


def read_and_validate(coordinator: Coordinator, client: int, answer: RecordDict) -> Accepted:
    """What a client answered to this round's order, validated.

    Raises:
        InvalidInput: why it does not count, whatever it is made of.
    """
    with reading("the reply"):
        try:
            expected = Expected(coordinator.method.max_message_bytes, coordinator.state.buffers)
            reply = record_to_reply(TrainReply, answer, expected)
        except StateLost:
            coordinator.report_lost_state(client)
            raise
        records.clear_record(answer)
        return coordinator.validate_reply(client, reply)
