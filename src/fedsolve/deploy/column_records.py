"""Requests and replies about columns: JSON text of each, read as what it must be. No Flower here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_args

from fedsolve.core.errors import InvalidInput
from fedsolve.data.column_replies import LARGEST, MOST_BINS, Measure, Refused, Replies, Reply, Request
from fedsolve.deploy.message import Fact, Part, Payload
from fedsolve.deploy.sanitize import sanitize
from fedsolve.deploy.site_names import check_site
from fedsolve.folders.untrusted import loads
from fedsolve.stats.questions import from_fields

ACTION = "statistics"
"""By which Flower calls the client app's handler: messages are of the type `query.statistics`."""
REPLY_BYTES = 16 * 2**20
"""Bytes of a reply, at most."""
_MOST_COLUMNS, _LONGEST_NAME = 500, 256
_REQUESTS = {kind.__name__: kind for kind in get_args(Request)}
_REPLIES = {kind.__name__: kind for kind in get_args(Reply)}


def asked_digest(asked: str, run_config: Mapping[str, Any]) -> bytes:
    """What every client of a sum is asked, as text, in 32 bytes (`request_digest` of other requests)."""
    said = [asked, json.dumps(dict(run_config), sort_keys=True)]
    return hashlib.sha256(json.dumps(said).encode()).digest()


def columns_json(messages: Mapping[str, Any]) -> str:
    return json.dumps({name: {"kind": type(m).__name__, **asdict(m)} for name, m in messages.items()})


def _from_json(text: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    # Messages by column; each field is of the type that its class says.
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
    return from_fields(kind, facts)


def _read_requests(text: str) -> dict[str, Request]:
    requests = _from_json(text, _REQUESTS)
    for request in requests.values():
        if isinstance(request, Measure):
            in_range = -LARGEST <= request.low < request.high <= LARGEST
            if not in_range or not 1 <= request.bins <= MOST_BINS:
                raise InvalidInput(f"it asks for {request.bins} bins from {request.low} to {request.high}")
    return requests


def _read_replies(text: str) -> Replies:
    # Replies by column; whether their numbers can be believed is not known yet.
    replies = _from_json(text, _REPLIES).items()
    return {
        name: Refused(sanitize(reply.reason)) if isinstance(reply, Refused) else reply
        for name, reply in replies
    }


@dataclass(frozen=True)
class ColumnsRequest(Payload):
    """What is asked of every client; `experiment` and `masks` are of secure sums, '' and None without."""

    NAME = "request"
    columns: Mapping[str, Request] = field(metadata={"travels": Fact(str, columns_json, _read_requests)})
    experiment: str = field(default="", metadata={"travels": Fact(str, is_optional=True)})
    masks: bytes | None = field(default=None, metadata={"travels": Part.OPTIONAL_BYTES})


@dataclass(frozen=True)
class ColumnsReply(Payload):
    """What a client says about its columns, and who it is; `site` is '' if its node gives no name."""

    NAME, LABEL = "columns", "reply"
    client: int = field(metadata={"travels": Fact(int)})
    columns: Replies = field(metadata={"travels": Fact(str, columns_json, _read_replies)})
    site: str = field(default="", metadata={"travels": Fact(str, read=check_site, is_optional=True)})


@dataclass(frozen=True)
class MaskedColumns(Payload):
    """What a client replies under secure sums."""

    NAME, LABEL = "columns", "reply"
    client: int = field(metadata={"travels": Fact(int)})
    masks: bytes = field(metadata={"travels": Part.BYTES})
