"""Replies about columns of numbers as whole numbers that are added up, where nobody is to see single replies."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.data.column_statistics.messages import (
    MAGNITUDE_EDGES,
    FindRange,
    Magnitudes,
    Measure,
    Refused,
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
    """A client's replies, int64 of shape (width,).

    Raises:
        InvalidInput: a column that it does not reply about with numbers. It then takes no part in the sum of any:
            zeros in their place would leave sums to which few clients, or one, add something.
    """
    none = Refused("there is no such column")
    return np.concatenate([_numbers(name, r, replies.get(name, none)) for name, r in requests.items()])


def from_numbers(requests: Mapping[str, Request], numbers: np.ndarray, clients: int) -> dict[str, Gathered]:
    """The sums of so many clients' replies, by column.

    Raises:
        InvalidInput: they cannot have such sums.
    """
    gathered, start = {}, 0
    for name, request in requests.items():
        own = numbers[start : start + _width(name, request)]
        start += len(own)
        rows, missing = (int(x) for x in own[:2])
        if isinstance(request, Measure):
            size = _range(request)
            total, squares = ((own[i] / _HIGH + own[i + 1] / _HIGH / _LOW) for i in (2, 4))
            counts = tuple(own[6:].tolist())
            most = rows * (1 + 1e-9) + 1e-6 * clients
            fits = abs(total) <= most and -1e-6 * clients <= squares <= most
            reply: Sums | Magnitudes = Sums(rows, missing, total * size, squares * size**2, counts)
        else:  # where numbers lie is enough for a shift: their sum is not asked for
            counts, fits = tuple(own[2:].tolist()), True
            reply = Magnitudes(rows, missing, float(own[2:] @ _MIDPOINTS), counts)
        in_range = all(0 <= x <= clients * _MOST_ROWS for x in (rows, missing, *counts))
        if not (fits and in_range and sum(counts) == rows):
            raise InvalidInput(
                f"column {name}: {clients} clients cannot have {rows} rows with these sums and counts: one of them "
                "sends others"
            )
        gathered[name] = Gathered(clients, [reply])
    return gathered


def _width(name: str, request: Request) -> int:
    if isinstance(request, Measure):
        return 6 + len(request.edges) - 1
    if isinstance(request, FindRange) and not request.categorical:
        return 2 + len(MAGNITUDE_EDGES) - 1
    raise InvalidInput(f"column {name}: categories have names, which cannot be added up: leave it out")


def _numbers(name: str, request: Request, reply: Reply) -> np.ndarray:
    """A reply as whole numbers."""
    if not isinstance(reply, Magnitudes | Sums):
        why = reply.reason if isinstance(reply, Refused) else "it has names, which cannot be added up"
        raise InvalidInput(f"column {name}: {why}: it is left out of the sum of all columns")
    if reply.rows > _MOST_ROWS or reply.missing > _MOST_ROWS:
        raise InvalidInput(f"column {name} has more than {_MOST_ROWS:,} rows")
    head = [reply.rows, reply.missing]
    if isinstance(reply, Sums) and isinstance(request, Measure):
        size = _range(request)
        total, squares = reply.total / size, reply.squares / size**2
        if abs(total) > reply.rows or squares > reply.rows:
            raise InvalidInput(f"column {name} has numbers beyond the range that was found before")
        head += [*_digits(total), *_digits(squares)]
    return np.array([*head, *reply.counts], np.int64)


def _digits(x: float) -> tuple[int, int]:
    """The whole part of x in units of 2^-20, and the rest in units of 2^-60."""
    whole = math.floor(x * _HIGH)
    return whole, round((x * _HIGH - whole) * _LOW)


def _range(request: Measure) -> float:
    """The largest distance of a number between the ends from the shift."""
    return max(request.high - request.shift, request.shift - request.low)
