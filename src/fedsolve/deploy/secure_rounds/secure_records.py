"""The questions of the protocol besides orders as Flower's records: who joins, with whom, and the shares of masks."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

from flwr.app import ConfigRecord, RecordDict

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.messages.records import check_refusal, facts_of, pack, record_bytes, unpack
from fedsolve.deploy.messages.sanitize import reading, sanitize
from fedsolve.folders.files import slug

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
