"""Asynchronous rounds of a deployment: the server updates whenever its buffer of replies is full."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedsolve.core import wire
from fedsolve.core.errors import Unavailable
from fedsolve.deploy.exchange import PendingRequests, Replies, polls, send
from fedsolve.deploy.message import TrainRequest
from fedsolve.deploy.method_spec import to_spec
from fedsolve.deploy.server.coordinator import Accepted, Coordinator
from fedsolve.deploy.server.rounds import FederationLoop, ReplyCollector
from fedsolve.deploy.server.server_method import compiled_method
from fedsolve.deploy.status import Cause
from fedsolve.engine.feedback_schedules import with_reacting
from fedsolve.results.columns import Columns

# The server's side of asynchronous rounds: orders of several versions of the model, and how late each reply is.


class BufferedCoordinator(Coordinator):
    """A coordinator of a method that takes late messages (`Buffered`, `Mixing`).

    An order tells a client the inner method, the newest model and the key of its round, the *version*; a client has one
    order at a time. What the method makes of a late reply is computed here, when the server updates.
    """

    def __init__(self, algorithm: Any, *given: Any, **options: Any) -> None:
        super().__init__(algorithm, *given, **options)
        self._method_spec = to_spec(algorithm.inner)
        self._versions: dict[int, int] = {}  # of each client's order
        self._broadcasts: dict[int, tuple[Any, Any]] = {}  # by version: as it is, and encoded

    @property
    def buffer(self) -> int:
        return self.algorithm.traits.buffer

    def react(self, evaluations: Columns) -> None:
        """Go on at the rates that follow from all evaluations so far; orders tell clients the inner method's."""
        super().react(evaluations)
        if self.reacts:
            given: Any = with_reacting(self._given, self.method.algorithm)
            self._method_spec = to_spec(given.inner)
            self._broadcasts.pop(self.state.round, None)

    def train_request(self, client: int) -> TrainRequest:
        version = self.state.round
        with self.precision():
            broadcast, encoded = self._broadcast(version)
            self._round = (self._cohorts.key(version), broadcast, encoded)
        self._versions[client] = version
        return super().train_request(client)

    def withdraw(self, client: int) -> None:
        """A client's order is over, without a reply that counts."""
        self._versions.pop(client, None)

    def version_of(self, client: int) -> int:
        return self._versions[client]

    def broadcast_of(self, version: int) -> Any:
        return self._broadcasts[version][0]

    def message_of(self, client: int) -> Any:
        version, now = self._versions[client], self.state.round
        late = jnp.int32(now - version)
        broadcasts = self.broadcast_of(version), self._broadcast(now)[0]
        compute = compiled_method("late_message")
        return compute(self.algorithm, super().message_of(client), *broadcasts, late)

    def finish_round(self, accepted: Mapping[int, Accepted], drawn: int) -> dict[str, float]:
        """Update with the replies of a full buffer; their clients have no order afterwards."""
        entry = super().finish_round(accepted, drawn)
        for client in accepted:
            self.withdraw(client)
        # Broadcasts stay as long as an order of their version may be answered.
        needed = set(self._versions.values())
        self._broadcasts = {v: sent for v, sent in self._broadcasts.items() if v in needed}
        return entry

    def _broadcast(self, version: int) -> tuple[Any, Any]:
        if version not in self._broadcasts:
            broadcast = self.method.broadcast(self.state.server, version, self.buffer)
            self._broadcasts[version] = (broadcast, wire.encode(broadcast))
        return self._broadcasts[version]


_TAG = 0xB0FFE3
Orders = PendingRequests[TrainRequest, Accepted]


class BufferedCollector(ReplyCollector):
    """Keeps so many clients at work, and takes their replies as they arrive. Its orders outlive an update."""

    _coordinator: BufferedCoordinator

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._concurrency = self._settings.clients_per_round or self._settings.population
        self._orders: dict[int, Orders] = {}  # by node; those that were sent together are one object
        self._failed: set[int] = set()  # since the last update: the same order would fail again

    def fill(self, replies: Replies[Accepted]) -> None:
        """Send orders and take replies until the buffer is full; `Unavailable` if nobody is at work for too long."""
        # Before each look clients are asked until enough are at work, drawn uniformly among the connected ones
        # without an order or a reply in the buffer. A client that fails is asked again after the next update, or when
        # nobody else is left, as often as `repeats` says.
        self._failed.clear()
        for orders in self._orders.values():
            orders.replies = replies
        repeats, alone_since = 0, None

        def pausing() -> AbstractContextManager[None]:
            return self._phases.during("training" if self._orders else "wait")

        for polling in polls(lambda: math.inf, pausing):
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
                polling.reset()

    def _ask(self, connected: dict[int, int], replies: Replies[Accepted], everybody: bool) -> None:
        # Send the newest model to clients until enough are at work.
        at_work = {orders.requests[node].client for node, orders in self._orders.items()}
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
        # Drawn by what has happened so far: a run with the same arrivals repeats to the bit.
        random = np.random.default_rng((self._settings.seed, _TAG, self._round, replies.asked))
        chosen = [int(client) for client in random.permutation(idle)[:wanted]]
        requests = {connected[client]: self._coordinator.train_request(client) for client in chosen}
        orders = PendingRequests(self, requests, replies, self._round)
        send([orders], self._round)
        self._orders |= dict.fromkeys(orders.waiting, orders)
        for node in set(requests) - orders.waiting:  # Flower could not send them
            self._drop(requests[node].client)

    def _take_replies(self, replies: Replies[Accepted]) -> bool:
        # Take what has arrived until the buffer is full: the rest is for the next update. Whether there was any.
        before, seen = len(self._orders), math.inf  # all orders with a deadline before `seen` were looked at
        for node, answer in self.mailbox.collect():
            orders = self._orders.pop(node)
            client = orders.requests[node].client
            orders.take(node, answer)
            if client not in replies.accepted:
                self._drop(client)
            elif replies.is_complete:
                for outlier, reason in self._coordinator.exclude_outliers(replies.accepted).items():
                    self._fail(outlier, replies, Cause.OUTLIER, reason)
                if replies.is_complete:
                    seen = orders.deadline
                    break
        self._give_up_late(replies, seen)
        return len(self._orders) < before

    def _give_up_late(self, replies: Replies[Accepted], seen: float) -> None:
        # Orders end at their deadline, those whose reply has been looked for since.
        now = time.monotonic()
        for node, orders in list(self._orders.items()):
            if orders.deadline <= now and orders.deadline < seen:
                client = orders.requests[node].client
                del self._orders[node]
                orders.give_up(node)
                self._fail(client, replies, Cause.NO_ANSWER, f"no answer within {self.seconds:g} s")

    def _fail(self, client: int, replies: Replies[Accepted], cause: Cause, reason: str) -> None:
        self.reject(replies, client, cause, reason)
        self._drop(client)

    def _drop(self, client: int) -> None:
        # A client's order is over without a reply that counts.
        self._coordinator.withdraw(client)
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


# Asynchronous rounds of a deployment: the server updates whenever its buffer of replies is full.


class BufferedRounds(FederationLoop):
    """Rounds of a method with a buffer: each is an update with the next replies, whatever model they began with.

    Replies of the buffer and orders are in memory alone: a run that is resumed begins with an empty buffer, and its
    clients are asked anew.
    """

    _coordinator: BufferedCoordinator
    _collector: BufferedCollector
    _collectors = BufferedCollector

    @property
    def _is_carried(self) -> bool:
        # Never: the orders of an update are sent at different times.
        return False

    def _collect_replies(self, number: int) -> Replies[Accepted]:
        size = self._coordinator.buffer
        replies: Replies[Accepted] = Replies(f"round {number}", size, size)
        self._collector.fill(replies)
        self._reports.clients.succeeded(replies.accepted)
        return replies
