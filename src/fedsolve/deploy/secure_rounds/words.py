"""Messages of ring elements as the words that are masked: all of 32 bits first, then all of 64."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from fedsolve.core import wire
from fedsolve.core.errors import InvalidInput


class Counts(NamedTuple):
    """Words of a message, of each size."""

    n32: int
    n64: int

    @property
    def bytes(self) -> int:
        """Of all words."""
        return 4 * self.n32 + 8 * self.n64


def count_words(message: Any) -> Counts:
    """The words of a message, from its ring elements or their shapes.

    Raises:
        InvalidInput: a part of it that is no ring element.
    """
    sizes = {32: 0, 64: 0}
    for part in _parts(message):
        sizes[part.bits] += _count(part)
    return Counts(sizes[32], sizes[64])


def to_words(message: Any) -> bytes:
    """The words of a message, little-endian."""
    parts = _parts(message)
    return b"".join(wire.ring_words(p).tobytes() for bits in (32, 64) for p in parts if p.bits == bits)


def from_words(data: bytes, like: Any) -> Any:
    """The message of these words; `like` has its structure and shapes.

    Raises:
        InvalidInput: another number of words than it has.
    """
    counts = count_words(like)
    if len(data) != counts.bytes:
        raise InvalidInput(f"{len(data)} bytes of words where {counts.bytes} were expected")
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
