"""Requests and replies as Flower's records, and back: each field as it says that it travels."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsolve.core.errors import FedsolveError, InvalidInput, of_type, with_article
from fedsolve.deploy.client.state import StateLost
from fedsolve.deploy.message import PARTS, Fact, Part, PartMetrics, Payload, Request, Sums
from fedsolve.deploy.reply_checks import check_request
from fedsolve.deploy.sanitize import reading, sanitize, without_folders
from fedsolve.deploy.secure.primitives import ProtocolError
from fedsolve.folders.untrusted import loads
from fedsolve.tasks.metrics import describe, described

# What records of all kinds have in common: facts of their types, bytes, buffers, and refusals.


_BYTES = "bytes"
_SHORT = 3  # characters of what another exception says, which may stand anywhere


class Refused(InvalidInput):
    """A client refused what it was asked."""


def refusal(
    error: Exception, who: str = "", folder: str = "", client: int | None = None, hides: bool = False
) -> RecordDict:
    """A client's refusal: `who`, and the reason in one line if it is ours, of any other exception its type alone."""
    # No cell of the client's table is told. Of the paths in it files are named and no folders, such as that of the
    # node. With `hides` a reason that may depend on the client's data is not told: the same words stand for all.
    why = f"{type(error).__name__}, see the node's log"
    if hides and not (isinstance(error, ProtocolError) or getattr(error, "about_request", False)):
        why = "this client does not answer"
    elif isinstance(error, FedsolveError):
        why = without_folders(_without_quotes(error), folder)
    facts: dict[str, Any] = {"why": sanitize(who + why), "lost": isinstance(error, StateLost)}
    facts |= {} if client is None else {"client": client}
    return RecordDict({"refused": ConfigRecord(facts)})


def _without_quotes(error: FedsolveError) -> str:
    # What an error of ours says, without a label, and without the words of other exceptions, which may quote data.
    words, cause = getattr(error, "without_value", str(error)), error.__context__
    while cause is not None:
        name, lines = type(cause).__name__, str(cause).splitlines()
        for line in () if isinstance(cause, FedsolveError) else filter(None, map(str.strip, lines)):
            words = words.replace(f"{name}: {line}", name)
            # the words of a KeyError are often those of a setting
            if len(line) > _SHORT and not isinstance(cause, KeyError):
                words = words.replace(line, name)
        cause = cause.__context__
    return words


def check_refusal(record: RecordDict) -> None:
    if "refused" in record:
        facts: Mapping[str, Any] = {}
        with reading("the refusal"):
            facts = record.config_records["refused"]
        why = facts.get("why")
        kind = StateLost if facts.get("lost") is True else Refused
        raise kind(f"refused: {sanitize(why) if isinstance(why, str) else 'without a reason'}")


def facts_of(record: RecordDict, name: str, types: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(part := record.get(name), ConfigRecord):
        raise InvalidInput(f"it cannot be read: it has no {name} as this version of fedsolve writes it")
    facts: dict[str, Any] = dict(part)
    # Exactly the facts of this version: a record of another one is not read in part.
    for key in sorted(set(facts) ^ set(types)):
        problem = "has an unknown" if key in facts else "lacks"
        raise InvalidInput(f"it {problem} {sanitize(key)}: another version of fedsolve?")
    for key, kind in types.items():
        if type(facts[key]) is not kind:  # bool is an int to isinstance
            raise InvalidInput(
                f"its {key} is {sanitize(repr(facts[key]))}, {of_type(facts[key])}, not {with_article(kind.__name__)}"
            )
    return facts


def clear_record(record: RecordDict) -> None:
    """Let go of everything in a record: Flower's refer to themselves, and would wait for the garbage collector."""
    for part in record.values():
        part.clear()
    record.clear()


def record_bytes(record: RecordDict) -> int:
    """Bytes of everything in a record: numbers, names and facts, without the transport's own frames."""
    return sum(part.count_bytes() for part in record.values())


def join(parts: Mapping[str, RecordDict]) -> RecordDict:
    """One record of one or several, by kind: the first as it is, the names of the others after their kind."""
    (_, first), *others = parts.items()
    named = {f"{kind}.{name}": part for kind, record in others for name, part in record.items()}
    return RecordDict({**first, **named})


def separate(record: RecordDict, kind: str) -> RecordDict:
    """Take the record of a kind that `join` put beside the first out of a record; empty if there is none."""
    names = [name for name in record if name.startswith(f"{kind}.")]
    return RecordDict({name.removeprefix(f"{kind}."): record.pop(name) for name in names})


def pack(data: bytes) -> ArrayRecord:
    return ArrayRecord({_BYTES: Array(dtype="uint8", shape=(len(data),), stype=_BYTES, data=data)})


def unpack(record: RecordDict, name: str) -> bytes:
    arrays = record.array_records[name]
    array = arrays[_BYTES]
    if len(arrays) != 1 or (array.dtype, array.shape, array.stype) != ("uint8", (len(array.data),), _BYTES):
        raise InvalidInput(f"its {name} is not the bytes that it says")
    return array.data


def read_buffers(record: RecordDict, known: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The buffers of a record; of those with a known name, only what has its shape and type is decoded."""
    if "buffers" not in record:
        return {}
    buffers = {}
    for name, array in record.array_records["buffers"].items():
        buffers[name] = np.zeros(0)  # an unknown name is refused later, with the remedy
        # What has another shape is not decoded: NumPy would make room for what the header says.
        if name in known:
            _check_npy(name, array.data, known[name])
            buffers[name] = array.numpy()
    return buffers


def _check_npy(name: str, data: bytes, known: np.ndarray) -> None:
    # Raise `InvalidInput` unless data are an array of these bytes: NumPy makes room for what a header says.
    file = io.BytesIO(data)
    major, _ = np.lib.format.read_magic(file)
    if major != 1:
        raise InvalidInput(f"its {sanitize(name)} is an array of format {major}, not 1")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if (shape, dtype) != (known.shape, known.dtype):
        given = f"{sanitize(dtype)} of shape {sanitize(shape)}"
        raise InvalidInput(f"its {sanitize(name)} is {given}, not {known.dtype} of {known.shape}")
    if (length := len(data) - file.tell()) != known.nbytes:
        raise InvalidInput(f"its {sanitize(name)} has {length} bytes, not {known.nbytes}")


FACTS_BYTES = 64 * 1024
"""Room for facts about a message."""
_SUMS_BYTES = 512 * 1024
"""Room for the sums of metrics."""
_MEANS = {"means": list, "counts": list}
_SUMS = {"summed": list, "kinds": list, "sums": list}

AnyRequest = TypeVar("AnyRequest", bound=Request)
AnyPayload = TypeVar("AnyPayload", bound=Payload)


@dataclass(frozen=True)
class Expected:
    """What a reply may bring: nothing is read of a longer one; `buffers` are the reader's, shapes and types by name."""

    message_bytes: int = 0
    buffers: Mapping[str, np.ndarray] = field(default_factory=dict)
    metrics: Collection[str] = ()
    facts_bytes: int = FACTS_BYTES

    @property
    def record_bytes(self) -> int:
        sums = _SUMS_BYTES if self.metrics else 0
        buffers = sum(x.nbytes + 1024 for x in self.buffers.values())  # each with a header of its own
        return self.message_bytes + buffers + self.facts_bytes + sums


def to_record(message: Payload) -> RecordDict:
    values = {name: (how, getattr(message, name)) for name, how in _facts(type(message))}
    facts = {n: how.write(value) for n, (how, value) in values.items() if value or not how.is_optional}
    record = RecordDict({message.NAME: ConfigRecord(facts)})
    for name, how in _parts(type(message)):
        value: Any = getattr(message, name)
        if how is Part.BUFFERS:
            if value:
                record[name] = ArrayRecord({n: Array(np.asarray(x)) for n, x in value.items()})
        elif how is Part.METRICS:
            for part, metrics in value.items():
                record[part] = _metrics_to_record(metrics)
        elif value is not None:
            record[name] = pack(value)
    return record


def record_to_request(
    kind: type[AnyPayload], record: RecordDict, buffers: Mapping[str, np.ndarray] = MappingProxyType({})
) -> AnyPayload:
    """The request in a record, each fact of its type and in its range; buffers of the client's shapes and types."""
    try:
        with reading("it"):
            request = kind(**_values(kind, record, Expected(buffers=buffers)))
        if isinstance(request, Request):
            check_request(request)
    except InvalidInput as error:
        raise InvalidInput(f"the server's {kind.LABEL or kind.NAME} cannot be used: {error}") from None
    return request


def record_to_reply(kind: type[AnyPayload], record: RecordDict, expected: Expected) -> AnyPayload:
    """The reply in a record; nothing is decoded of one that is longer than a reply can be."""
    check_refusal(record)
    label = kind.LABEL or kind.NAME
    with reading(f"the {label}"):
        if (length := record_bytes(record)) > (most := expected.record_bytes):
            raise InvalidInput(f"it has {length:,} bytes where {with_article(label)} has at most {most:,}")
        return kind(**_values(kind, record, expected))


def _facts(kind: type[Payload]) -> list[tuple[str, Fact]]:
    return [(f.name, how) for f in fields(kind) if isinstance(how := f.metadata["travels"], Fact)]


def _parts(kind: type[Payload]) -> list[tuple[str, Part]]:
    hows = [(f.name, f.metadata["travels"]) for f in fields(kind)]
    return [(name, part) for part in Part for name, how in hows if how is part]


def _values(kind: type[Payload], record: RecordDict, expected: Expected) -> dict[str, Any]:
    facts, parts = _facts(kind), _parts(kind)
    present = record.get(kind.NAME) or ()
    facts = [(name, how) for name, how in facts if name in present or not how.is_optional]
    values = facts_of(record, kind.NAME, {name: how.kind for name, how in facts})
    names = [part for name, how in parts for part in (PARTS if how is Part.METRICS else (name,))]
    if extra := set(record) - {kind.NAME, *names}:
        raise InvalidInput(f"it has {sanitize(sorted(extra))} besides what {with_article(kind.NAME)} has")
    for name, how in facts:
        values[name] = how.read(values[name])
    for name, how in parts:
        if how is Part.BUFFERS:
            values[name] = read_buffers(record, expected.buffers)
        elif how is Part.METRICS:
            measured = [part for part in PARTS if part in record]
            values[name] = {part: _record_to_metrics(record, part, expected.metrics) for part in measured}
        elif how is Part.OPTIONAL_BYTES and name not in record:
            values[name] = None
        else:
            values[name] = unpack(record, name)
    return values


def _metrics_to_record(metrics: PartMetrics) -> ConfigRecord:
    means, counts = list(metrics.means.values()), [metrics.counts[name] for name in metrics.means]
    # Counts of examples are integers, sums of weights are not.
    if not all(isinstance(n, int) for n in counts):  # a list holds values of one type
        counts = [float(n) for n in counts]
    facts: dict[str, Any] = {"examples": metrics.examples}
    if means:  # a record takes no empty list
        facts |= {"means": means, "counts": counts}
    if metrics.sums:
        facts["summed"] = list(metrics.sums)
        facts["kinds"] = [json.dumps(describe(sums.metric)) for sums in metrics.sums.values()]
        facts["sums"] = np.concatenate([sums.values for sums in metrics.sums.values()]).tolist()
    return ConfigRecord(facts)


def _record_to_metrics(record: RecordDict, part: str, names: Collection[str]) -> PartMetrics:
    has_sums = "sums" in record.config_records[part]
    has_means = "means" in record.config_records[part] or not has_sums
    types = {"examples": int} | (_MEANS if has_means else {}) | (_SUMS if has_sums else {})
    facts: dict[str, Any] = {kind: [] for kind in _MEANS} | facts_of(record, part, types)
    sums = _record_to_sums(facts["summed"], facts["kinds"], facts["sums"]) if has_sums else {}
    if others := set(sums) - set(names):
        raise InvalidInput(f"it has sums of {sanitize(sorted(others))}, which were not asked for")
    names = [name for name in names if name not in sums]
    for kind in ("means", "counts"):
        if len(facts[kind]) != len(names):
            raise InvalidInput(
                f"it has {len(facts[kind])} {kind} where {len(names) + len(sums)} metrics were asked for"
                + (f" and it has sums of {len(sums)}" if sums else "")
            )
    means, counts = (dict(zip(names, facts[kind], strict=True)) for kind in ("means", "counts"))
    return PartMetrics(facts["examples"], means, counts, sums)


def _record_to_sums(names: list[Any], kinds: list[Any], values: list[Any]) -> dict[str, Sums]:
    if len(names) != len(kinds) or len(set(names)) < len(names):
        raise InvalidInput(f"it has sums of {sanitize(names, 80)} and {len(kinds)} kinds of metrics")
    if not all(type(value) is float for value in values):
        raise InvalidInput("its sums are not floating-point numbers")
    # Of a closed form: nothing is imported by name.
    metrics = [described(loads(kind)) for kind in kinds]
    # All sums travel as one list; each metric knows how many are its own.
    ends = np.cumsum([metric.width for metric in metrics])
    if not len(ends) or ends[-1] != len(values):
        raise InvalidInput(
            f"it has {len(values)} sums, and its metrics have {int(ends[-1]) if len(ends) else 0}"
        )
    pieces = np.split(np.array(values, np.float64), ends[:-1])
    return {name: Sums(metric, own) for name, metric, own in zip(names, metrics, pieces, strict=True)}
