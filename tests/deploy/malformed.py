"""Malformed records of every kind, seeded: wrong types, lengths, numbers, shapes and names in every field."""

from __future__ import annotations

import io

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

STRANGE = (
    float("nan"), float("inf"), -1, 10**18, 2**31, 1e39, 1.5, True, "text", "", b"\x93NUMPY",
    [1, 2], [float("nan")], ["a"], [b"x"], "\x1b[2J" + 5000 * "long ", -(2**62),
)  # fmt: skip
"""What a fact may be set to: whatever Flower's records can hold."""


def with_fact(record, part, name, value):
    """A copy with one fact changed; None removes it."""
    facts = dict(record[part])
    facts[name] = value
    return with_part(record, part, ConfigRecord({k: v for k, v in facts.items() if v is not None}))


def without(record, part):
    return RecordDict({name: value for name, value in record.items() if name != part})


def with_part(record, part, value):
    return RecordDict(dict(record) | {part: value})


def with_bytes(record, part, data, shape=None, dtype="uint8", stype="bytes"):
    array = Array(dtype, (len(data),) if shape is None else shape, stype, data)
    return with_part(record, part, ArrayRecord({"bytes": array}))


def facts(record, part):
    """Every fact of a part with every strange value, without it, and with one too many."""
    for name, now in record[part].items():
        for value in (None, *STRANGE):
            if type(value) is not type(now) or value != now:
                yield f"{part}.{name} = {value!r:.30}", with_fact(record, part, name, value)
    yield f"{part} with more", with_fact(record, part, "more", 1)


def parts(record):
    """Every part missing, empty, and of the wrong kind."""
    for part, now in record.items():
        kinds = (
            ConfigRecord(),
            MetricRecord(),
            ArrayRecord(),
            MetricRecord({"a": [1.0]}),
            ConfigRecord({"a": "b"}),
        )
        yield f"no {part}", without(record, part)
        for other in kinds:
            if other != now:
                yield f"{part} is {other!r:.40}", with_part(record, part, other)
    yield "another part", with_part(record, "another", ConfigRecord({"a": 1}))
    yield "a part of arrays more", with_part(record, "another", ArrayRecord({"x": Array(np.zeros(3))}))


def lengths(record, part):
    """The bytes of a message, too short, too long and with a lying description."""
    data = record[part]["bytes"].data
    for count in (0, 1, 4, len(data) - 1, len(data) + 1, len(data) + 8, 2 * len(data), 10**6):
        yield f"{part} of {count} bytes", with_bytes(record, part, (data * 9 + bytes(10**6))[:count])
    for lie in ({"dtype": "float64"}, {"shape": (2**31 - 1,)}, {"shape": (-1,)}, {"stype": "numpy.ndarray"}):
        yield f"{part} with {lie}", with_bytes(record, part, data, **lie)


def numbers(record, part, rng, count):
    """The numbers of a message, some of which are not finite or far too large."""
    good = np.frombuffer(record[part]["bytes"].data)
    for _ in range(count):
        bad = good.copy()
        where = rng.integers(len(bad), size=rng.integers(1, 4))
        bad[where] = rng.choice([np.nan, np.inf, -np.inf, 1.7e308, -1.7e308, 1e200])
        yield f"{part}{where} = {bad[where[0]]}", with_bytes(record, part, bad.tobytes())


def arrays(record, part):
    """Named arrays in NumPy's format: empty, lying, of other names, shapes and types."""
    for name, now in record[part].items():
        data = now.data
        lies = (
            b"", data[:5], data[:-1], data + b"\0", b"\x93NUMPY\x09\x00" + data[8:],
            _npy("(1000000000000,)", now.dtype), _npy("(-1,)", now.dtype), _npy("(" * 3000, now.dtype),
            _npy("(2, 'a')", now.dtype), _npy("(1,)", "|O"),
            _saved(np.zeros(10**5)), _saved(np.full(now.shape, np.nan)), _saved(np.zeros((3, 1))),
        )  # fmt: skip
        for i, lie in enumerate(lies):
            beside = dict(record[part]) | {name: Array(now.dtype, now.shape, now.stype, lie)}
            yield f"{part}.{name} lie {i}", with_part(record, part, ArrayRecord(beside))
        other = {"a\x1b[2J": now} | {k: v for k, v in record[part].items() if k != name}
        yield f"{part}.{name} renamed", with_part(record, part, ArrayRecord(other))
        stype = dict(record[part]) | {name: Array(now.dtype, now.shape, "torch", data)}
        yield f"{part}.{name} of another kind", with_part(record, part, ArrayRecord(stype))


def _npy(shape, dtype):
    header = f"{{'descr': '{np.dtype(dtype).str}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


def _saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
