"""How messages are laid out as bytes, and the two errors of the protocol.

Every message begins with four bytes that name its kind and version. All numbers are unsigned and little-endian, every
field has a fixed length or a count before it, and nothing may follow the last field.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise

from fedsolve.core.errors import FedsolveError, InvalidInput, of_type

LARGEST_LIST = 2**16
"""Clients that a list may have: sums of 16-bit limbs hold for so many."""


class ProtocolError(InvalidInput):
    """A message, key or request of a secure sum is refused: nothing was sent, added or answered."""


class SumNotOpened(FedsolveError):
    """A sum stays closed: too few clients or members of the committee answered, or what they sent does not fit.

    Attributes:
        missing: the clients whose answers would have been needed.
        at_fault: the clients that sent what does not fit.
        disputes: a member and a client each, of whom one or the other is at fault, and nobody can say which.
        unwilling: clients whose owners allow no sum of so few.
    """

    exit_code = 4

    def __init__(
        self,
        message: str,
        missing: Iterable[int] = (),
        at_fault: Iterable[int] = (),
        disputes: Iterable[tuple[int, int]] = (),
        unwilling: Iterable[int] = (),
    ) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
        self.at_fault, self.disputes = tuple(sorted(at_fault)), tuple(disputes)
        self.unwilling = tuple(sorted(unwilling))


class RoundIsOver(SumNotOpened):
    """No sum of this round can be opened any more, or the one that was is none."""


class Reader:
    """Takes the fields of a message in their order, and never more than there is.

    Args:
        data: the message.
        tag: the four bytes that it must begin with.
        what: what the errors call it, such as "the order".

    Raises:
        ProtocolError: it is no bytes, or begins otherwise.
    """

    def __init__(self, data: bytes, tag: bytes, what: str) -> None:
        if not isinstance(data, bytes):
            raise ProtocolError(f"{what} must be bytes, not {of_type(data)}")
        self._data, self.at, self._what = data, 0, what
        if self.take(len(tag)) != tag:
            raise ProtocolError(f"{what} does not begin with {tag!r}: it is another message, or damaged")

    def take(self, length: int) -> bytes:
        """The next bytes."""
        end = self.at + length
        if end > len(self._data):
            raise ProtocolError(f"{self._what} has {len(self._data)} bytes and ends too early")
        self.at, part = end, self._data[self.at : end]
        return part

    def number(self, size: int) -> int:
        """The next number, of 1, 2, 4 or 8 bytes."""
        return int.from_bytes(self.take(size), "little")

    def clients(self) -> tuple[int, ...]:
        """A list of clients: how many, then their numbers, ascending."""
        count = self.number(4)
        if count > LARGEST_LIST:
            raise ProtocolError(f"{self._what} lists {count} clients, more than {LARGEST_LIST}")
        listed = struct.unpack(f"<{count}I", self.take(4 * count))
        return check_ascending(listed, f"a list of {self._what}")

    def rest(self) -> memoryview:
        """What is left, without a copy; nothing may follow it."""
        self.at, part = len(self._data), memoryview(self._data)[self.at :]
        return part

    def end(self) -> None:
        """See that nothing follows."""
        if more := len(self._data) - self.at:
            raise ProtocolError(f"{self._what} has {more} bytes after its end")


def check_ascending(clients: Sequence[int], what: str) -> tuple[int, ...]:
    """The numbers as they are; `ProtocolError` unless they ascend, so that none occurs twice."""
    if any(a >= b for a, b in pairwise(clients)):
        raise ProtocolError(f"{what} does not ascend: a client occurs twice, or out of order")
    return tuple(clients)


def number(value: int, size: int) -> bytes:
    """A number as bytes."""
    return value.to_bytes(size, "little")


def client_list(clients: Sequence[int]) -> bytes:
    """A list of clients as bytes."""
    return number(len(clients), 4) + struct.pack(f"<{len(clients)}I", *clients)


def names(clients: Iterable[int], shown: int = 10) -> str:
    """Clients for an error's one line.

    >>> names([3, 5])
    '3, 5'
    """
    listed = list(clients)
    more = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return ", ".join(map(str, listed[:shown])) + more or "none"
