"""What the numbers of an order must be before anything is done with it, whoever wrote it."""

from __future__ import annotations

from typing import Any

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.messages.message import Order
from fedsolve.deploy.messages.plain_text import printable

_MOST = 2**31 - 1


def check_order(order: Order) -> None:
    """Raise `InvalidInput`, naming the first, unless the numbers of an order are in their ranges."""
    if len(order.key) != 2:
        raise InvalidInput(f"its key has {len(order.key)} words, not 2")
    for name, value, least, most in (
        ("round", order.round, 0, _MOST - 1),
        ("population", order.population, 1, _MOST),
        ("client", order.client, 0, order.population - 1),
        ("last_used_round", order.last_used_round, -1, order.round - 1),
        ("key", order.key[0], 0, 2**32 - 1),
        ("key", order.key[1], 0, 2**32 - 1),
    ):
        check_number(name, value, least, most)


def check_number(name: str, value: Any, least: int, most: int) -> None:
    """Raise `InvalidInput` unless a number of an order is an integer in its range."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidInput(
            f"its {name} is {printable(repr(value), 80)}, not an integer from {least} to {most}"
        )
