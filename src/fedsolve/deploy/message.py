"""What travels in a deployment: requests down and replies up, and the digest of what all clients are asked.

Each field says how it travels, and `fedsolve.deploy.codec` writes and reads all of them by that. Messages about columns
are in `fedsolve.deploy.column_records`. No Flower here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.sanitize import sanitize
from fedsolve.folders.files import slug
from fedsolve.tasks.sum_metrics import SumMetric

TRAIN, EVALUATE = "train", "evaluate"
"""The kinds of requests, as Flower calls their messages."""
PARTS = ("train", "validation")
"""The examples that a client measures a model on: those that it trains on, and those that it holds out."""


@dataclass(frozen=True)
class Fact:
    """A field that travels among the facts of a record."""

    kind: type
    write: Callable[[Any], Any] = lambda value: value
    # the fact -> the field's value; it raises `InvalidInput` where that cannot be
    read: Callable[[Any], Any] = lambda fact: fact
    # whether it is left out where it is empty: Flower counts no bytes of an empty text
    is_optional: bool = False


class Part(Enum):
    """A field that travels as a part of a record beside the facts; parts are written in this order."""

    BYTES = "bytes as they are"
    OPTIONAL_BYTES = "bytes as they are, or no such part if the field is None"
    METRICS = "a part for each of `PARTS` that was measured"
    BUFFERS = "named arrays, or no such part if there are none"


def _known_experiment(name: str) -> str:
    if slug(name) != name:
        raise InvalidInput(f"it is of {sanitize(name, 80)!r}, which is no name of an experiment")
    return name


def _known_step(step: str) -> str:
    if step not in get_args(Step):
        raise InvalidInput(f"it asks for {sanitize(step, 40)}")
    return step


_TEXT = {"travels": Fact(str)}
_NUMBER = {"travels": Fact(int)}
_DATA = {"travels": Fact(str, json.dumps, json.loads)}
_LIST = {"travels": Fact(list, list, tuple)}
_BYTES = {"travels": Part.BYTES}
_OPTIONAL = {"travels": Part.OPTIONAL_BYTES}
_METRICS = {"travels": Part.METRICS}
_BUFFERS = {"travels": Part.BUFFERS}
_OF_ONE = {"of_one": True}
"""Of fields that differ between the clients of a round; all others are the same for all (`request_digest`)."""


@dataclass(frozen=True)
class Payload:
    """A request or a reply: a dataclass of which each field travels."""

    NAME: ClassVar[str]  # of the part of a record that has its facts
    LABEL: ClassVar[str] = ""  # what it is called in words, where that is not its name


@dataclass(frozen=True, kw_only=True)
class Request(Payload):
    """What a client is asked to do.

    Attributes:
        experiment: name of the experiment that the client's state belongs to.
        round: number of the round, from 0: rounds done.
        last_used_round: the last round in which the server used an update of this client, from 0; -1 if none.
        key: the round's random key, two words; cohorts, shuffles and dropout follow from it.
        method: the method as data (see `fedsolve.deploy.method_spec`).
        signature: shapes and types of the model's leaves; a client with another model refuses.
        first_broadcast: that of the first round, for a client that joins later and keeps a state; else None.
        buffers: what is averaged beside the model, by name.
        masks: what the client masks its reply by, of which the server then sees sums alone; else None.
        first_digest: with masks SHA-256 of the first broadcast that clients with a state begin from; else None.
    """

    experiment: str = field(metadata=_TEXT)
    round: int = field(metadata=_NUMBER)
    client: int = field(metadata=_NUMBER | _OF_ONE)
    population: int = field(metadata=_NUMBER)
    last_used_round: int = field(metadata=_NUMBER | _OF_ONE)
    key: tuple[int, ...] = field(metadata=_LIST)
    method: Any = field(metadata=_DATA)
    signature: str = field(metadata=_TEXT)
    first_broadcast: bytes | None = field(metadata=_OPTIONAL | _OF_ONE)
    buffers: dict[str, np.ndarray] = field(metadata=_BUFFERS)
    masks: bytes | None = field(default=None, metadata=_OPTIONAL | _OF_ONE)
    first_digest: bytes | None = field(default=None, metadata=_OPTIONAL)


@dataclass(frozen=True, kw_only=True)
class TrainRequest(Request):
    """The order to train in a round."""

    NAME = "order"
    broadcast: bytes = field(metadata=_BYTES)  # the method's broadcast, as `fedsolve.wire` encodes it
    # the client's state as the server tracks it, for one that has lost its own; else None
    tracked_state: bytes | None = field(metadata=_OPTIONAL | _OF_ONE)

    def let_go(self) -> None:
        """Drop the broadcasts once they are decoded."""
        object.__setattr__(self, "broadcast", b"")
        object.__setattr__(self, "first_broadcast", None)


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(Request):
    """The question what a model is worth on the client's examples. Its key is that of the round that comes next."""

    NAME = "question"
    metrics: tuple[str, ...] = field(metadata=_LIST)
    model: bytes = field(metadata=_BYTES)  # the server's, as `fedsolve.wire` encodes it
    steps: int = field(metadata=_NUMBER)  # local steps that the client takes before, 0 for none
    solver: Any = field(metadata=_DATA)  # what takes them, as data; None for none
    # with masks names of `PARTS`, which are measured: those of which all clients have examples; else None
    summed_parts: bytes | None = field(default=None, metadata=_OPTIONAL)

    @property
    def parts(self) -> tuple[str, ...]:
        return PARTS if self.summed_parts is None else tuple(self.summed_parts.decode().split())


@dataclass(frozen=True)
class Reply(Payload):
    """What a client answers."""

    experiment: str = field(metadata=_TEXT)
    round: int = field(metadata=_NUMBER)
    client: int = field(metadata=_NUMBER)


@dataclass(frozen=True)
class TrainReply(Reply):
    """What a client answers to a `TrainRequest`."""

    NAME = "reply"
    signature: str = field(metadata=_TEXT)  # digest of shapes and types of the message
    # the client's number of examples, 1 where the method weights clients alike and need not know
    examples: int = field(metadata=_NUMBER)
    message: bytes = field(metadata=_BYTES)  # the method's message, as `fedsolve.wire` encodes it, or masked
    # what is averaged beside the model, after local work
    buffers: dict[str, np.ndarray] = field(metadata=_BUFFERS)
    # 'loss' of a client that tells no loss: that of its message is 0 and means nothing
    untold: str = field(default="", metadata={"travels": Fact(str, is_optional=True)})


class Sums(NamedTuple):
    """What a client's examples add up to in a metric of `fs.metrics`: `values` of shape (metric.width,)."""

    metric: SumMetric
    values: np.ndarray


@dataclass(frozen=True)
class PartMetrics:
    """Metrics of a model on one part of a client's examples."""

    examples: int  # how many, at least 1
    means: Mapping[str, float]  # of each metric by name, finite where its count is not 0
    # what each is a mean over, by name: the examples, or parts of them where a metric counts these (tokens), an int;
    # the sum of their weights, a float, of a weighted mean; NaN of what is no mean, such as F1, whose values of several
    # clients make no value of all their examples
    counts: Mapping[str, float]
    # of metrics of `fs.metrics`, by name, which are not among the means
    sums: Mapping[str, Sums] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluateReply(Reply):
    """What a client answers to an `EvaluateRequest`."""

    NAME = "answer"
    steps: int = field(metadata=_NUMBER)
    # what it measured, by the names in `PARTS`; it may hold out nothing. Empty where it is masked.
    parts: Mapping[str, PartMetrics] = field(metadata=_METRICS)
    masked: bytes | None = field(default=None, metadata=_OPTIONAL)  # what it measured, masked; else None


# The protocol of secure sums besides orders: who joins, with whom, and the shares of masks.


PROTOCOL = "secure"
"""By which Flower calls the client app's handler: messages are of the type `query.secure`."""
Step = Literal["hello", "roster", "coins", "metrics", "unmask"]
"""What is asked: a client's public keys, that it enrols with those of all and shows its coin, that it takes the coins
of all, what its metrics are, or its shares of masks."""


@dataclass(frozen=True)
class ProtocolRequest(Payload):
    """What a client is asked in an experiment; what the bytes say is not known to the codec."""

    NAME, LABEL = "sums", "question"
    experiment: str = field(metadata={"travels": Fact(str, read=_known_experiment)})
    step: Step = field(metadata={"travels": Fact(str, read=_known_step)})
    data: bytes = field(metadata=_BYTES)


@dataclass(frozen=True)
class ProtocolReply(Payload):
    """What a client answers to a `ProtocolRequest`."""

    NAME, LABEL = "sums", "answer"
    client: int = field(metadata=_NUMBER)
    data: bytes = field(metadata=_BYTES)


# What all clients of a round are asked, in 32 bytes, from which each client's masks follow.
#
# Messages of clients that were asked different things are then no parts of one sum: else a server could ask all but
# one for messages that it knows.


def request_digest(request: Request, run_config: Mapping[str, Any], *more: bytes) -> bytes:
    """SHA-256 of a request, and of Flower's run configuration, without the fields that differ by client by design."""
    # These are the client's number, the last round in which its update was used, which says from which of its own
    # states it goes on, whether the first broadcast comes along, and its masks.
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
