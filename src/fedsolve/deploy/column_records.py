"""Requests and replies about columns as Flower's records: JSON text of each, read as what it must be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, NamedTuple, get_args, get_type_hints

from flwr.app import ConfigRecord, RecordDict

from fedsolve.config.signatures import fits
from fedsolve.core.errors import InvalidInput
from fedsolve.data.column_statistics.replies import (
    LARGEST,
    MOST_BINS,
    Measure,
    Refused,
    Replies,
    Reply,
    Request,
)
from fedsolve.deploy.codec import check_refusal, facts_of, pack, record_bytes, unpack
from fedsolve.deploy.sanitize import reading, sanitize
from fedsolve.deploy.site_names import check_site
from fedsolve.folders.untrusted import loads

ACTION = "statistics"
"""By which Flower calls the client app's handler: messages are of the type `query.statistics`."""
_REQUEST, _REPLY, _SUM, _MASKS = "request", "columns", "sum", "masks"
_MOST_BYTES = 16 * 2**20
_MOST_COLUMNS, _LONGEST_NAME = 500, 256
_REQUESTS = {kind.__name__: kind for kind in get_args(Request)}
_REPLIES = {kind.__name__: kind for kind in get_args(Reply)}


class ClientReply(NamedTuple):
    """What a client says about its columns, and who it is; `site` is '' if its node gives no name."""

    client: int
    site: str
    columns: Replies


class Masks(NamedTuple):
    """What a client masks its reply by, in an experiment of secure sums."""

    experiment: str
    order: bytes


def request_record(requests: Mapping[str, Request], masks: Masks | None = None) -> RecordDict:
    """What is asked of every client, about all columns if none is named; with `masks`, for a sum of their replies."""
    record = RecordDict({_REQUEST: ConfigRecord({"columns": _written(requests)})})
    if masks is not None:
        record[_SUM], record[_MASKS] = ConfigRecord({"experiment": masks.experiment}), pack(masks.order)
    return record


def columns_digest(requests: Mapping[str, Request], run_config: Mapping[str, Any]) -> bytes:
    """What every client of a sum is asked about its columns, in 32 bytes (`request_digest` of other requests)."""
    asked = [_written(requests), json.dumps(dict(run_config), sort_keys=True)]
    return hashlib.sha256(json.dumps(asked).encode()).digest()


def read_masks(record: RecordDict) -> Masks | None:
    """What the reply to a request is masked by; None where it is not.

    Raises:
        InvalidInput: the record is no such request of this version.
    """
    if _SUM not in record:
        return None
    with reading("the request"):
        facts = facts_of(record, _SUM, {"experiment": str})
        return Masks(facts["experiment"], unpack(record, _MASKS))


def masked_record(client: int, data: bytes) -> RecordDict:
    """What a client replies under secure sums."""
    return RecordDict({_REPLY: ConfigRecord({"client": client}), _MASKS: pack(data)})


def read_masked(record: RecordDict, client: int) -> bytes:
    """The masked reply in a record.

    Raises:
        InvalidInput: the client refused, with its reason; or the record is no such reply of this client and version.
    """
    check_refusal(record)
    with reading("the reply"):
        if (length := record_bytes(record)) > _MOST_BYTES:
            raise InvalidInput(f"it has {length:,} bytes, more than {_MOST_BYTES:,}")
        if facts_of(record, _REPLY, {"client": int})["client"] != client:
            raise InvalidInput("it is of another client")
        return unpack(record, _MASKS)


def read_request(record: RecordDict) -> dict[str, Request]:
    """The requests in a record, by column; none for all columns.

    Raises:
        InvalidInput: the record is no such request of this version.
    """
    with reading("the request"):
        facts = facts_of(record, _REQUEST, {"columns": str})
        requests = _read(facts["columns"], _REQUESTS)
        for request in requests.values():
            _check_request(request)
        return requests


def reply_record(reply: ClientReply) -> RecordDict:
    """What a client replies."""
    facts = {"client": reply.client, "columns": _written(reply.columns)}
    facts |= {"site": reply.site} if reply.site else {}  # Flower counts no bytes of an empty text
    return RecordDict({_REPLY: ConfigRecord(facts)})


def read_reply(record: RecordDict, population: int) -> ClientReply:
    """The reply in a record; whether its numbers can be believed is not known yet.

    Raises:
        InvalidInput: the client refused, with its reason; or the record is no such reply of this version.
    """
    check_refusal(record)
    with reading("the reply"):
        if (length := record_bytes(record)) > _MOST_BYTES:
            raise InvalidInput(f"it has {length:,} bytes, more than {_MOST_BYTES:,}")
        has_site = "site" in (record.get(_REPLY) or ())
        types = {"client": int, "columns": str} | ({"site": str} if has_site else {})
        facts = facts_of(record, _REPLY, types)
        if not 0 <= facts["client"] < population:
            raise InvalidInput(
                f"client {facts['client']} is none of the {population} clients, numbered from 0"
            )
        site = check_site(facts["site"]) if has_site else ""
        replies = _read(facts["columns"], _REPLIES)
        columns = {
            name: Refused(sanitize(reply.reason)) if isinstance(reply, Refused) else reply
            for name, reply in replies.items()
        }
        return ClientReply(facts["client"], site, columns)


def _written(messages: Mapping[str, Any]) -> str:
    return json.dumps({name: {"kind": type(m).__name__, **asdict(m)} for name, m in messages.items()})


def _read(text: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Messages by column; each field is of the type that its class says."""
    messages = loads(text)
    if not isinstance(messages, dict) or len(messages) > _MOST_COLUMNS:
        raise InvalidInput(f"it is not about up to {_MOST_COLUMNS} columns")
    for name in messages:
        if not 1 <= len(name) <= _LONGEST_NAME or not name.isprintable():
            raise InvalidInput(f"{sanitize(name, 80)!r} is no name of a column")
    return {name: _message(facts, kinds) for name, facts in messages.items()}


def _message(facts: Any, kinds: Mapping[str, type]) -> Any:
    kind = kinds.get(facts.pop("kind")) if isinstance(facts, dict) and "kind" in facts else None
    if kind is None or set(facts) != {f.name for f in fields(kind)}:
        raise InvalidInput("it has a message of another version of fedsolve")
    types = get_type_hints(kind)
    return kind(**{name: _value(name, value, types[name]) for name, value in facts.items()})


def _value(name: str, value: Any, kind: Any) -> Any:
    held = tuple(value) if isinstance(value, list) else value
    if fits(held, kind, lambda x, cls: type(x) is cls):  # exactly: 1 is no float, True is no integer
        return held
    raise InvalidInput(f"its {name} is {sanitize(repr(value), 80)}, which is of another type")


def _check_request(request: Request) -> None:
    """Raise `InvalidInput` unless a request's numbers are in their ranges."""
    if isinstance(request, Measure):
        in_range = -LARGEST <= request.low < request.high <= LARGEST
        if not in_range or not 1 <= request.bins <= MOST_BINS:
            raise InvalidInput(f"it asks for {request.bins} bins from {request.low} to {request.high}")
