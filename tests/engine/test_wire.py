"""Messages as bytes: floats to the last bit, truths in bits, indices in as few bytes as their range needs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import module
from fedsolve.core.wire import Index, OneOf, decode, encode, size, variants


@module
class Message:
    """A message of everything."""

    delta: Any
    code: Any


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        np.testing.assert_array_equal(x, y)


def there_and_back(message):
    data = encode(message)
    assert len(data) == size(message)
    same(decode(data, message), message)
    return data


# one byte counts 0 to 255, two to 65,535, three to 16,777,215, four beyond; `below` itself must fit
WIDTHS = {1: 1, 2: 1, 255: 1, 256: 2, 257: 2, 65535: 2, 65536: 3, 2**24 - 1: 3, 2**24: 4, 2**31 - 1: 4}


@pytest.mark.parametrize("below", WIDTHS)
def test_width_of_an_index(below):
    """ceil(log2(below + 1) / 8) bytes; 0, the largest valid one and `below`, which means none, come back."""
    for value in (0, below - 1, below):
        data = there_and_back(Index(np.int32(value), below))
        assert len(data) == WIDTHS[below]
        assert int.from_bytes(data, "little") == value


def test_indices_of_any_shape():
    """Six indices below 1000 in a 2 x 3 array: 12 bytes, little-endian, row by row."""
    values = np.array([[1, 2, 3], [999, 1000, 256]], np.int32)
    data = there_and_back(Index(values, 1000))
    assert data == b"".join(int(v).to_bytes(2, "little") for v in values.ravel())


def test_no_indices():
    assert there_and_back(Index(np.zeros((0,), np.int32), 5)) == b""


@pytest.mark.parametrize("value", [-1, 11, 2**31 - 1, [0, 3, 11], [0, -2, 3]])
def test_an_index_out_of_range(value):
    """Valid ones are 0 to 9, and 10 for none: the error names the range and what was given."""
    with pytest.raises(InvalidInput, match=r"must lie in 0 to 10"):
        encode(Index(np.asarray(value, np.int64), 10))


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 16, 17])
def test_truths_are_bits(count):
    """ceil(count / 8) bytes, the first truth in the highest bit."""
    bits = np.random.default_rng(count).random(count) < 0.5
    data = there_and_back(bits)
    assert len(data) == -(-count // 8)
    if count:
        assert data[0] == sum(int(b) << (7 - j) for j, b in enumerate(bits[:8]))


def test_truths_of_any_shape():
    """A 3 x 5 array is 15 bits, 2 bytes; a single truth is a byte."""
    assert len(there_and_back(np.eye(3, 5, dtype=bool))) == 2
    assert len(there_and_back(np.asarray(True))) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32"])
def test_numbers_keep_every_bit(dtype):
    """Also -0.0, infinities, NaN and the smallest numbers of floats."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3.14159] if dtype != "int32" else [0, -5, 2**31 - 1]
    values = np.asarray(special, jnp.dtype(dtype))
    data = encode(values)
    assert data == values.tobytes()
    assert len(data) == size(values) == len(special) * jnp.dtype(dtype).itemsize
    assert np.asarray(decode(data, values)).tobytes() == values.tobytes()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_nested_messages(data):
    """Any nesting of modules, tuples and dicts: the length is known without encoding, and all comes back."""
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))

    def part(kind):
        shape = tuple(rng.integers(kind == "index", 4, rng.integers(0, 3)))
        if kind == "index":
            below = int(rng.integers(1, 10**6))
            return Index(rng.integers(0, below + 1, shape).astype(np.int32), below)
        if kind == "bool":
            return rng.random(shape) < 0.5
        if kind == "choice":
            options = (
                rng.standard_normal(3).astype(np.float32),
                Index(np.int32(7), 300),
                (np.ones(2, bool),),
            )
            return OneOf(np.int32(rng.integers(3)), options)
        return rng.standard_normal(shape).astype(kind)

    kinds = data.draw(
        st.lists(st.sampled_from(["index", "bool", "choice", "float32", "float64"]), min_size=1, max_size=5)
    )
    parts = [part(kind) for kind in kinds]
    there_and_back(Message({"b": parts[1:], "a": parts[0]}, tuple(parts)))


def choice(which):
    """A vertex code of two bytes, four numbers, or nine bits."""
    options = (Index(np.int32(123), 1000), np.arange(4, dtype=np.float32), np.arange(9) % 2 == 0)
    return OneOf(np.int32(which), options)


@pytest.mark.parametrize(("which", "length"), [(0, 1 + 2), (1, 1 + 16), (2, 1 + 2)])
def test_only_the_chosen_one_travels(which, length):
    """A byte that says which, then that option alone; the receiver's `like` may have chosen another."""
    data = encode(choice(which))
    assert len(data) == size(choice(which)) == length
    assert data[0] == which
    found = decode(data, choice((which + 1) % 3))
    assert int(found.which) == which
    same(found.options[which], choice(which).options[which])


def test_a_choice_within_a_message():
    """What comes after a choice begins where it ends, whatever its length."""
    for which, length in enumerate((3, 17, 3)):
        message = Message(choice(which), np.array([1.5, -2.0]))
        data = encode(message)
        assert len(data) == length + 16
        found = decode(data, Message(choice(1), np.zeros(2)))
        np.testing.assert_array_equal(found.code, [1.5, -2.0])
        assert int(found.delta.which) == which


def test_lengths_a_message_may_have():
    """One without a choice; one for each option with one, and which it is, also of shapes alone."""
    plain = variants(Message(np.zeros(3), Index(np.int32(0), 9)))
    assert plain.sizes == (25,)
    np.testing.assert_array_equal(plain.which, [True])
    many = variants(Message(np.zeros(3), OneOf(jnp.int32(2), choice(0).options)))
    assert many.sizes == (24 + 3, 24 + 17, 24 + 3)
    np.testing.assert_array_equal(many.which, [False, False, True])
    shapes = jax.eval_shape(lambda m: m, Message(jnp.zeros(3, jnp.float32), choice(0)))
    assert variants(shapes).sizes == (12 + 3, 12 + 17, 12 + 3)


def test_two_choices_in_a_message_are_refused():
    with pytest.raises(NotImplementedError, match="OneOf"):
        variants(Message(choice(0), choice(1)))


def test_a_choice_is_chosen_within_a_program():
    """`variants` of a traced choice is its one-hot number, so that the engine can count."""
    found = jax.jit(lambda which: variants(OneOf(which, choice(0).options)).which)(jnp.int32(1))
    np.testing.assert_array_equal(found, [False, True, False])


LIKE = Message(np.zeros((2, 3), np.float32), Index(np.int32(0), 1000))


@pytest.mark.parametrize("cut", [0, 1, 12, 24, 25])
def test_a_message_that_ends_early(cut):
    """26 bytes are expected; any prefix is refused, with its length."""
    with pytest.raises(InvalidInput, match=rf"{cut} bytes.*another model"):
        decode(encode(LIKE)[:cut], LIKE)


def test_a_message_that_is_too_long():
    with pytest.raises(InvalidInput, match=r"27 bytes where 26.*another model"):
        decode(encode(LIKE) + b"\0", LIKE)


def test_an_empty_choice_and_one_that_does_not_exist():
    with pytest.raises(InvalidInput, match=r"choice 3 where there are 3"):
        decode(b"\3" + encode(choice(0))[1:], choice(0))
    with pytest.raises(InvalidInput, match="another model"):
        decode(b"", choice(0))


def test_jax_arrays_and_plain_numbers():
    """The length is that of the type: a Python float is float64 here, whatever JAX's default."""
    assert len(there_and_back(jnp.arange(3, dtype=jnp.float32))) == 12
    assert size(jax.ShapeDtypeStruct((5, 2), jnp.float32)) == 40
    assert len(encode(1.5)) == size(1.5) == 8
    assert len(encode(True)) == size(True) == 1
