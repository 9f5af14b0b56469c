"""Asking connected clients a question of the protocol, and reading what they answer as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.messages.sanitize import reading
from fedsolve.deploy.nodes.transport import MARGIN, Mailbox, Polling
from fedsolve.deploy.secure_rounds.secure_records import ACTION, Question, question_record, read_answer


def ask(
    grid: Grid,
    questions: Mapping[int, tuple[int, Question]],
    seconds: float,
    most_bytes: int,
    take: Callable[[int, bytes], bool],
    *,
    is_known: bool = True,
) -> dict[int, str]:
    """Ask clients, each at its node, and give `take` what they answer, until it says that this is enough.

    Args:
        grid: Flower's grid.
        questions: node and question, by client.
        seconds: to wait for answers.
        most_bytes: of one answer.
        take: (client, bytes) -> whether enough has come; it raises `InvalidInput` where an answer does not count.
        is_known: whether it is known which client is at a node; else `questions` are by node.

    Returns:
        Why a client's answer does not count, by client; of those not waited for any more nothing is said.
    """
    mailbox, failed = Mailbox(grid), dict[int, str]()
    clients = {node: client for client, (node, _) in questions.items()}
    ttl = seconds + MARGIN
    messages = {
        node: Message(question_record(question), node, f"query.{ACTION}", ttl=ttl)
        for node, question in questions.values()
    }
    for node in mailbox.send(messages):
        failed[clients[node]] = "the question could not be sent"
    deadline, polling, is_enough = time.monotonic() + seconds, Polling(), False
    while mailbox.waiting and not is_enough and time.monotonic() < deadline:
        for node, answer in mailbox.collect():
            polling.has_arrived()
            client = clients[node]
            try:
                if isinstance(answer, str):
                    raise InvalidInput(answer)
                with reading("the answer"):
                    own = read_answer(answer, client if is_known else None, most_bytes)
                    is_enough = take(client, own) or is_enough
            except InvalidInput as error:
                failed[client] = str(error)
        if mailbox.waiting and not is_enough:
            polling.pause(deadline - time.monotonic())
    if not is_enough:
        failed |= {clients[node]: f"no answer within {seconds:g} s" for node in mailbox.waiting}
    mailbox.close(ttl)
    return failed
