"""Messages to nodes and the wait for their answers: one message may carry requests of several kinds.

Each is answered, checked and counted alone.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from flwr.app import Message, RecordDict

from fedsolve.deploy.messages import records
from fedsolve.deploy.messages.codec import AnyRequest, to_record
from fedsolve.deploy.monitoring.client_status import Cause
from fedsolve.deploy.monitoring.phases import PhaseClock
from fedsolve.deploy.nodes.exchange import Exchange, Replies
from fedsolve.deploy.nodes.transport import MARGIN, Polling

T = TypeVar("T")


@dataclass
class PendingRequests(Generic[AnyRequest, T]):
    """Requests of one kind that are under way.

    Attributes:
        exchange: what decides about their answers.
        requests: by node.
        replies: what has come, of earlier requests too where they are repeated.
        turn: the number by which clients that do not answer are left alone for a while, from 1.
        waiting: the nodes whose answer is waited for.
        silent: in the end, the clients that were waited for in vain.
    """

    exchange: Exchange[AnyRequest, T]
    requests: Mapping[int, AnyRequest]
    replies: Replies[T]
    turn: int
    waiting: set[int] = field(init=False)
    silent: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waiting = set(self.requests)
        self.exchange.begin()

    def records(self) -> dict[int, RecordDict]:
        """Each request as it is sent, by node."""
        encoded = {node: to_record(request) for node, request in self.requests.items()}
        self.replies.bytes_down += sum(map(records.record_bytes, encoded.values()))
        return encoded

    def sent(self, nodes: Collection[int], unsent: Collection[int]) -> None:
        """Some messages were sent, but for those that Flower could not send."""
        for node in self.waiting.intersection(nodes):
            if node in unsent:
                reason = "the message could not be sent: Flower's log says why"
                self.exchange.reject(self.replies, self.requests[node].client, Cause.NOT_SENT, reason)
            else:
                self.replies.asked += 1
        self.waiting -= set(unsent)

    def take(self, node: int, answer: RecordDict | str) -> None:
        """The answer of a node."""
        self.waiting.discard(node)
        self.exchange.take(self.requests[node], answer, self.replies)

    def close(self) -> None:
        """The wait is over."""
        nodes = [node for node in self.requests if node in self.waiting and not self.replies.is_complete]
        self.silent = [self.requests[node].client for node in nodes]
        for node, client in zip(nodes, self.silent, strict=True):
            self.exchange.backoff.record_miss(client, node, self.turn)
        self.exchange.mailbox.close(self.exchange.seconds + MARGIN)


def send_and_wait(pending: Sequence[PendingRequests[Any, Any]], group: int, phases: PhaseClock) -> None:
    """Send each node one message with all that it is asked, and add what comes back, until every kind's wait ends.

    Args:
        pending: requests of different kinds.
        group: number of the group of messages that Flower shows them in.
        phases: told what time is spent on.
    """
    seconds = max(each.exchange.seconds for each in pending)
    with phases.during("orders"):
        by_node: dict[int, dict[str, RecordDict]] = {}
        for each in pending:
            for node, record in each.records().items():
                by_node.setdefault(node, {})[each.exchange.kind] = record
        for each in pending:  # a message is of the first kind that it carries
            kind = each.exchange.kind
            messages = {
                node: Message(records.join(parts), node, kind, group_id=str(group), ttl=seconds + MARGIN)
                for node, parts in by_node.items()
                if next(iter(parts)) == kind
            }
            unsent = each.exchange.mailbox.send(messages)
            for other in pending:
                other.sent(messages, unsent)
    deadline, polling = time.monotonic() + seconds, Polling()
    with phases.during("training"):
        while any(each.waiting for each in pending):
            for each in pending:
                for node, answer in each.exchange.mailbox.collect():
                    polling.has_arrived()
                    with phases.during("replies"):
                        _share(pending, node, answer)
            left = max(
                (each.exchange.seconds_left(deadline) for each in pending if each.waiting), default=0.0
            )
            if left <= 0:
                break
            polling.pause(left)
    for each in pending:
        each.close()


def _share(pending: Sequence[PendingRequests[Any, Any]], node: int, answer: RecordDict | str) -> None:
    """Give each kind its part of an answer; the one that the message is of takes what the others leave."""
    first, *others = [each for each in pending if node in each.waiting]
    for each in others:
        each.take(node, answer if isinstance(answer, str) else records.separate(answer, each.exchange.kind))
    first.take(node, answer)
