"""Filling a buffer of replies: so many clients are at work at any time, and each reply counts when it arrives."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fedsolve.core.errors import Unavailable
from fedsolve.deploy.buffered.buffered_coordinator import BufferedCoordinator
from fedsolve.deploy.messages import records
from fedsolve.deploy.messages.codec import to_record
from fedsolve.deploy.messages.message import TRAIN, TrainRequest
from fedsolve.deploy.monitoring.client_status import Cause
from fedsolve.deploy.monitoring.phases import PhaseClock
from fedsolve.deploy.nodes.client_registry import ClientRegistry
from fedsolve.deploy.nodes.exchange import Replies
from fedsolve.deploy.nodes.transport import MARGIN, Polling
from fedsolve.deploy.server.collect import ReplyCollector
from fedsolve.deploy.server.server_state import Accepted
from fedsolve.deploy.server.settings import Settings

_TAG = 0xB0FFE3


class _Order(NamedTuple):
    """An order that a client works on, until when (`time.monotonic`)."""

    request: TrainRequest
    deadline: float


class BufferedCollector(ReplyCollector):
    """Keeps so many clients at work, and takes their replies as they arrive. Its orders outlive an update."""

    def __init__(
        self,
        grid: Grid,
        coordinator: BufferedCoordinator,
        settings: Settings,
        registry: ClientRegistry,
        phases: PhaseClock,
        log: Callable[[str], None],
    ) -> None:
        super().__init__(grid, coordinator, settings, registry, phases, log)
        self._buffered = coordinator
        self._concurrency = settings.clients_per_round or settings.population
        self._orders: dict[int, _Order] = {}  # by node
        self._failed: set[int] = set()  # since the last update: the same order would fail again

    def fill(self, replies: Replies[Accepted]) -> None:
        """Send orders and take replies until the buffer is full.

        Before each look clients are asked until enough are at work, drawn uniformly among the connected ones without an
        order or a reply in the buffer. A client that fails is asked again after the next update, or when nobody else is
        left, as often as `repeats` says.

        Raises:
            Unavailable: nobody is at work, and nobody can be asked, for `connect_seconds`.
        """
        self._failed.clear()
        repeats, alone_since, polling = 0, None, Polling()
        while True:
            connected = self._registry.poll()
            with self._phases.during("orders"):
                self._ask(connected, replies, everybody=repeats > 0)
            if not self._orders and self._failed and repeats < self._settings.repeats:
                self._log(f"{replies.title}: nobody else is left, those who failed are asked again")
                repeats += 1
                self._failed.clear()
                continue
            alone_since = None if self._orders else alone_since or time.monotonic()
            if alone_since and time.monotonic() >= alone_since + self._settings.connect_seconds:
                raise Unavailable(self._why_nobody(replies))
            with self._phases.during("replies"):
                has_arrived = self._take_replies(replies)
            if replies.is_complete:
                return
            self._note_late_answers(connected)
            if has_arrived:
                polling.has_arrived()
            with self._phases.during("training" if self._orders else "wait"):
                polling.pause()

    def _ask(self, connected: dict[int, int], replies: Replies[Accepted], everybody: bool) -> None:
        """Send the newest model to clients until enough are at work."""
        at_work = {order.request.client for order in self._orders.values()}
        idle = [
            client
            for client in sorted(set(connected) - at_work - self._failed - set(replies.accepted))
            if connected[client] not in self._orders
            and (everybody or not self.backoff.is_backing_off(client, connected[client], self._round))
        ]
        if not idle and not at_work:  # better than nobody
            idle = sorted(set(connected) - self._failed - set(replies.accepted))
        wanted = min(len(idle), self._concurrency - len(self._orders))
        if wanted <= 0:
            return
        random = np.random.default_rng((self._settings.seed, _TAG, self._round, replies.asked))
        chosen = [int(client) for client in random.permutation(idle)[:wanted]]
        self._send({connected[client]: self._buffered.train_request(client) for client in chosen}, replies)

    def _send(self, requests: dict[int, TrainRequest], replies: Replies[Accepted]) -> None:
        messages: dict[int, Message] = {}
        for node, request in requests.items():
            record = to_record(request)
            replies.bytes_down += records.record_bytes(record)
            ttl = self._settings.round_seconds + MARGIN
            messages[node] = Message(record, node, TRAIN, group_id=str(self._round), ttl=ttl)
        unsent = self.mailbox.send(messages)
        replies.asked += len(messages) - len(unsent)
        deadline = time.monotonic() + self._settings.round_seconds
        self._orders |= {n: _Order(r, deadline) for n, r in requests.items() if n not in unsent}
        for node in unsent:
            reason = "the message could not be sent: Flower's log says why"
            self._fail(requests[node].client, replies, Cause.NOT_SENT, reason)

    def _take_replies(self, replies: Replies[Accepted]) -> bool:
        """Take what has arrived until the buffer is full: the rest is for the next update. Whether there was any."""
        before, seen = len(self._orders), math.inf  # all orders with a deadline before `seen` were looked at
        for node, answer in self.mailbox.collect():
            order = self._orders.pop(node)
            client = order.request.client
            self.take(order.request, answer, replies)
            if client not in replies.accepted:
                self._drop(client)
            elif replies.is_complete:
                for outlier, reason in self._buffered.exclude_outliers(replies.accepted).items():
                    self._fail(outlier, replies, Cause.OUTLIER, reason)
                if replies.is_complete:
                    seen = order.deadline
                    break
        self._give_up_late(replies, seen)
        return len(self._orders) < before

    def _give_up_late(self, replies: Replies[Accepted], seen: float) -> None:
        """Orders end at their deadline, those whose reply has been looked for since."""
        seconds, now = self._settings.round_seconds, time.monotonic()
        for node, order in list(self._orders.items()):
            if order.deadline <= now and order.deadline < seen:
                self.mailbox.give_up(node, seconds + MARGIN)
                del self._orders[node]
                client = order.request.client
                self.backoff.record_miss(client, node, self._round)
                self._fail(client, replies, Cause.NO_ANSWER, f"no answer within {seconds:g} s")

    def _fail(self, client: int, replies: Replies[Accepted], cause: Cause, reason: str) -> None:
        self.reject(replies, client, cause, reason)
        self._drop(client)

    def _drop(self, client: int) -> None:
        """A client's order is over without a reply that counts."""
        self._buffered.withdraw(client)
        self._failed.add(client)

    def _why_nobody(self, replies: Replies[Any]) -> str:
        rejected = [
            *replies.rejected,
            *((client, f"refused: {why}") for client, why in self._registry.refused.items()),
        ]
        reasons = "; ".join(f"{self._names(client)}: {why}" for client, why in rejected[-5:])
        return (
            f"{replies.title}: {len(replies.accepted)} of {replies.wanted} replies count, and no other client can be "
            f"asked{f' ({reasons})' if reasons else ''}: fix the clients and resume, or take a smaller buffer"
        )
