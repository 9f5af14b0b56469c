"""Asking nodes about their columns, and reading what they reply as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.jobs.column_records import ACTION
from fedsolve.deploy.nodes.transport import MARGIN, Mailbox, Polling


def ask_columns(
    grid: Grid,
    records: Mapping[int, RecordDict],
    seconds: float,
    take: Callable[[int, RecordDict], bool],
) -> dict[int, str]:
    """Send each node its request, and give `take` what it replies, until it says that this is enough.

    Args:
        grid: Flower's grid.
        records: the request, by node; a record each: Flower may keep what it is given.
        seconds: to wait for replies.
        take: (node, reply) -> whether enough has come; it raises `InvalidInput` where a reply does not count.

    Returns:
        Why a node's reply does not count, by node; of those not waited for any more nothing is said.
    """
    mailbox, ttl = Mailbox(grid), seconds + MARGIN
    messages = {node: Message(record, node, f"query.{ACTION}", ttl=ttl) for node, record in records.items()}
    failed = dict.fromkeys(mailbox.send(messages), "the request could not be sent")
    deadline, polling, is_enough = time.monotonic() + seconds, Polling(), False
    while mailbox.waiting and not is_enough and time.monotonic() < deadline:
        for node, answer in mailbox.collect():
            polling.has_arrived()
            try:
                if isinstance(answer, str):
                    raise InvalidInput(answer)
                is_enough = take(node, answer) or is_enough
            except InvalidInput as error:
                failed[node] = str(error)
        if mailbox.waiting and not is_enough:
            polling.pause(deadline - time.monotonic())
    if not is_enough:
        failed |= dict.fromkeys(mailbox.waiting, f"no reply within {seconds:g} s")
    mailbox.close(ttl)
    return failed
