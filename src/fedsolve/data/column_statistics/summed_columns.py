"""Replies about columns of numbers as whole numbers that are added up, where nobody is to see single replies."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.data.column_statistics.messages import Measure, Numbers, Refused, Replies, Request

MOST_CLIENTS = 2**11
"""Whose numbers fit into one sum."""
_UNIT, _REST = 2**60, 2**40
"""A sum relative to the column's range is a whole number of 2^-20, and the rest one of 2^-60."""
_ROUNDING = Fraction(1, 2**50)  # of a client's sums, at most, in what remains around the mean
_MOST_ROWS = 2**31


def check_summable(requests: Mapping[str, Request]) -> dict[str, Measure]:
    """The requests, all of which have replies that can be added up.

    Raises:
        InvalidInput: no column is named, one has no range, or its categories are asked for.
    """
    if not requests:
        raise InvalidInput(
            "sums are of columns that are named, each with its range: name them, such as age=0:120"
        )
    measured = {}
    for name, request in requests.items():
        if not isinstance(request, Measure):
            why = "categories have names, which cannot be added up: leave it out"
            if not request.categorical:
                why = f"secure sums are of numbers within a range: give it, such as {name}=0:120"
            raise InvalidInput(f"column {name}: {why}")
        measured[name] = request
    return measured


def width(requests: Mapping[str, Measure]) -> int:
    """Whole numbers of a client's replies to these requests."""
    return sum(map(_width, requests.values()))


def to_numbers(requests: Mapping[str, Measure], replies: Replies) -> np.ndarray:
    """A client's replies, int64 of shape (width,).

    Raises:
        InvalidInput: a column that it does not reply about with numbers. It then takes no part in the sum of any:
            zeros in their place would leave sums to which few clients, or one, add something.
    """
    return np.concatenate([_numbers(name, request, replies[name]) for name, request in requests.items()])


def from_numbers(requests: Mapping[str, Measure], numbers: np.ndarray, clients: int) -> dict[str, Numbers]:
    """The sums of so many clients' replies, by column, as the reply of one client that has all rows.

    Raises:
        InvalidInput: they cannot have such sums.
    """
    gathered, start = {}, 0
    for name, request in requests.items():
        own = [int(x) for x in numbers[start : start + _width(request)]]
        start += len(own)
        rows, missing, counts = own[0], own[1], tuple(own[6:])
        total, squares = (Fraction(own[i] * _REST + own[i + 1], _UNIT) for i in (2, 4))
        around = squares - total**2 / max(rows, 1)
        in_range = all(0 <= x <= clients * _MOST_ROWS for x in (rows, missing, *counts))
        fits = abs(total) <= rows and squares <= rows and around >= -_ROUNDING * clients
        if not (fits and in_range and sum(counts) == rows > 0):
            raise InvalidInput(
                f"column {name}: {clients} clients cannot have {rows} rows with these sums and counts: one of them "
                "sends others"
            )
        centre, half = _middle(request)
        mean, around = float(centre + half * total / rows), float(max(around, 0) * half**2)
        gathered[name] = Numbers(rows, missing, mean, 0.0, around, (), counts)
    return gathered


def _width(request: Measure) -> int:
    return 6 + len(request.edges) - 1


def _numbers(name: str, request: Measure, reply: object) -> np.ndarray:
    """A reply as whole numbers: rows, missing, sums of numbers and squares around the range's middle, and counts."""
    if not isinstance(reply, Numbers):
        why = reply.reason if isinstance(reply, Refused) else "it has names, which cannot be added up"
        raise InvalidInput(f"column {name}: {why}: it is left out of the sum of all columns")
    if reply.rows > _MOST_ROWS or reply.missing > _MOST_ROWS:
        raise InvalidInput(f"column {name} has more than {_MOST_ROWS:,} rows")
    centre, half = _middle(request)
    mean = (Fraction(reply.mean) + Fraction(reply.rest) - centre) / half
    total = reply.rows * mean
    squares = Fraction(reply.squares) / half**2 + total * mean
    if abs(total) > reply.rows or squares > reply.rows:
        raise InvalidInput(
            f"column {name} has numbers far beyond the range that was asked for: ask for a wider one"
        )
    return np.array([reply.rows, reply.missing, *_digits(total), *_digits(squares), *reply.counts], np.int64)


def _digits(x: Fraction) -> tuple[int, int]:
    """The whole part of x in units of 2^-20, and the rest in units of 2^-60."""
    return divmod(round(x * _UNIT), _REST)


def _middle(request: Measure) -> tuple[Fraction, Fraction]:
    """The middle of a range and half of its length."""
    low, high = Fraction(request.low), Fraction(request.high)
    return (low + high) / 2, (high - low) / 2
