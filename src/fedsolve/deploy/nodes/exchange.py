"""Requests to clients and their replies, of training and of evaluation alike: how long each is waited for."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.client.client_state import StateLost
from fedsolve.deploy.messages import records
from fedsolve.deploy.messages.codec import AnyRequest
from fedsolve.deploy.messages.records import Refused
from fedsolve.deploy.messages.validation import TooLarge
from fedsolve.deploy.monitoring.client_status import Cause, ClientStatuses
from fedsolve.deploy.nodes.transport import Mailbox

_MAX_EXPONENT = 6


class Backoff:
    """Which clients are not asked for now. Rounds count from 1; a node is None for a client that is not connected.

    A client that was not connected is not waited for again until it is; one that did not answer is not asked for a
    number of rounds that doubles each time: one, two, four, at most 64. An answer, however late or to whatever
    question, or another node of the client ends that at once.
    """

    def __init__(self) -> None:
        # client -> (its node, misses so far, first round in which it is asked again)
        self._missing: dict[int, tuple[int | None, int, float]] = {}

    def record_miss(self, client: int, node: int | None, round: int) -> None:
        """A client was waited for in vain."""
        last_node, misses, _ = self._missing.get(client, (node, 0, 0.0))
        misses = min(misses, _MAX_EXPONENT) if last_node == node else 0
        next_round = math.inf if node is None else round + 1 + 2**misses
        self._missing[client] = (node, misses + 1, next_round)

    def record_answer(self, client: int) -> None:
        """A client answered."""
        self._missing.pop(client, None)

    def is_backing_off(self, client: int, node: int | None, round: int) -> bool:
        """Whether a client that is now at this node is left alone in this round."""
        last_node, _, next_round = self._missing.get(client, (None, 0, 0.0))
        return last_node == node and round < next_round


T = TypeVar("T")


@dataclass
class Replies(Generic[T]):
    """What came of requests so far.

    Attributes:
        title: what the log calls them.
        needed: replies that must count for them to be used.
        wanted: replies that end the wait at once.
        accepted: what the replies that count say, by client.
        asked: requests that were sent.
        rejected: clients that do not count, each with the reason, in the order in which that was found.
        causes: how many of these for each cause.
        too_large: whether a reply did not count because its numbers are not finite or too large (`TooLarge`).
        is_over: whether no reply can count any more, however often clients are asked.
        bytes_down, bytes_up: of all messages.
    """

    title: str
    needed: int
    wanted: int
    accepted: dict[int, T] = field(default_factory=dict)
    asked: int = 0
    rejected: list[tuple[int, str]] = field(default_factory=list)
    causes: Counter[Cause] = field(default_factory=Counter)
    too_large: bool = False
    is_over: bool = False
    bytes_down: int = 0
    bytes_up: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether no more replies are wanted."""
        return len(self.accepted) >= self.wanted

    @property
    def is_enough(self) -> bool:
        """Whether so many count that they can be used."""
        return len(self.accepted) >= self.needed


class Exchange(Generic[AnyRequest, T]):
    """Requests of one kind to clients: which answers count, and when the wait for them ends.

    It ends when all that are wanted count or all have answered, a grace time after enough count, at the latest at its
    deadline.

    Args:
        grid: Flower's grid.
        kind: of messages, as Flower calls it.
        seconds: to wait for replies.
        grace: seconds to wait once enough count, None for all of `seconds`.
        read: what the reply to a request says; it raises `InvalidInput` where that does not count.
        clients: told who answers and who fails; it knows what a client is called.
        log: told in one line what happens.

    Attributes:
        kind, seconds: as they were given.
        mailbox: its messages.
        backoff: who kept earlier requests waiting.
    """

    def __init__(
        self,
        grid: Grid,
        kind: str,
        seconds: float,
        grace: float | None,
        read: Callable[[AnyRequest, RecordDict], T],
        clients: ClientStatuses,
        log: Callable[[str], None],
    ) -> None:
        self.kind, self.seconds, self._grace = kind, seconds, grace
        self._read, self._clients, self._log = read, clients, log
        self._names = clients.names
        self.mailbox, self.backoff = Mailbox(grid), Backoff()
        clients.when_introduced.append(self.backoff.record_answer)
        self._closes = math.inf

    def begin(self) -> None:
        """Requests are about to be sent."""
        self._closes = math.inf

    def take(self, request: AnyRequest, answer: RecordDict | str, replies: Replies[T]) -> None:
        """Accept or reject one answer; when the wait ends follows from how many count then."""
        client = request.client
        if isinstance(answer, str):
            self.reject(replies, client, Cause.FAILED, answer)
            return
        self.backoff.record_answer(client)
        self._clients.heard(client)
        replies.bytes_up += records.record_bytes(answer)
        if replies.is_complete:
            return
        try:
            replies.accepted[client] = self._read(request, answer)
        except InvalidInput as error:
            replies.too_large |= isinstance(error, TooLarge)
            self.reject(replies, client, _cause_of(error), str(error))
        if replies.is_complete:
            self._closes = -math.inf
        elif self._grace is not None and replies.is_enough:
            self._closes = min(self._closes, time.monotonic() + self._grace)

    def seconds_left(self, deadline: float) -> float:
        """Until the wait ends."""
        return min(deadline, self._closes) - time.monotonic()

    @property
    def waited(self) -> str:
        """How long those that gave no answer were waited for, in words."""
        if self._closes == math.inf:
            return f"{self.seconds:g} s"
        return f"{self._grace:g} s of grace after enough others"

    def reject(self, replies: Replies[T], client: int, cause: Cause, reason: str) -> None:
        """Note, in the log too, that a client does not count."""
        replies.rejected.append((client, reason))
        replies.causes[cause] += 1
        self._clients.failed(client, cause, reason)
        self._log(f"{replies.title}: {self._names(client)} does not count: {reason}")

    def take_late(self) -> list[int]:
        """The nodes that answered, since this was last asked for, what was no longer waited for."""
        nodes = [node for node, _ in self.mailbox.late]
        self.mailbox.late.clear()
        return nodes


def _cause_of(error: InvalidInput) -> Cause:
    """The category of a reply that does not count."""
    kinds = {StateLost: Cause.STATE_LOST, Refused: Cause.REFUSED, TooLarge: Cause.TOO_LARGE}
    return next((cause for kind, cause in kinds.items() if isinstance(error, kind)), Cause.INVALID)
