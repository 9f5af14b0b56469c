"""Messages as bytes, exactly: floats as they are, truths as bits, bounded integers in as few bytes as they need.

What a message is made of fixes its length, so that the length is known without encoding: `size` is what the
engine counts, and `len(encode(message))`. Both sides know the structure and the shapes; nothing else travels.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedsolve.errors import InvalidInput
from fedsolve.types import module, static


@module
class Index:
    """Integers from 0 to `below` inclusive; `below` itself stands for no valid value.

    Attributes:
        value: an integer array of any shape.
        below: valid values are smaller.
    """

    value: Int[Array, " *shape"]
    below: int = static()


def size(message: Any) -> int:
    """Bytes of a message (arrays or their shapes) on the wire.

    >>> size((jnp.zeros(3, jnp.float32), Index(jnp.int32(5), 1000), jnp.zeros(9, bool)))
    16
    """
    return sum(_bytes(part) for part in _parts(message))


def encode(message: Any) -> bytes:
    """A concrete message as `size(message)` bytes, little-endian, leaf after leaf.

    Raises:
        InvalidInput: an index outside its range.
    """
    return b"".join(_encode(part) for part in _parts(message))


def decode(data: bytes, like: Any) -> Any:
    """The message that was encoded; `like` has its structure, shapes and types.

    Raises:
        InvalidInput: data of another length than such a message has.
    """
    if len(data) != size(like):
        raise InvalidInput(f"a message of {len(data)} bytes where {size(like)} were expected: another model?")
    parts, structure = jax.tree.flatten(like, is_leaf=_is_index)
    found, start = [], 0
    for part in parts:
        stop = start + _bytes(part)
        found.append(_decode(data[start:stop], part))
        start = stop
    return structure.unflatten(found)


def _is_index(x: Any) -> bool:
    return isinstance(x, Index)


def _parts(message: Any) -> list[Any]:
    return jax.tree.leaves(message, is_leaf=_is_index)


def _width(index: Index) -> int:
    """Bytes of one index."""
    return max(1, -(-int(index.below).bit_length() // 8))


def _shaped(part: Any) -> Any:
    return part if hasattr(part, "shape") else np.asarray(part)


def _bytes(part: Any) -> int:
    if isinstance(part, Index):
        return _width(part) * int(np.prod(np.shape(part.value), dtype=np.int64))
    part = _shaped(part)
    count = int(np.prod(part.shape, dtype=np.int64))
    return -(-count // 8) if part.dtype == bool else count * jnp.dtype(part.dtype).itemsize


def _encode(part: Any) -> bytes:
    if isinstance(part, Index):
        value = np.atleast_1d(np.asarray(part.value)).astype("<i8").ravel()
        if ((value < 0) | (value > part.below)).any():
            raise InvalidInput(f"an index of {value.min()} to {value.max()} must lie in 0 to {part.below}")
        return value.view(np.uint8).reshape(-1, 8)[:, : _width(part)].tobytes()
    array = np.asarray(part)
    return np.packbits(array.ravel()).tobytes() if array.dtype == bool else array.tobytes()


def _decode(data: bytes, like: Any) -> Any:
    if isinstance(like, Index):
        value = np.zeros((len(data) // _width(like), 8), np.uint8)
        value[:, : _width(like)] = np.frombuffer(data, np.uint8).reshape(len(value), -1)
        dtype = getattr(like.value, "dtype", np.dtype(np.int32))
        return Index(value.view("<i8")[:, 0].astype(dtype).reshape(np.shape(like.value)), like.below)
    like = _shaped(like)
    if like.dtype == bool:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=int(np.prod(like.shape, dtype=np.int64)))
        return bits.astype(bool).reshape(like.shape)
    return np.frombuffer(data, jnp.dtype(like.dtype)).reshape(like.shape)
