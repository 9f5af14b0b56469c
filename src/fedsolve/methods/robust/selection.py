"""Medians and trimmed means without sorting: the value of a rank, bit by bit, a few coordinates at a time.

Measured (benchmarks/FINDINGS.md): XLA's sort on a CPU takes 6 to 17 times as long as one count of all values for each
bit of their type, where what is counted stays in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedsolve.core.types import Scalar

_AT_ONCE = 2**14  # values whose counts stay in the cache of a core


def medians(x: Float[Array, "clients ..."], count: Scalar) -> Array:
    """The median of each coordinate's `count` smallest values, the mean of the middle two of an even number.

    Args:
        x: values without NaN; of 0 and -0 either may be the median.
        count: at least 1.
    """
    return _of_columns(partial(_median, count=count), x)


def trimmed_means(x: Float[Array, "clients ..."], first: Scalar, last: Scalar) -> Array:
    """The mean of each coordinate's values from rank `first` to rank `last`, both from 0 and included.

    Args:
        x: values without NaN, finite up to rank `last`.
        first: at least 0.
        last: at least `first`.
    """
    return _of_columns(partial(_trimmed_mean, first=first, last=last), x)


def of_rank(x: Float[Array, "clients ..."], rank: Scalar) -> Array:
    """Each coordinate's value of a rank, from 0; of 0 and -0 it may be either.

    Args:
        x: values without NaN.
        rank: below their number.
    """
    return _of_columns(lambda values: _from_ordered_bits(_of_rank(_ordered_bits(values), rank), x.dtype), x)


def _of_columns(function: Callable[[Array], Array], x: Array) -> Array:
    """A function of a coordinate's values, of each coordinate."""
    columns = x.reshape(len(x), math.prod(x.shape[1:])).T
    # an accelerator counts all at once; a loop over parts of the coordinates would leave it idle
    at_once = max(1, _AT_ONCE // len(x)) if jax.default_backend() == "cpu" else len(columns)
    results = (
        lax.map(function, columns, batch_size=at_once)
        if at_once < len(columns)
        else jax.vmap(function)(columns)
    )
    return results.reshape(x.shape[1:])


def _median(values: Array, count: Scalar) -> Array:
    order = _ordered_bits(values)
    low = _of_rank(order, (count - 1) // 2)
    up_to_low = jnp.sum(order <= low, dtype=jnp.int32)
    above = jnp.min(jnp.where(order > low, order, ~jnp.zeros((), order.dtype)))
    high = jnp.where(up_to_low > count // 2, low, above)
    low, high = (_from_ordered_bits(one, values.dtype) for one in (low, high))
    return low / 2 + high / 2  # halves first: a sum can overflow


def _trimmed_mean(values: Array, first: Scalar, last: Scalar) -> Array:
    order = _ordered_bits(values)
    low, high = _of_rank(order, first), _of_rank(order, last)
    between = jnp.sum(jnp.where((order > low) & (order < high), values, 0))
    at_low = jnp.sum(order <= low, dtype=jnp.int32) - first  # of values equal to an end those of ranks inside
    at_high = last + 1 - jnp.sum(order < high, dtype=jnp.int32)
    ends = [_from_ordered_bits(one, values.dtype) for one in (low, high)]
    mean = (between + ends[0] * at_low + ends[1] * at_high) / (last + 1 - first)
    return jnp.where(low == high, ends[0], mean.astype(values.dtype))


def _of_rank(order: Array, rank: Scalar) -> Array:
    """The largest whole number that at most `rank` of these are below: the one of that rank, from 0."""
    bits = jnp.iinfo(order.dtype).bits

    def next_bit(i: Array, prefix: Array) -> Array:
        larger = prefix | (jnp.ones((), order.dtype) << (bits - 1 - i).astype(order.dtype))
        return jnp.where(jnp.sum(order < larger, dtype=jnp.int32) <= rank, larger, prefix)

    return lax.fori_loop(0, bits, next_bit, jnp.zeros((), order.dtype))


def _ordered_bits(values: Array) -> Array:
    """Whole numbers in the order of floats: those below 0 with all bits turned, the others with the sign's."""
    unsigned = jnp.dtype(f"uint{8 * values.dtype.itemsize}")
    bits, sign = lax.bitcast_convert_type(values, unsigned), _sign(unsigned)
    return jnp.where(bits >= sign, ~bits, bits | sign)


def _from_ordered_bits(order: Array, dtype: jnp.dtype) -> Array:
    sign = _sign(order.dtype)
    return lax.bitcast_convert_type(jnp.where(order >= sign, order ^ sign, ~order), dtype)


def _sign(unsigned: jnp.dtype) -> Array:
    return jnp.asarray(2 ** (8 * unsigned.itemsize - 1), unsigned)
