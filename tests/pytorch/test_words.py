"""What travels between a program and the host keeps all its digits, whatever that thread's types are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from fedsolve.core.xla.host_calls import narrow, shape_of_words, to_words, widen


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.float32, np.int32])
def test_64_bits_travel_as_words_of_32(dtype):
    """A counter in int64 was refused where the callback's thread has 64-bit types off, which chance decides."""
    values = np.array([3, -(2**40) - 1 if np.dtype(dtype).itemsize == 8 else -7], dtype)
    with jax.enable_x64(True):
        sent = narrow(jnp.asarray(values))
        assert sent.dtype.itemsize == 4
        assert sent.shape == shape_of_words(values).shape
        np.testing.assert_array_equal(np.asarray(sent), to_words(values))
        back = widen(sent, values)
        assert back.dtype == dtype
        np.testing.assert_array_equal(back, values)
