"""Asking connected clients a question of the protocol, and reading what they answer as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.codec import check_refusal, facts_of, pack, record_bytes, unpack
from fedsolve.deploy.exchange import MARGIN, Mailbox, Polling
from fedsolve.deploy.sanitize import reading, sanitize
from fedsolve.folders.files import slug

# The questions of the protocol besides orders as Flower's records: who joins, with whom, and the shares of masks.


ACTION = "secure"
"""By which Flower calls the client app's handler: messages are of the type `query.secure`."""
Step = Literal["who", "hello", "roster", "coins", "metrics", "unmask"]
"""What is asked: a client's number, its public keys, that it enrols with those of all and shows its coin, that it takes
those of all, what its metrics are, or its shares of masks."""
_STEPS = get_args(Step)
_FACTS, _DATA = "sums", "data"
_ROOM = 4096  # bytes of facts about a message


class Question(NamedTuple):
    """What a client is asked in an experiment."""

    experiment: str
    step: Step
    data: bytes


def question_record(question: Question) -> RecordDict:
    """A question as it is sent."""
    facts: dict[str, Any] = {"experiment": question.experiment, "step": question.step}
    return RecordDict({_FACTS: ConfigRecord(facts), _DATA: pack(question.data)})


def read_question(record: RecordDict) -> Question:
    """The question in a record; what its bytes say is not known yet.

    Raises:
        InvalidInput: the record is no such question of this version.
    """
    with reading("the question"):
        facts = facts_of(record, _FACTS, {"experiment": str, "step": str})
        if facts["step"] not in _STEPS or slug(facts["experiment"]) != facts["experiment"]:
            raise InvalidInput(
                f"it asks for {sanitize(facts['step'], 40)} of {sanitize(facts['experiment'], 80)}"
            )
        return Question(facts["experiment"], facts["step"], unpack(record, _DATA))


def answer_record(client: int, data: bytes) -> RecordDict:
    """What a client answers."""
    return RecordDict({_FACTS: ConfigRecord({"client": client}), _DATA: pack(data)})


def read_answer(record: RecordDict, client: int | None, most_bytes: int) -> bytes:
    """The bytes that a client answers; of any client where `client` is None.

    Raises:
        InvalidInput: the client refused, with its reason; or the record is no answer of this client and version.
    """
    check_refusal(record)
    with reading("the answer"):
        if (length := record_bytes(record)) > most_bytes + _ROOM:
            raise InvalidInput(f"it has {length:,} bytes, more than {most_bytes + _ROOM:,}")
        facts = facts_of(record, _FACTS, {"client": int})
        if client is not None and facts["client"] != client:
            raise InvalidInput(f"it is of client {facts['client']}, not of client {client}")
        return unpack(record, _DATA)


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
