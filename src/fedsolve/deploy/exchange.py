"""Requests to clients and the wait for their replies, of training and evaluation alike, on Flower's grid."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput, Unavailable
from fedsolve.deploy import codec
from fedsolve.deploy.client.state import StateLost
from fedsolve.deploy.codec import AnyRequest, Refused, to_record
from fedsolve.deploy.reply_checks import TooLarge
from fedsolve.deploy.sanitize import sanitize
from fedsolve.deploy.status import Cause, ClientStatuses, PhaseClock

# Sending messages and collecting their answers: each as it comes, each told by the node that was asked.
#
# Flower's simulation engine, when it stops, leaves the server's app waiting: here that becomes an error.


MARGIN = 60.0
"""Seconds after a deadline in which Flower still takes an answer."""
_SHORTEST, _LONGEST = 0.05, 1.0  # seconds between two polls
_DELAY = 0.05  # by which polling delays what comes, as a fraction of the time that it was waited for
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b")
_STOPPED = "An exception occur"  # how the engine's own log begins what ended it


class Mailbox:
    """Messages that were sent on a grid, and their answers."""

    # Flower reports a lost node in the SuperLink's name: answers are identified by the message that they answer. In
    # `late` is what has come, since it was last emptied, from nodes that were no longer waited for.

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._waiting: dict[str, int] = {}
        self._late: dict[str, tuple[int, float]] = {}  # message -> (node, when it is given up)
        self.late: list[tuple[int, RecordDict]] = []

    @property
    def waiting(self) -> list[int]:
        return list(self._waiting.values())

    def send(
        self, records: Mapping[int, RecordDict], kind: str, seconds: float, group: int | None = None
    ) -> list[int]:
        """Push one message to each node; the nodes that it could not be sent to."""
        # Flower drops a message whose time to live is over, the answer included
        about: dict[str, Any] = {"ttl": seconds} | ({} if group is None else {"group_id": str(group)})
        messages = {node: Message(record, node, kind, **about) for node, record in records.items()}
        ids = list(self._grid.push_messages(list(messages.values()))) if messages else []
        # no id at all if all messages together were too large for Flower
        sent = dict(zip(messages, ids, strict=False))
        self._waiting |= {message_id: node for node, message_id in sent.items() if message_id}
        return [node for node in messages if not sent.get(node)]

    def collect(self) -> Iterator[tuple[int, RecordDict | str]]:
        """The answers that have come since: what a node said, or in words why there is none."""
        # Each is fetched when it is asked for, so that no more than one need be in memory.
        check_engine()
        now = time.monotonic()
        # Those that are given up are looked for a while longer: they show that their client is alive.
        self._late = {key: (node, until) for key, (node, until) in self._late.items() if until > now}
        for message_id in [*self._waiting, *self._late]:
            answer = self._fetch(message_id)
            if answer is None:
                continue
            if (node := self._waiting.pop(message_id, None)) is not None:
                yield node, answer
            elif (pair := self._late.pop(message_id, None)) is not None and not isinstance(answer, str):
                self.late.append((pair[0], answer))

    def _fetch(self, message_id: str) -> RecordDict | str | None:
        # The answer to one message, None if it has not come; what Flower cannot read is its node's affair alone.
        try:
            for reply in self._grid.pull_messages([message_id]):
                if reply.metadata.reply_to_message_id == message_id:
                    return _error_line(reply) if reply.has_error() else reply.content
        except Exception as error:
            return f"its answer cannot be fetched ({type(error).__name__})"
        return None

    def give_up(self, nodes: Collection[int], seconds: float = 0.0) -> None:
        """Stop waiting for nodes; what comes within `seconds` is `late`."""
        until = time.monotonic() + seconds
        gone = [message_id for message_id, node in self._waiting.items() if node in nodes]
        self._late |= {message_id: (self._waiting.pop(message_id), until) for message_id in gone}


class Polling:
    """The pauses between polls: 0.05 s while something may come at once, up to 1 s while nothing has come for long.

    What comes is seen by a twentieth of the time later that it was waited for. A pause is as long as the poll before it
    took, too: with many nodes the SuperLink is left half of the time.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin again with the shortest pause, after an answer."""
        self._since = self._last = time.monotonic()

    def pause(self, most: float = _LONGEST) -> None:
        now = time.monotonic()
        wanted = max(_DELAY * (now - self._since), now - self._last, _SHORTEST)
        time.sleep(max(min(wanted, _LONGEST, most), 0.0))
        self._last = time.monotonic()


def polls(
    seconds_left: Callable[[], float],
    pausing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Iterator[Polling]:
    """A turn for each look at Flower, with a pause before the next; at least one, and the last when no time is left.

    All that waits, waits here: for nodes that connect, and for answers of every kind. Pauses are made within `pausing`.
    """
    polling = Polling()
    while True:
        yield polling
        if (left := seconds_left()) <= 0:
            return
        with pausing():
            polling.pause(left)


def countdown(seconds: float) -> Callable[[], float]:
    deadline = time.monotonic() + seconds
    return lambda: deadline - time.monotonic()


def ask(
    grid: Grid,
    kind: str,
    records: Mapping[int, RecordDict],
    seconds: float,
    take: Callable[[int, RecordDict], bool],
) -> dict[int, str]:
    """Send each node a record, and give `take` what it answers, until it says that this is enough."""
    # It raises `InvalidInput` where an answer does not count. The result is why, by node; of those not waited for any
    # more nothing is said. Each node needs a record of its own: Flower may keep what it is given.
    mailbox, left, is_enough = Mailbox(grid), countdown(seconds), False
    failed = dict.fromkeys(mailbox.send(records, kind, seconds + MARGIN), "the request could not be sent")

    def seconds_left() -> float:
        return left() if mailbox.waiting and not is_enough else 0.0

    for polling in polls(seconds_left):
        for node, answer in mailbox.collect():
            polling.reset()
            try:
                if isinstance(answer, str):
                    raise InvalidInput(answer)
                is_enough = take(node, answer) or is_enough
            except InvalidInput as error:
                failed[node] = str(error)
    return failed if is_enough else failed | dict.fromkeys(mailbox.waiting, f"no answer within {seconds:g} s")


def _error_line(reply: Message) -> str:
    # Flower's error in one line: the last line of a traceback says what happened.
    #
    # Of a client's exception, which may quote its data, its type alone is told.
    lines = [line.strip() for line in str(reply.error.reason or "").splitlines() if line.strip()]
    last = lines[-1] if lines else "no reason given"
    if _EXCEPTION.match(last):
        last = last.partition(":")[0]
    return f"{sanitize(last)} (Flower's error {reply.error.code})"


class _CauseHandler(logging.Handler):
    """Remembers the line of the engine's log that says why it stopped."""

    cause = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if not self.cause and record.levelno >= logging.ERROR and text.startswith(_STOPPED):
            self.cause = sanitize(text.partition("!!")[2] or text)


def is_simulated(grid: Grid) -> bool:
    return type(grid).__name__ == "InMemoryGrid"


@contextlib.contextmanager
def watched_engine(grid: Grid) -> Iterator[None]:
    """Within it, `check_engine` knows whether the simulation engine, if there is one, has stopped."""
    log, handler = logging.getLogger("flwr"), _CauseHandler(logging.ERROR)
    if is_simulated(grid):
        log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def check_engine() -> None:
    """Raise `Unavailable` with the cause if the engine has stopped: nobody will answer any more."""
    for handler in logging.getLogger("flwr").handlers:
        if isinstance(handler, _CauseHandler) and handler.cause:
            raise Unavailable(f"Flower's simulation engine has stopped, no client runs: {handler.cause}")


def missing_clients_advice(grid: Grid, population: int) -> str:
    if is_simulated(grid):
        return f"simulate num-supernodes={population}, and give Ray more connect-seconds to start"
    return "start their SuperNodes or lower the quorum"


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
        last_node, misses, _ = self._missing.get(client, (node, 0, 0.0))
        # Another node of the client begins anew: what kept the first one waiting is not its fault.
        misses = min(misses, _MAX_EXPONENT) if last_node == node else 0
        next_round = math.inf if node is None else round + 1 + 2**misses
        self._missing[client] = (node, misses + 1, next_round)

    def record_answer(self, client: int) -> None:
        self._missing.pop(client, None)

    def is_backing_off(self, client: int, node: int | None, round: int) -> bool:
        last_node, _, next_round = self._missing.get(client, (None, 0, 0.0))
        return last_node == node and round < next_round


T = TypeVar("T")


@dataclass
class Replies(Generic[T]):
    """What came of requests so far."""

    title: str
    needed: int
    wanted: int
    accepted: dict[int, T] = field(default_factory=dict)
    asked: int = 0
    # clients that do not count, each with the reason, in the order in which that was found
    rejected: list[tuple[int, str]] = field(default_factory=list)
    causes: Counter[Cause] = field(default_factory=Counter)
    # whether a reply did not count because its numbers are not finite or too large (`TooLarge`)
    too_large: bool = False
    is_over: bool = False  # whether no reply can count any more, however often clients are asked
    bytes_down: int = 0
    bytes_up: int = 0

    @property
    def is_complete(self) -> bool:
        return len(self.accepted) >= self.wanted

    @property
    def is_enough(self) -> bool:
        return len(self.accepted) >= self.needed


class Exchange(Generic[AnyRequest, T]):
    """Requests of one kind to clients: which answers count, and when the wait for them ends.

    It ends when all that are wanted count or all have answered, a grace time after enough count, at the latest at its
    deadline.

    Args:
        grid: Flower's grid.
        kind: of messages, as Flower calls it.
        grace: seconds to wait once enough count, None for all of `seconds`.
        read: what the reply to a request says; it raises `InvalidInput` where that does not count.
        clients: told who answers and who fails; it knows what a client is called.
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
        self.mailbox = Mailbox(grid)
        self.backoff = Backoff()  # who kept earlier requests waiting
        clients.hello_callbacks.append(self.backoff.record_answer)
        self._closes = math.inf

    def begin(self) -> None:
        self._closes = math.inf

    def take(self, request: AnyRequest, answer: RecordDict | str, replies: Replies[T]) -> None:
        """Accept or reject one answer; when the wait ends follows from how many count then."""
        client = request.client
        if isinstance(answer, str):
            self.reject(replies, client, Cause.FAILED, answer)
            return
        self.backoff.record_answer(client)
        self._clients.on_message(client)
        # Counted whether it counts or not: it has travelled.
        replies.bytes_up += codec.record_bytes(answer)
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
    kinds = {StateLost: Cause.STATE_LOST, Refused: Cause.REFUSED, TooLarge: Cause.TOO_LARGE}
    return next((cause for kind, cause in kinds.items() if isinstance(error, kind)), Cause.INVALID)


# Messages to nodes and the wait for their answers: one message may carry requests of several kinds.
#
# Each is answered, checked and counted alone.


@dataclass
class PendingRequests(Generic[AnyRequest, T]):
    """Requests of one kind that are under way."""

    exchange: Exchange[AnyRequest, T]
    requests: Mapping[int, AnyRequest]
    replies: Replies[T]  # what has come, of earlier requests too where they are repeated
    turn: int  # the number by which clients that do not answer are left alone for a while, from 1
    waiting: set[int] = field(init=False)
    # when the wait ends at the latest (`time.monotonic`), once they are sent
    deadline: float = field(init=False)
    silent: list[int] = field(default_factory=list)  # in the end, the clients that were waited for in vain

    def __post_init__(self) -> None:
        self.waiting = set(self.requests)
        self.exchange.begin()

    def encode(self) -> dict[int, RecordDict]:
        encoded = {node: to_record(request) for node, request in self.requests.items()}
        self.replies.bytes_down += sum(map(codec.record_bytes, encoded.values()))
        return encoded

    def on_sent(self, nodes: Collection[int], unsent: Collection[int]) -> None:
        """Count messages that were sent; those that Flower could not send are not waited for."""
        for node in self.waiting.intersection(nodes):
            if node in unsent:
                reason = "the message could not be sent: Flower's log says why"
                self.exchange.reject(self.replies, self.requests[node].client, Cause.NOT_SENT, reason)
            else:
                self.replies.asked += 1
        self.waiting -= set(unsent)

    def take(self, node: int, answer: RecordDict | str) -> None:
        self.waiting.discard(node)
        self.exchange.take(self.requests[node], answer, self.replies)

    def give_up(self, *nodes: int) -> None:
        """Stop waiting for nodes that have not answered: they are asked less often."""
        for node in nodes:
            self.exchange.backoff.record_miss(self.requests[node].client, node, self.turn)
        self.exchange.mailbox.give_up(nodes, self.exchange.seconds + MARGIN)

    def close(self) -> None:
        """The wait is over; where all that are wanted have come, nobody has been waited for in vain."""
        nodes = [node for node in self.requests if node in self.waiting and not self.replies.is_complete]
        self.silent = [self.requests[node].client for node in nodes]
        self.give_up(*nodes)
        self.exchange.mailbox.give_up(self.waiting, self.exchange.seconds + MARGIN)


def send(pending: Sequence[PendingRequests[Any, Any]], group: int) -> None:
    """Send each node one message with all that it is asked; Flower shows them in a `group`, by its number."""
    seconds = max(each.exchange.seconds for each in pending)
    # One message a node, with a record for each kind: a node is asked for training and measuring in one trip.
    by_node: dict[int, dict[str, RecordDict]] = {}
    for each in pending:
        for node, record in each.encode().items():
            by_node.setdefault(node, {})[each.exchange.kind] = record
    for each in pending:  # a message is of the first kind that it carries
        kind = each.exchange.kind
        carried = {node: codec.join(parts) for node, parts in by_node.items() if next(iter(parts)) == kind}
        unsent = each.exchange.mailbox.send(carried, kind, seconds + MARGIN, group)
        for other in pending:
            other.on_sent(carried, unsent)
    for each in pending:
        each.deadline = time.monotonic() + seconds


def send_and_wait(pending: Sequence[PendingRequests[Any, Any]], group: int, phases: PhaseClock) -> None:
    """Send each node one message with all that it is asked, and add what comes back, until every kind's wait ends."""
    with phases.during("orders"):
        send(pending, group)

    def seconds_left() -> float:
        return max((each.exchange.seconds_left(each.deadline) for each in pending if each.waiting), default=0)

    with phases.during("training"):
        for polling in polls(seconds_left):
            for each in pending:
                for node, answer in each.exchange.mailbox.collect():
                    polling.reset()
                    with phases.during("replies"):
                        _take_parts(pending, node, answer)
    for each in pending:
        each.close()


def _take_parts(pending: Sequence[PendingRequests[Any, Any]], node: int, answer: RecordDict | str) -> None:
    # Give each kind its part of an answer; the one that the message is of takes what the others leave.
    # Those beside the first are taken out of its record, which must have no part that it does not know.
    first, *others = [each for each in pending if node in each.waiting]
    for each in others:
        each.take(node, answer if isinstance(answer, str) else codec.separate(answer, each.exchange.kind))
    first.take(node, answer)
