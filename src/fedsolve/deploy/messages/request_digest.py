"""What all clients of a round are asked, in 32 bytes, from which each client's masks follow.

Messages of clients that were asked different things are then no parts of one sum: else a server could ask all but one
for messages that it knows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.messages.message import Fact, Part, Request


def request_digest(request: Request, run_config: Mapping[str, Any], *more: bytes) -> bytes:
    """SHA-256 of a request without the fields that differ between clients by design.

    These are the client's number, the last round in which its update was used, which says from which of its own states
    it goes on, whether the first broadcast comes along, and its masks.

    Args:
        request: what a client is asked, as it reads it.
        run_config: the configuration of Flower's run, which the client's own code may read.
        more: what else must be the same for all.
    """
    digest = hashlib.sha256(b"fedsolve request 1")

    def add(name: str, *parts: Any) -> None:
        digest.update(json.dumps([name, len(parts)]).encode())
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)

    add(request.NAME)
    for f in fields(request):
        if f.metadata.get("of_one"):
            continue
        how, value = f.metadata["travels"], getattr(request, f.name)
        if isinstance(how, Fact):
            add(f.name, json.dumps(how.write(value)).encode())
        elif how is Part.BUFFERS:
            for name, array in sorted(value.items()):
                add(f.name, name.encode(), f"{array.dtype.str} {array.shape}".encode(), array.tobytes())
        else:
            add(f.name, *([] if value is None else [value]))
    add("run configuration", json.dumps(dict(run_config), sort_keys=True).encode())
    add("more", *more)
    return digest.digest()


def first_digest(first_broadcast: bytes) -> bytes:
    """SHA-256 of the broadcast that clients begin from which have a state."""
    return hashlib.sha256(first_broadcast).digest()


def check_first(request: Request) -> None:
    """Raise `InvalidInput` unless what comes with masked requests of one client is what all clients are told."""
    if request.masks is None:
        return
    sent = request.first_broadcast
    if sent is not None and first_digest(sent) != request.first_digest:
        raise InvalidInput(f"the {request.NAME} has another first broadcast than those of other clients")
    if getattr(request, "tracked_state", None) is not None:
        raise InvalidInput(f"the {request.NAME} brings a state, which no server of secure sums knows")
