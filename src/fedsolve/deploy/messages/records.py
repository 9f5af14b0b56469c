"""What records of all kinds have in common: facts of their types, bytes, buffers, and refusals."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsolve.core.errors import FedsolveError, InvalidInput, of_type, with_article
from fedsolve.deploy.client.client_state import StateLost
from fedsolve.deploy.messages.sanitize import reading, sanitize, without_folders
from fedsolve.deploy.secure.byte_reader import ProtocolError

_BYTES = "bytes"
_SHORT = 3  # characters of what another exception says, which may stand anywhere


class Refused(InvalidInput):
    """A client refused what it was asked."""


def refusal(
    error: Exception, who: str = "", folder: str = "", client: int | None = None, hides: bool = False
) -> RecordDict:
    """A client's refusal: `who`, and the reason in one line if it is ours, of any other exception its type alone.

    No cell of the client's table is told. Of the paths in it files are named and no folders, such as that of the node.
    With `hides` a reason that may depend on the client's data is not told: the same words stand for all.
    """
    why = f"{type(error).__name__}, see the node's log"
    if hides and not (isinstance(error, ProtocolError) or getattr(error, "about_request", False)):
        why = "this client does not answer"
    elif isinstance(error, FedsolveError):
        why = without_folders(_without_quotes(error), folder)
    facts: dict[str, Any] = {"why": sanitize(who + why), "lost": isinstance(error, StateLost)}
    facts |= {} if client is None else {"client": client}
    return RecordDict({"refused": ConfigRecord(facts)})


def _without_quotes(error: FedsolveError) -> str:
    """What an error of ours says, without a label, and without the words of other exceptions, which may quote data."""
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
    """Raise the reason of a client that refused, if the record is a refusal."""
    if "refused" in record:
        facts: Mapping[str, Any] = {}
        with reading("the refusal"):
            facts = record.config_records["refused"]
        why = facts.get("why")
        kind = StateLost if facts.get("lost") is True else Refused
        raise kind(f"refused: {sanitize(why) if isinstance(why, str) else 'without a reason'}")


def facts_of(record: RecordDict, name: str, types: Mapping[str, type]) -> dict[str, Any]:
    """The facts of a record, each of its type."""
    if not isinstance(part := record.get(name), ConfigRecord):
        raise InvalidInput(f"it cannot be read: it has no {name} as this version of fedsolve writes it")
    facts: dict[str, Any] = dict(part)
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
    """Bytes as they are: an array of NumPy would be copied twice."""
    return ArrayRecord({_BYTES: Array(dtype="uint8", shape=(len(data),), stype=_BYTES, data=data)})


def unpack(record: RecordDict, name: str) -> bytes:
    """The bytes that `pack` packed, if they are what they say."""
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
        if name in known:
            _check_npy(name, array.data, known[name])
            buffers[name] = array.numpy()
    return buffers


def _check_npy(name: str, data: bytes, known: np.ndarray) -> None:
    """Raise `InvalidInput` unless data are an array of these bytes: NumPy makes room for what a header says."""
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


def buffer_bytes(buffers: Mapping[str, np.ndarray]) -> int:
    """Bytes of buffers in a record, at most."""
    return sum(x.nbytes + 1024 for x in buffers.values())  # each with a header of its own


def write_buffers(record: RecordDict, buffers: Mapping[str, np.ndarray]) -> None:
    """Put buffers beside the rest of a record, if there are any."""
    if buffers:
        record["buffers"] = ArrayRecord({name: Array(np.asarray(x)) for name, x in buffers.items()})
