"""Replies about columns of numbers as whole numbers that are added up, where nobody is to see single replies."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.data.column_statistics.messages import (
    MAGNITUDE_EDGES,
    CategoryNames,
    FindRange,
    Magnitudes,
    Measure,
    Replies,
    Reply,
    Request,
    Sums,
)
from fedsolve.data.column_statistics.protocol import Gathered

MOST_CLIENTS = 2**11
"""Whose numbers fit into one sum."""
_HIGH, _LOW = 2.0**20, 2.0**40  # of a sum relative to the column's range: a whole part and a rest
_MOST_ROWS = 2**31
_MIDPOINTS = (MAGNITUDE_EDGES[:-1] + MAGNITUDE_EDGES[1:]) / 2


def width(requests: Mapping[str, Request]) -> int:
    """Whole numbers of a client's replies to these requests.

    Raises:
        InvalidInput: a column whose categories are asked for, since names cannot be added up.
    """
    return sum(_width(name, request) for name, request in requests.items())


def to_numbers(requests: Mapping[str, Request], replies: Replies) -> np.ndarray:
    """A client's replies, int64 of shape (width,): zeros for a column that it does not reply about."""
    parts = []
    for name, request in requests.items():
        own = _numbers(request, replies[name]) if name in replies else None
        parts.append(np.zeros(_width(name, request), np.int64) if own is None else own)
    return np.concatenate(parts)


def from_numbers(requests: Mapping[str, Request], numbers: np.ndarray) -> dict[str, Gathered]:
    """The sums of all clients' replies, by column."""
    gathered, start = {}, 0
    for name, request in requests.items():
        own = numbers[start : start + _width(name, request)]
        start += len(own)
        clients, with_names, rows, missing = (int(x) for x in own[:4])
        if with_names:
            gathered[name] = Gathered(0, [])
        elif isinstance(request, Measure):
            size = _range(request)
            total, squares = ((own[i] / _HIGH + own[i + 1] / _HIGH / _LOW) for i in (4, 6))
            counts = tuple(own[8:].tolist())
            gathered[name] = Gathered(clients, [Sums(rows, missing, total * size, squares * size**2, counts)])
        else:  # where numbers lie is enough for a shift: their sum is not asked for
            total = float(own[4:] @ _MIDPOINTS)
            gathered[name] = Gathered(clients, [Magnitudes(rows, missing, total, tuple(own[4:].tolist()))])
    return gathered


def _width(name: str, request: Request) -> int:
    if isinstance(request, Measure):
        return 8 + len(request.edges) - 1
    if isinstance(request, FindRange) and not request.categorical:
        return 4 + len(MAGNITUDE_EDGES) - 1
    raise InvalidInput(f"column {name}: categories have names, which cannot be added up: leave it out")


def _numbers(request: Request, reply: Reply) -> np.ndarray | None:
    """A reply as whole numbers; None where it does not count."""
    if isinstance(reply, CategoryNames) and isinstance(request, FindRange):
        return np.array([0, 1, *[0] * (1 + len(MAGNITUDE_EDGES))], np.int64)
    if not isinstance(reply, Magnitudes | Sums) or reply.rows > _MOST_ROWS or reply.missing > _MOST_ROWS:
        return None
    head = [1, 0, reply.rows, reply.missing]
    if isinstance(reply, Sums) and isinstance(request, Measure):
        size = _range(request)
        total, squares = reply.total / size, reply.squares / size**2
        if abs(total) > reply.rows or squares > reply.rows:  # a number beyond the range that was found before
            return None
        head += [*_digits(total), *_digits(squares)]
    return np.array([*head, *reply.counts], np.int64)


def _digits(x: float) -> tuple[int, int]:
    """The whole part of x in units of 2^-20, and the rest in units of 2^-60."""
    whole = math.floor(x * _HIGH)
    return whole, round((x * _HIGH - whole) * _LOW)


def _range(request: Measure) -> float:
    """The largest distance of a number between the ends from the shift."""
    return max(request.high - request.shift, request.shift - request.low)
