"""Sending messages and collecting their answers: each as it comes, each told by the node that was asked.

Flower's simulation engine, when it stops, leaves the server's app waiting: here that becomes an error.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterator, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import Unavailable
from fedsolve.deploy.messages.sanitize import sanitize

MARGIN = 60.0
"""Seconds after a deadline in which Flower still takes an answer."""
_SHORTEST, _LONGEST = 0.05, 1.0  # seconds between two polls
_DELAY = 0.05  # by which polling delays what comes, as a fraction of the time that it was waited for
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b")
_STOPPED = "An exception occur"  # how the engine's own log begins what ended it


class Mailbox:
    """Messages that were sent on a grid, and their answers.

    Flower reports a lost node in the SuperLink's name: answers are identified by the message that they answer.

    Attributes:
        late: what has come since it was last emptied from nodes that were no longer waited for.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._waiting: dict[str, int] = {}
        self._late: dict[str, tuple[int, float]] = {}  # message -> (node, when it is given up)
        self.late: list[tuple[int, RecordDict]] = []

    @property
    def waiting(self) -> list[int]:
        """The nodes whose answer is waited for."""
        return list(self._waiting.values())

    def send(self, messages: Mapping[int, Message]) -> list[int]:
        """Push one message to each node; the nodes that it could not be sent to."""
        ids = list(self._grid.push_messages(list(messages.values()))) if messages else []
        # no id at all if all messages together were too large for Flower
        sent = dict(zip(messages, ids, strict=False))
        self._waiting |= {message_id: node for node, message_id in sent.items() if message_id}
        return [node for node in messages if not sent.get(node)]

    def collect(self) -> Iterator[tuple[int, RecordDict | str]]:
        """The answers that have come since: what a node said, or in words why there is none.

        Each is fetched when it is asked for, so that no more than one need be in memory.
        """
        check_engine()
        now = time.monotonic()
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
        """The answer to one message, None if it has not come; what Flower cannot read is its node's affair alone."""
        try:
            for reply in self._grid.pull_messages([message_id]):
                if reply.metadata.reply_to_message_id == message_id:
                    return _error_line(reply) if reply.has_error() else reply.content
        except Exception as error:
            return f"its answer cannot be fetched ({type(error).__name__})"
        return None

    def give_up(self, node: int, seconds: float = 0.0) -> None:
        """Stop waiting for a node; what comes within `seconds` is `late`."""
        until = time.monotonic() + seconds
        gone = [message_id for message_id, other in self._waiting.items() if other == node]
        self._late |= {message_id: (self._waiting.pop(message_id), until) for message_id in gone}

    def close(self, seconds: float) -> None:
        """Stop waiting for every node; what comes within `seconds` is `late`."""
        until = time.monotonic() + seconds
        self._late |= {message_id: (node, until) for message_id, node in self._waiting.items()}
        self._waiting = {}


class Polling:
    """The pauses between polls: 0.05 s while something may come at once, up to 1 s while nothing has come for long.

    What comes is seen by a twentieth of the time later that it was waited for. A pause is as long as the poll before it
    took, too: with many nodes the SuperLink is left half of the time.
    """

    def __init__(self) -> None:
        self.has_arrived()

    def has_arrived(self) -> None:
        """Something has come."""
        self._since = self._last = time.monotonic()

    def pause(self, most: float = _LONGEST) -> None:
        """Sleep until the next poll, at most so many seconds."""
        now = time.monotonic()
        wanted = max(_DELAY * (now - self._since), now - self._last, _SHORTEST)
        time.sleep(max(min(wanted, _LONGEST, most), 0.0))
        self._last = time.monotonic()


def _error_line(reply: Message) -> str:
    """Flower's error in one line: the last line of a traceback says what happened.

    Of a client's exception, which may quote its data, its type alone is told.
    """
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
    """Whether the clients are simulated by Flower, in this process."""
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
    """What to do if clients are missing at the start."""
    if is_simulated(grid):
        return f"simulate num-supernodes={population}, and give Ray more connect-seconds to start"
    return "start their SuperNodes or lower the quorum"
