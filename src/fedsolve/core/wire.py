"""Lossless encoding of messages as bytes: floats unchanged, booleans as bits, bounded integers in few bytes.

The structure and shapes of a message determine its length, so that the length is known without encoding: `size` is
the number that the engine counts, and equals `len(encode(message))`. Both sides know the structure and the shapes;
only values are sent.
"""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedsolve.core.errors import InvalidInput
from fedsolve.core.trees import named_leaves
from fedsolve.core.types import Params, module, static

__all__ = ["Index", "Initial", "OneOf", "Packed", "Ring", "Variants", "decode", "encode", "size", "variants"]


@module
class Index:
    """Integers from 0 to `below` inclusive; `below` itself stands for an invalid value.

    Attributes:
        value: an integer array of any shape.
        below: valid values are smaller.
    """

    value: Int[Array, " *shape"]
    below: int = static()


@module
class Packed:
    """Integers from 0 to 2^bits - 1, each in so many bits.

    Attributes:
        value: an integer array of any shape.
        bits: of one of them, 1 to 31.
    """

    value: Int[Array, " *shape"]
    bits: int = static()


@module
class Ring:
    """Integers modulo 2^32 or 2^64, which are added up: 4 or 8 bytes each.

    Attributes:
        value: uint32; of 64 bits four limbs along a last axis, the lowest first, each of 16 bits or, in a sum, more.
        fine: 0, or NaN where they stand for numbers that are not finite, shape (); it is not sent.
        bits: 32 or 64.
    """

    value: Array
    fine: Array
    bits: int = static()


@module
class Initial:
    """A leaf of the initial model, of which every client has a copy: 8 bytes that say which, not the numbers.

    Attributes:
        value: the leaf.
        path: where it is in the model, as `fedsolve.core.trees.named_leaves` writes it.
    """

    value: Array
    path: str = static()

    @staticmethod
    def leaves_of(params: Params) -> Any:
        """The initial model as it is sent.

        Args:
            params: the model, or a part of it with None in the place of other leaves.

        Returns:
            The same structure with `Initial` in the place of each leaf.
        """
        paths, leaves = named_leaves(params)
        return jax.tree.structure(params).unflatten(map(Initial, leaves, paths))

    @staticmethod
    def values_of(sent: Any) -> Params:
        """The model that was sent so.

        Args:
            sent: what `leaves_of` gave, or a model; other leaves stay as they are.

        Returns:
            The same structure with the value of each `Initial`.
        """
        is_known = lambda x: isinstance(x, Initial)  # noqa: E731
        return jax.tree.map(lambda x: x.value if is_known(x) else x, sent, is_leaf=is_known)


@module
class OneOf:
    """One of several kinds of message, such as a vertex of a client's own set: a byte for the kind, then the message.

    Attributes:
        which: its number, shape ().
        options: all of them; those that are not meant hold anything.
    """

    which: Int[Array, ""]
    options: tuple[Any, ...]


class Variants(NamedTuple):
    """The possible lengths of a message, and the one that it has.

    Attributes:
        sizes: bytes, shape (variants,), each at least 0.
        which: one-hot, bool (variants,).
    """

    sizes: tuple[int, ...]
    which: Any


def variants(message: Any) -> Variants:
    """The possible lengths of a message, and the one that it has; a single length without a `OneOf`.

    Args:
        message: arrays or their shapes, in any pytree, with one `OneOf` at most.

    Returns:
        The lengths in bytes, in the order of the choice's options, and which one it is.

    Raises:
        NotImplementedError: more than one `OneOf`.
    """
    choices = [x for x in jax.tree.leaves(message, is_leaf=_is_choice) if _is_choice(x)]
    if not choices:
        return Variants((size(message),), jnp.ones(1, bool))
    if len(choices) > 1:
        raise NotImplementedError("a message with two OneOf fields: nest them in one")
    (choice,) = choices
    rest = size(jax.tree.map(lambda x: None if _is_choice(x) else x, message, is_leaf=_is_choice))
    sizes = tuple(rest + 1 + size(option) for option in choice.options)
    which = 0 if isinstance(choice.which, jax.ShapeDtypeStruct) else choice.which
    return Variants(sizes, jnp.arange(len(sizes)) == which)


def size(message: Any) -> int:
    """The number of bytes of an encoded message, from its arrays or their shapes; a `OneOf` counts its actual kind.

    Args:
        message: arrays or their shapes (`jax.ShapeDtypeStruct`), in any pytree; bool arrays take a bit an entry.

    Returns:
        Bytes, at least 0.

    >>> size((jnp.zeros(3, jnp.float32), Index(jnp.int32(5), 1000), jnp.zeros(9, bool)))
    16
    """
    return sum(_bytes(part) for part in _parts(message))


def encode(message: Any) -> bytes:
    """Encode a concrete message as `size(message)` bytes, little-endian, leaf after leaf.

    Args:
        message: arrays with values, in any pytree.

    Returns:
        As many bytes as `size` counts.

    Raises:
        InvalidInput: an index outside its range.
    """
    return b"".join(_encode(part) for part in _parts(message))


def decode(data: bytes, like: Any, initial: Params = ()) -> Any:
    """Decode a message; `like` has its structure, shapes and types.

    Args:
        data: what `encode` gave.
        like: arrays or their shapes; their values do not matter.
        initial: the receiver's copy of the initial model, where leaves of it are in the message.

    Returns:
        A pytree of the structure of `like`; arrays of numbers lie in `data`, and cannot be written to.

    Raises:
        InvalidInput: data of another length than such a message has, an index outside its range, or another initial
            model than the sender's.
    """
    like = jax.tree.map(
        partial(_known, dict(zip(*named_leaves(initial), strict=True))), like, is_leaf=_is_part
    )
    message, used = _decode_from(memoryview(data), 0, like)
    if used != len(data):
        raise InvalidInput(f"a message of {len(data)} bytes where {used} were expected: another model?")
    return message


def _known(initial: dict[str, Any], part: Any) -> Any:
    # a part of what a message is like; a leaf of the initial model with its values
    return Initial(initial.get(part.path, part.value), part.path) if isinstance(part, Initial) else part


def _decode_from(data: memoryview, start: int, like: Any) -> tuple[Any, int]:
    # a message that begins at `start`, and where it ends
    parts, structure = jax.tree.flatten(like, is_leaf=_is_part)
    decoded = []
    for part in parts:
        if isinstance(part, OneOf):
            which = data[start] if start < len(data) else 0
            if which >= len(part.options):
                raise InvalidInput(f"a message of choice {which} where there are {len(part.options)}")
            option, start = _decode_from(data, start + 1, part.options[which])
            options = (*part.options[:which], option, *part.options[which + 1 :])
            decoded.append(OneOf(jnp.int32(which), options))
            continue
        stop = start + _bytes(part)
        if stop > len(data):
            raise InvalidInput(f"a message of {len(data)} bytes ends early: another model?")
        decoded.append(_decode(data[start:stop], part))
        start = stop
    return structure.unflatten(decoded), start


def _is_choice(x: Any) -> bool:
    return isinstance(x, OneOf)


def _is_part(x: Any) -> bool:
    return isinstance(x, Index | Initial | Packed | Ring | OneOf)


def _parts(message: Any) -> list[Any]:
    return jax.tree.leaves(message, is_leaf=_is_part)


def _count(array: Any) -> int:
    return int(np.prod(np.shape(array), dtype=np.int64))


def _width(index: Index) -> int:
    return max(1, -(-int(index.below).bit_length() // 8))


def _shaped(part: Any) -> Any:
    return part if hasattr(part, "shape") else np.asarray(part)


def _bytes(part: Any) -> int:
    if isinstance(part, OneOf):
        return 1 + size(part.options[int(part.which)])
    if isinstance(part, Index):
        return _width(part) * _count(part.value)
    if isinstance(part, Packed):
        return -(-_count(part.value) * part.bits // 8)
    if isinstance(part, Ring):
        return _count(part.value) * (4 if part.bits == 32 else 2)
    if isinstance(part, Initial):
        return _DIGEST
    part = _shaped(part)
    count = _count(part)
    return -(-count // 8) if part.dtype == bool else count * jnp.dtype(part.dtype).itemsize


def _encode(part: Any) -> Any:
    # bytes, or an array of them: of a large one its own memory
    if isinstance(part, OneOf):
        return bytes([int(part.which)]) + encode(part.options[int(part.which)])
    if isinstance(part, Index):
        value = np.atleast_1d(np.asarray(part.value)).astype("<i8").ravel()
        if ((value < 0) | (value > part.below)).any():
            raise InvalidInput(f"an index of {value.min()} to {value.max()} must lie in 0 to {part.below}")
        return value.view(np.uint8).reshape(-1, 8)[:, : _width(part)].tobytes()
    if isinstance(part, Packed):
        value = np.asarray(part.value).astype(np.int64).ravel()
        if ((value < 0) | (value >> part.bits > 0)).any():
            raise InvalidInput(f"an integer of {value.min()} to {value.max()} must have {part.bits} bits")
        return np.packbits((value[:, None] >> np.arange(part.bits)) & 1).tobytes()
    if isinstance(part, Ring):
        return ring_words(part).tobytes()
    if isinstance(part, Initial):
        return _digest(part)
    array = np.asarray(part)
    return np.packbits(array.ravel()) if array.dtype == bool else array.reshape(-1).view(np.uint8)


def _decode(data: memoryview, like: Any) -> Any:
    if isinstance(like, Index):
        # little-endian in as many bytes as `below` takes, filled up to 8 with zeros
        value = np.zeros((len(data) // _width(like), 8), np.uint8)
        value[:, : _width(like)] = np.frombuffer(data, np.uint8).reshape(len(value), _width(like))
        dtype = getattr(like.value, "dtype", np.dtype(np.int32))
        if (value.view("<i8") > like.below).any():
            raise InvalidInput(f"an index of {value.view('<i8').max()} must lie in 0 to {like.below}")
        index: Any = value.view("<i8")[:, 0].astype(dtype).reshape(np.shape(like.value))
        return Index(index, like.below)
    if isinstance(like, Packed):
        count = _count(like.value)
        digits = np.unpackbits(np.frombuffer(data, np.uint8), count=count * like.bits)
        value = digits.reshape(count, like.bits) @ (1 << np.arange(like.bits, dtype=np.int64))
        dtype = getattr(like.value, "dtype", np.dtype(np.int32))
        packed: Any = value.astype(dtype).reshape(np.shape(like.value))
        return Packed(packed, like.bits)
    if isinstance(like, Ring):
        # an element of 64 bits is kept in four limbs: JAX may have no such integers
        return ring_of_words(np.frombuffer(data, "<u4" if like.bits == 32 else "<u8"), like)
    if isinstance(like, Initial):
        # only a digest travels: both sides have the model
        if isinstance(like.value, jax.ShapeDtypeStruct) or _digest(like) != data:
            raise InvalidInput(
                f"{like.path} of the initial model is not the server's: start both from one model"
            )
        return like
    like = _shaped(like)
    if like.dtype == bool:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=_count(like))
        return bits.astype(bool).reshape(like.shape)
    return np.frombuffer(data, jnp.dtype(like.dtype)).reshape(like.shape)


def _digest(part: Initial) -> bytes:
    return blake2b(np.asarray(part.value).tobytes(), digest_size=_DIGEST).digest()


_DIGEST = 8  # bytes
_PLACES = np.arange(0, 64, 16, dtype=np.uint64)  # of limbs, in bits


def ring_words(part: Ring) -> np.ndarray:
    """The elements of a ring as one vector of unsigned words of as many bits, little-endian; limbs are carried."""
    value = np.asarray(part.value)
    if part.bits == 32:
        return value.ravel().astype("<u4")
    return (value.astype(np.uint64).reshape(-1, 4) << _PLACES).sum(axis=1, dtype=np.uint64).astype("<u8")


def ring_of_words(words: np.ndarray, like: Ring) -> Ring:
    """The ring elements of such a vector, of the shape of `like`."""
    value = words if like.bits == 32 else (words[:, None] >> _PLACES) & np.uint64(0xFFFF)
    shaped: Any = value.astype(np.uint32).reshape(np.shape(like.value))
    fine: Any = np.zeros((), jnp.dtype(like.fine.dtype))
    return Ring(shaped, fine, like.bits)
