"""Requests and replies as Flower's records, and back: each field as it says that it travels."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedsolve.core.errors import InvalidInput, with_article
from fedsolve.deploy.messages.fact_checks import check_request
from fedsolve.deploy.messages.message import PARTS, Fact, Part, PartMetrics, Reply, Request, Sums
from fedsolve.deploy.messages.records import (
    buffer_bytes,
    check_refusal,
    facts_of,
    pack,
    read_buffers,
    record_bytes,
    unpack,
    write_buffers,
)
from fedsolve.deploy.messages.sanitize import reading, sanitize
from fedsolve.folders.untrusted import loads
from fedsolve.tasks.metrics import describe, described

FACTS_BYTES = 64 * 1024
"""Room for facts about a message."""
_SUMS_BYTES = 512 * 1024
"""Room for the sums of metrics."""
_MEANS = {"means": list, "counts": list}
_SUMS = {"summed": list, "kinds": list, "sums": list}

AnyRequest = TypeVar("AnyRequest", bound=Request)
AnyReply = TypeVar("AnyReply", bound=Reply)


@dataclass(frozen=True)
class Expected:
    """What a reply may bring: nothing is read of one that is longer.

    Attributes:
        message_bytes: bytes of the longest message.
        buffers: the reader's buffers, by name: shapes and types.
        metrics: names of the metrics that were asked for, in that order.
    """

    message_bytes: int = 0
    buffers: Mapping[str, np.ndarray] = field(default_factory=dict)
    metrics: Collection[str] = ()

    @property
    def record_bytes(self) -> int:
        """Bytes of the longest record."""
        sums = _SUMS_BYTES if self.metrics else 0
        return self.message_bytes + buffer_bytes(self.buffers) + FACTS_BYTES + sums


def to_record(message: Request | Reply) -> RecordDict:
    """A request or a reply as a record."""
    facts = {name: how.write(getattr(message, name)) for name, how in _facts(type(message))}
    record = RecordDict({message.NAME: ConfigRecord(facts)})
    for name, how in _parts(type(message)):
        value: Any = getattr(message, name)
        if how is Part.BUFFERS:
            write_buffers(record, value)
        elif how is Part.METRICS:
            for part, metrics in value.items():
                record[part] = _metrics_to_record(metrics)
        elif value is not None:
            record[name] = pack(value)
    return record


def record_to_request(
    kind: type[AnyRequest], record: RecordDict, buffers: Mapping[str, np.ndarray]
) -> AnyRequest:
    """The request in a record, each fact of its type and in its range; buffers of the client's shapes and types.

    Raises:
        InvalidInput: the record is no such request of this version.
    """
    try:
        with reading("it"):
            request = kind(**_values(kind, record, Expected(buffers=buffers)))
        check_request(request)
    except InvalidInput as error:
        raise InvalidInput(f"the server's {kind.NAME} cannot be used: {error}") from None
    return request


def record_to_reply(kind: type[AnyReply], record: RecordDict, expected: Expected) -> AnyReply:
    """The reply in a record; nothing is decoded of one that is longer than a reply can be.

    Raises:
        InvalidInput: the client refused, with its reason; or the record is no such reply of this version.
    """
    check_refusal(record)
    with reading(f"the {kind.NAME}"):
        if (length := record_bytes(record)) > (most := expected.record_bytes):
            raise InvalidInput(
                f"it has {length:,} bytes where {with_article(kind.NAME)} has at most {most:,}"
            )
        return kind(**_values(kind, record, expected))


def _facts(kind: type[Request] | type[Reply]) -> list[tuple[str, Fact]]:
    """The fields of a kind of message that are facts, in their order."""
    return [(f.name, how) for f in fields(kind) if isinstance(how := f.metadata["travels"], Fact)]


def _parts(kind: type[Request] | type[Reply]) -> list[tuple[str, Part]]:
    """The other fields, in the order in which they are written."""
    hows = [(f.name, f.metadata["travels"]) for f in fields(kind)]
    return [(name, part) for part in Part for name, how in hows if how is part]


def _values(kind: type[Request] | type[Reply], record: RecordDict, expected: Expected) -> dict[str, Any]:
    """The value of each field that a record has."""
    facts, parts = _facts(kind), _parts(kind)
    values = facts_of(record, kind.NAME, {name: how.kind for name, how in facts})
    if extra := set(record) - {kind.NAME, *_part_names(parts)}:
        raise InvalidInput(f"it has {sanitize(sorted(extra))} besides what {with_article(kind.NAME)} has")
    for name, how in facts:
        values[name] = how.read(values[name])
    for name, how in parts:
        if how is Part.BUFFERS:
            values[name] = read_buffers(record, expected.buffers)
        elif how is Part.METRICS:
            present = [part for part in PARTS if part in record]
            values[name] = {part: _record_to_metrics(record, part, expected.metrics) for part in present}
        elif how is Part.OPTIONAL_BYTES and name not in record:
            values[name] = None
        else:
            values[name] = unpack(record, name)
    return values


def _part_names(parts: Collection[tuple[str, Part]]) -> Iterator[str]:
    """The names in a record of the fields that travel as parts."""
    for name, how in parts:
        yield from PARTS if how is Part.METRICS else (name,)


def _metrics_to_record(metrics: PartMetrics) -> ConfigRecord:
    means, counts = list(metrics.means.values()), [metrics.counts[name] for name in metrics.means]
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
    """Sums by name; of each metric as many as it has."""
    if len(names) != len(kinds) or len(set(names)) < len(names):
        raise InvalidInput(f"it has sums of {sanitize(names, 80)} and {len(kinds)} kinds of metrics")
    if not all(type(value) is float for value in values):
        raise InvalidInput("its sums are not floating-point numbers")
    metrics = [described(loads(kind)) for kind in kinds]
    ends = np.cumsum([metric.width for metric in metrics])
    if not len(ends) or ends[-1] != len(values):
        raise InvalidInput(
            f"it has {len(values)} sums, and its metrics have {int(ends[-1]) if len(ends) else 0}"
        )
    pieces = np.split(np.array(values, np.float64), ends[:-1])
    return {name: Sums(metric, own) for name, metric, own in zip(names, metrics, pieces, strict=True)}
