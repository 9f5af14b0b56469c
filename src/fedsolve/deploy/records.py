"""Orders and replies as Flower's records, and back: the only place that knows how they look on the network."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsolve.deploy.message import Order, Reply
from fedsolve.errors import InvalidInput

_BYTES = "bytes"


def order_to_record(order: Order) -> RecordDict:
    """An order as a record."""
    facts: dict[str, Any] = {
        "experiment": order.experiment,
        "round": order.round,
        "client": order.client,
        "population": order.population,
        "used": order.used,
        "key": list(order.key),
        "method": json.dumps(order.method),
        "form": order.form,
    }
    record = RecordDict({"order": ConfigRecord(facts), "broadcast": _pack(order.broadcast)})
    if order.first is not None:
        record["first"] = _pack(order.first)
    return _with_buffers(record, order.buffers)


def record_to_order(record: RecordDict) -> Order:
    """The order in a record.

    Raises:
        InvalidInput: the record is no order of this version.
    """
    try:
        facts: dict[str, Any] = dict(record.config_records["order"])
        facts["method"], facts["key"] = json.loads(facts["method"]), tuple(facts["key"])
        first = _unpack(record, "first") if "first" in record else None
        return Order(**facts, broadcast=_unpack(record, "broadcast"), first=first, buffers=_buffers(record))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"the server's order cannot be read ({error!r}): another version of fedsolve?"
        ) from None


def reply_to_record(reply: Reply) -> RecordDict:
    """A reply as a record."""
    facts: dict[str, Any] = {
        "experiment": reply.experiment,
        "round": reply.round,
        "client": reply.client,
        "form": reply.form,
        "examples": reply.examples,
    }
    record = RecordDict({"reply": ConfigRecord(facts), "message": _pack(reply.message)})
    return _with_buffers(record, reply.buffers)


def record_to_reply(record: RecordDict) -> Reply:
    """The reply in a record.

    Raises:
        InvalidInput: the client refused, with its reason; or the record is no reply of this version.
    """
    if "refused" in record:
        raise InvalidInput(str(record.config_records["refused"].get("why", "without a reason")))
    try:
        facts: dict[str, Any] = dict(record.config_records["reply"])
        return Reply(**facts, message=_unpack(record, "message"), buffers=_buffers(record))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"the reply cannot be read ({error!r}): another version of fedsolve?") from None


def refusal(error: Exception) -> RecordDict:
    """A client's refusal with its reason in one line."""
    return RecordDict({"refused": ConfigRecord({"why": " ".join(str(error).split())})})


def size(record: RecordDict) -> int:
    """Bytes of everything in a record: numbers, names and facts, without the transport's own frames."""
    return sum(part.count_bytes() for part in record.values())


def _pack(data: bytes) -> ArrayRecord:
    """Bytes as they are: an array of NumPy would be copied twice."""
    return ArrayRecord({_BYTES: Array(dtype="uint8", shape=(len(data),), stype=_BYTES, data=data)})


def _unpack(record: RecordDict, name: str) -> bytes:
    return record.array_records[name][_BYTES].data


def _with_buffers(record: RecordDict, buffers: dict[str, np.ndarray]) -> RecordDict:
    if buffers:
        record["buffers"] = ArrayRecord({name: Array(np.asarray(x)) for name, x in buffers.items()})
    return record


def _buffers(record: RecordDict) -> dict[str, np.ndarray]:
    return (
        {name: x.numpy() for name, x in record.array_records["buffers"].items()}
        if "buffers" in record
        else {}
    )
