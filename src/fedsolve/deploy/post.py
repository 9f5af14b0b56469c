"""Sending messages and waiting for their answers: each as it comes, each told by the node that was asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

_POLL_SECONDS = 0.5


def exchange(
    grid: Grid, messages: Mapping[int, Message], seconds: float
) -> Iterator[tuple[int, RecordDict | str]]:
    """Push one message to each node; every answer, or in words why there is none, as it comes until the deadline.

    Flower reports a lost node in the SuperLink's name: answers are told apart by the message that they answer.
    """
    ids = list(grid.push_messages(list(messages.values())))
    numbers = dict(zip(messages, ids, strict=False))  # none at all if all together were too large for Flower
    waiting = {numbers[node]: node for node in messages if numbers.get(node)}
    for node in messages:
        if not numbers.get(node):
            yield node, "the message could not be sent: Flower's log says why"
    end = time.monotonic() + seconds
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                yield node, _why(reply) if reply.has_error() else reply.content
        if waiting:
            if time.monotonic() >= end:
                break
            time.sleep(_POLL_SECONDS)
    for node in waiting.values():
        yield node, f"no answer within {seconds:g} s"


def _why(reply: Message) -> str:
    """Flower's error in one line: the last line of a traceback says what happened."""
    lines = [line.strip() for line in str(reply.error.reason or "").splitlines() if line.strip()]
    return f"{lines[-1] if lines else 'no reason given'} (Flower's error {reply.error.code})"
