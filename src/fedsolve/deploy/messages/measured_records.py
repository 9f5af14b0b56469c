"""Questions to clients and their answers as Flower's records, and back."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.messages.measured import PARTS, Answer, Measured, Question
from fedsolve.deploy.messages.plain_text import printable
from fedsolve.deploy.messages.records import (
    FACTS_BYTES,
    check_refusal,
    facts_of,
    pack,
    read_buffers,
    record_bytes,
    unpack,
    with_buffers,
)
from fedsolve.deploy.messages.validation import reading

_QUESTION = {"experiment": str, "round": int, "client": int, "population": int, "last_used_round": int}
_QUESTION |= {"key": list, "method": str, "signature": str, "metrics": list, "steps": int, "solver": str}
_ANSWER = {"experiment": str, "round": int, "client": int, "steps": int}
_MEASURED = {"examples": int, "means": list, "counts": list}


def question_to_record(question: Question) -> RecordDict:
    """A question as a record."""
    facts: dict[str, Any] = {name: getattr(question, name) for name in _QUESTION}
    facts |= {"method": json.dumps(question.method), "solver": json.dumps(question.solver)}
    facts |= {"key": list(question.key), "metrics": list(question.metrics)}
    record = RecordDict({"question": ConfigRecord(facts), "model": pack(question.model)})
    if question.first_broadcast is not None:
        record["first_broadcast"] = pack(question.first_broadcast)
    return with_buffers(record, question.buffers)


def record_to_question(record: RecordDict, buffers: Mapping[str, np.ndarray]) -> Question:
    """The question in a record, each fact of its type.

    Args:
        record: what a server sent.
        buffers: the client's own buffers, by name: shapes and types.

    Raises:
        InvalidInput: the record is no question of this version.
    """
    with reading("it"):
        facts = facts_of(record, "question", _QUESTION)
        _check_parts(record, {"question", "model", "first_broadcast", "buffers"}, "a question")
        for name in ("method", "solver"):
            facts[name] = json.loads(facts[name])
        for name in ("key", "metrics"):
            facts[name] = tuple(facts[name])
        first = unpack(record, "first_broadcast") if "first_broadcast" in record else None
        return Question(
            **facts,
            model=unpack(record, "model"),
            first_broadcast=first,
            buffers=read_buffers(record, buffers),
        )


def answer_to_record(answer: Answer) -> RecordDict:
    """An answer as a record."""
    facts: dict[str, Any] = {name: getattr(answer, name) for name in _ANSWER}
    record = RecordDict({"answer": ConfigRecord(facts)})
    for part, found in answer.parts.items():
        means, counts = list(found.means.values()), [found.counts[name] for name in found.means]
        if not all(isinstance(n, int) for n in counts):  # a list holds values of one type
            counts = [float(n) for n in counts]
        record[part] = ConfigRecord({"examples": found.examples, "means": means, "counts": counts})
    return record


def record_to_answer(record: RecordDict, metrics: Collection[str]) -> Answer:
    """The answer in a record; nothing is read of one that is longer than an answer can be.

    Args:
        record: what a node sent.
        metrics: what was asked for, in that order.

    Raises:
        InvalidInput: the client refused, with its reason; or the record is no answer of this version to that.
    """
    check_refusal(record)
    with reading("the answer"):
        if (length := record_bytes(record)) > FACTS_BYTES:
            raise InvalidInput(f"it has {length:,} bytes where an answer has at most {FACTS_BYTES:,}")
        facts = facts_of(record, "answer", _ANSWER)
        _check_parts(record, {"answer", *PARTS}, "an answer")
        parts = {part: _measured(record, part, metrics) for part in PARTS if part in record}
        return Answer(**facts, parts=parts)


def _measured(record: RecordDict, part: str, metrics: Collection[str]) -> Measured:
    facts = facts_of(record, part, _MEASURED)
    for name in ("means", "counts"):
        if len(facts[name]) != len(metrics):
            raise InvalidInput(
                f"it has {len(facts[name])} {name} where {len(metrics)} metrics were asked for"
            )
    means, counts = (dict(zip(metrics, facts[name], strict=True)) for name in ("means", "counts"))
    return Measured(facts["examples"], means, counts)


def _check_parts(record: RecordDict, known: Collection[str], what: str) -> None:
    if extra := set(record) - set(known):
        raise InvalidInput(f"it has {printable(sorted(extra))} besides what {what} has")
