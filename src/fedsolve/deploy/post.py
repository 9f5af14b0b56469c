"""Sending messages and collecting their answers: each as it comes, each told by the node that was asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

_POLL_SECONDS = 1.0


class Post:
    """Messages under way on a grid.

    Flower reports a lost node in the SuperLink's name: answers are told apart by the message that they answer.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._waiting: dict[str, int] = {}

    @property
    def waiting(self) -> list[int]:
        """The nodes whose answer has not come."""
        return list(self._waiting.values())

    def send(self, messages: Mapping[int, Message]) -> list[int]:
        """Push one message to each node; the nodes that it could not be sent to."""
        numbers = list(self._grid.push_messages(list(messages.values()))) if messages else []
        sent = dict(
            zip(messages, numbers, strict=False)
        )  # none at all if all together were too large for Flower
        self._waiting |= {number: node for node, number in sent.items() if number}
        return [node for node in messages if not sent.get(node)]

    def collect(self) -> list[tuple[int, RecordDict | str]]:
        """The answers that have come since: what a node said, or in words why there is none."""
        found: list[tuple[int, RecordDict | str]] = []
        for reply in self._grid.pull_messages(list(self._waiting)) if self._waiting else ():
            node = self._waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                found.append((node, _why(reply) if reply.has_error() else reply.content))
        return found

    def give_up(self, node: int) -> None:
        """Wait for a node no longer."""
        self._waiting = {number: other for number, other in self._waiting.items() if other != node}


def exchange(
    grid: Grid, messages: Mapping[int, Message], seconds: float
) -> Iterator[tuple[int, RecordDict | str]]:
    """Push one message to each node; every answer, or in words why there is none, as it comes until the deadline."""
    post = Post(grid)
    for node in post.send(messages):
        yield node, "the message could not be sent: Flower's log says why"
    end = time.monotonic() + seconds
    while post.waiting:
        yield from post.collect()
        if post.waiting:
            if time.monotonic() >= end:
                break
            time.sleep(_POLL_SECONDS)
    for node in post.waiting:
        yield node, f"no answer within {seconds:g} s"


def _why(reply: Message) -> str:
    """Flower's error in one line: the last line of a traceback says what happened."""
    lines = [line.strip() for line in str(reply.error.reason or "").splitlines() if line.strip()]
    return f"{lines[-1] if lines else 'no reason given'} (Flower's error {reply.error.code})"
