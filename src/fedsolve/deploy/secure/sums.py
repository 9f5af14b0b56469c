"""Messages and metrics as the whole numbers that secure sums add up."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from fedsolve.core import wire
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.message import PARTS, PartMetrics, Sums
from fedsolve.deploy.reply_checks import MOST_EXAMPLES
from fedsolve.deploy.sanitize import sanitize
from fedsolve.folders.untrusted import loads
from fedsolve.tasks.metrics import describe, described
from fedsolve.tasks.sum_metrics import SumMetric

_FRACTION_BITS = 24  # of a number in fixed point: a loss is exact to 6e-8
_MOST_CLIENTS = 2**12  # then the sum of all has at most 63 bits
_LARGEST = 2.0 ** (63 - 12 - _FRACTION_BITS)  # of one number of one client, 134 million


class Measured(NamedTuple):
    """What a client can measure; `counts_alike`: its loss is a mean over examples of which each counts once."""

    kinds: tuple[SumMetric | None, ...]
    parts: tuple[str, ...]
    counts_alike: bool

    @classmethod
    def of(cls, metrics: Mapping[str, PartMetrics], names: Sequence[str]) -> Measured:
        sums, counts = metrics["train"].sums, metrics["train"].counts
        kinds = tuple(sums[name].metric if name in sums else None for name in names)
        parts = tuple(part for part in PARTS if part in metrics)
        return cls(kinds, parts, type(counts.get("loss")) is int)

    def to_bytes(self) -> bytes:
        kinds = [None if kind is None else describe(kind) for kind in self.kinds]
        return json.dumps([kinds, self.parts, self.counts_alike]).encode()

    @classmethod
    def read(cls, data: bytes, names: Sequence[str]) -> Measured:
        said = loads(data)
        if not isinstance(said, list) or [type(x) for x in said] != [list, list, bool]:
            raise InvalidInput("it does not say what it measures")
        kinds, parts, counts_alike = said
        if len(kinds) != len(names) or parts not in (["train"], list(PARTS)):
            raise InvalidInput(
                f"it does not say of {len(names)} metrics what they are, and on which examples"
            )
        read = tuple(None if kind is None else described(kind) for kind in kinds)
        return cls(read, tuple(parts), counts_alike)


@dataclass(frozen=True)
class SummedMetrics:
    """The numbers that clients, at most `clients`, add up when they measure a model."""

    # A client's are, for each part: its examples, and for each metric its sums, or of a mean the mean times its
    # count, and the count. At the end comes how many of them were too large and were clipped. Each client has all
    # parts of `measured`: a sum to which one client alone adds something would be its own.

    names: tuple[str, ...]
    measured: Measured
    clients: int
    width: int = field(init=False)

    def __post_init__(self) -> None:
        if self.clients > _MOST_CLIENTS:
            raise InvalidInput(f"metrics of {self.clients} clients: at most {_MOST_CLIENTS} fit into one sum")
        per_part = 1 + sum(2 if kind is None else kind.width for kind in self.measured.kinds)
        object.__setattr__(self, "width", len(self.measured.parts) * per_part + 1)

    def to_words(self, parts: Mapping[str, PartMetrics]) -> bytes:
        numbers: list[float] = []
        for part in self.measured.parts:
            if part not in parts:
                raise InvalidInput(f"it is asked for metrics of {part} examples, and has none")
            numbers.append(parts[part].examples)
            for name, kind in zip(self.names, self.measured.kinds, strict=True):
                numbers += _metric_numbers(parts[part], name, kind)
        exact = np.array(numbers, np.float64)
        clipped = np.clip(exact, -_LARGEST, _LARGEST)
        whole = np.round(np.append(clipped, np.count_nonzero(clipped != exact)) * 2.0**_FRACTION_BITS)
        return whole.astype("<i8").tobytes()

    def from_words(self, data: bytes, clients: int) -> tuple[dict[str, PartMetrics], int]:
        """What so many clients together measured, by part, and how many of their numbers were clipped."""
        # As `to_words` lays them out: a part's examples, then its metrics; last of all how many were clipped.
        numbers = np.frombuffer(data, "<i8").astype(np.float64) / 2.0**_FRACTION_BITS
        parts, start = {}, 0
        for part in self.measured.parts:
            examples, start = round(numbers[start]), start + 1
            means, counts, sums = {}, {}, {}
            for name, kind in zip(self.names, self.measured.kinds, strict=True):
                own = numbers[start : start + (2 if kind is None else kind.width)]
                start += len(own)
                if kind is None:  # of a mean the sum over examples and their number
                    means[name], counts[name] = (own[0] / own[1] if own[1] else math.nan), float(own[1])
                else:
                    sums[name] = Sums(kind, own.copy())
            parts[part] = PartMetrics(examples, means, counts, sums)
            _check_sums(parts[part], part, clients, self.measured.counts_alike)
        clipped = round(numbers[-1])
        if not 0 <= clipped <= clients * self.width or np.abs(numbers).max() > clients * _LARGEST:
            raise InvalidInput(
                f"{clients} clients cannot have clipped {clipped} numbers: one of them sends others"
            )
        return parts, clipped


def _check_sums(metrics: PartMetrics, part: str, clients: int, counts_alike: bool) -> None:
    # Raise `InvalidInput` unless so many clients can have measured this together.
    if not clients <= metrics.examples <= clients * MOST_EXAMPLES:
        raise InvalidInput(f"{clients} clients cannot have {metrics.examples} {part} examples")
    for name, sums in metrics.sums.items():
        try:
            sums.metric.check_sums(sums.values * (1 - 1e-6), metrics.examples)  # as far as they are rounded
        except InvalidInput as error:
            raise InvalidInput(f"the sums of {part} {name} have {error}") from None
    for name, mean in metrics.means.items():
        count = metrics.counts[name]
        if not 0 <= count <= clients * _LARGEST or (count and not math.isfinite(mean)):
            raise InvalidInput(f"{part} {name} of {clients} clients cannot be a mean over {count}")
        if name == "loss" and counts_alike and count != metrics.examples:
            raise InvalidInput(f"{part} {name} is a mean over {count:g} of {metrics.examples} examples")


def _metric_numbers(metrics: PartMetrics, name: str, kind: SumMetric | None) -> list[float]:
    given = metrics.sums[name].metric if name in metrics.sums else None
    if given != kind:
        raise InvalidInput(
            f"its {sanitize(name, 80)} is {given or 'a mean'}, that of others {kind or 'a mean'}"
        )
    if kind is not None:
        return [float(x) for x in metrics.sums[name].values]
    mean, count = float(metrics.means[name]), float(metrics.counts[name])
    if not math.isfinite(count):
        raise InvalidInput(f"{name} is no mean over examples: it cannot be added up over clients")
    return [mean * count if count else 0.0, count]


# Messages of ring elements as the words that are masked: all of 32 bits first, then all of 64.


class Counts(NamedTuple):
    """Words of a message, of each size."""

    n32: int
    n64: int

    @property
    def bytes(self) -> int:
        return 4 * self.n32 + 8 * self.n64


def count_words(message: Any) -> Counts:
    sizes = {32: 0, 64: 0}
    for part in _parts(message):
        sizes[part.bits] += _count(part)
    return Counts(sizes[32], sizes[64])


def to_words(message: Any) -> bytes:
    parts = _parts(message)
    return b"".join(wire.ring_words(p).tobytes() for bits in (32, 64) for p in parts if p.bits == bits)


def from_words(data: bytes, like: Any) -> Any:
    counts = count_words(like)
    if len(data) != counts.bytes:
        raise InvalidInput(f"{len(data)} bytes of words where {counts.bytes} were expected")
    # Words of 32 bits lie before those of 64, whatever the order of the leaves.
    short = np.frombuffer(data, "<u4", counts.n32)
    long = np.frombuffer(data, "<u8", counts.n64, 4 * counts.n32)
    taken = {32: 0, 64: 0}

    def read(part: wire.Ring) -> wire.Ring:
        words = short if part.bits == 32 else long
        start, taken[part.bits] = taken[part.bits], taken[part.bits] + _count(part)
        return wire.ring_of_words(words[start : taken[part.bits]], part)

    return jax.tree.map(read, like, is_leaf=_is_ring)


def _count(part: wire.Ring) -> int:
    return int(np.prod(np.shape(part.value), dtype=np.int64)) // (1 if part.bits == 32 else 4)


def _is_ring(x: Any) -> bool:
    return isinstance(x, wire.Ring)


def _parts(message: Any) -> list[wire.Ring]:
    parts = jax.tree.leaves(message, is_leaf=_is_ring)
    if not all(map(_is_ring, parts)):
        raise InvalidInput(
            "a message that is summed securely consists of ring elements alone: wrap it in fs.Secure"
        )
    return parts
