"""Metrics of many clients as one sum of whole numbers: what each client measured, in the order that all agree on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.messages.message import PARTS, PartMetrics, Sums
from fedsolve.deploy.messages.sanitize import sanitize
from fedsolve.tasks.metrics.description import describe, described
from fedsolve.tasks.metrics.sum_metric import SumMetric

_FRACTION_BITS = 24  # of a number in fixed point: a loss is exact to 6e-8
_MOST_CLIENTS = 2**12  # then the sum of all has at most 63 bits
_LARGEST = 2.0 ** (63 - 12 - _FRACTION_BITS)  # of one number of one client, 134 million

Kinds = Sequence[SumMetric | None]
"""What each metric is that was asked for: one of `fs.metrics`, or None for a mean."""


def kinds_to_bytes(kinds: Kinds) -> bytes:
    """What each metric is, as a client says it."""
    return json.dumps([None if kind is None else describe(kind) for kind in kinds]).encode()


def kinds_from_bytes(data: bytes, names: Sequence[str]) -> tuple[SumMetric | None, ...]:
    """What each metric is.

    Raises:
        InvalidInput: another number of metrics than was asked for, or what is none.
    """
    kinds = json.loads(data)
    if not isinstance(kinds, list) or len(kinds) != len(names):
        raise InvalidInput(f"it does not say of {len(names)} metrics what they are")
    return tuple(None if kind is None else described(kind) for kind in kinds)


@dataclass(frozen=True)
class SummedMetrics:
    """The numbers that clients add up when they measure a model.

    A client's are, for each of `PARTS`: its examples, and for each metric its sums, or of a
    mean the mean times its count, and the count. At the end comes how many of them were too large and were clipped.

    Attributes:
        names: of the metrics, in the order in which they are asked for.
        kinds: what each is.
        clients: that may be added up, at most.

    Raises:
        InvalidInput: more clients than fit.
    """

    names: tuple[str, ...]
    kinds: Kinds
    clients: int
    width: int = field(init=False)

    def __post_init__(self) -> None:
        if self.clients > _MOST_CLIENTS:
            raise InvalidInput(f"metrics of {self.clients} clients: at most {_MOST_CLIENTS} fit into one sum")
        per_part = 1 + sum(2 if kind is None else kind.width for kind in self.kinds)
        object.__setattr__(self, "width", len(PARTS) * per_part + 1)

    def to_words(self, parts: Mapping[str, PartMetrics]) -> bytes:
        """What a client measured, as words of 64 bits.

        Raises:
            InvalidInput: a metric that is no mean over a number of examples, or another than all clients have.
        """
        numbers: list[float] = []
        for part in PARTS:
            metrics = parts.get(part)
            numbers.append(metrics.examples if metrics else 0)
            for name, kind in zip(self.names, self.kinds, strict=True):
                numbers += (
                    [0.0] * (2 if kind is None else kind.width)
                    if metrics is None
                    else _own(metrics, name, kind)
                )
        exact = np.array(numbers, np.float64)
        clipped = np.clip(exact, -_LARGEST, _LARGEST)
        whole = np.round(np.append(clipped, np.count_nonzero(clipped != exact)) * 2.0**_FRACTION_BITS)
        return whole.astype("<i8").tobytes()

    def from_words(self, data: bytes) -> tuple[dict[str, PartMetrics], int]:
        """What all clients together measured, by part, and how many of their numbers were clipped."""
        numbers = np.frombuffer(data, "<i8").astype(np.float64) / 2.0**_FRACTION_BITS
        parts, start = {}, 0
        for part in PARTS:
            examples, start = round(numbers[start]), start + 1
            means, counts, sums = {}, {}, {}
            for name, kind in zip(self.names, self.kinds, strict=True):
                own = numbers[start : start + (2 if kind is None else kind.width)]
                start += len(own)
                if kind is None:
                    means[name], counts[name] = (own[0] / own[1] if own[1] else math.nan), float(own[1])
                else:
                    sums[name] = Sums(kind, own.copy())
            if examples:
                parts[part] = PartMetrics(examples, means, counts, sums)
        return parts, round(numbers[-1])


def _own(metrics: PartMetrics, name: str, kind: SumMetric | None) -> list[float]:
    """A client's numbers of one metric."""
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


def kinds_of(parts: Mapping[str, PartMetrics], names: Sequence[str]) -> Kinds:
    """What each metric is that a client measured."""
    sums: Mapping[str, Any] = parts["train"].sums
    return tuple(sums[name].metric if name in sums else None for name in names)
