"""The interface of robust reductions, and those of whole vectors: geometric median, Krum, norm clipping.

They work on the client update as one vector; everything else in a message is reduced by its median (see
`fedsolve.methods.robust.vectors.OfVectors`).
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from fedsolve.core.building import integer, number
from fedsolve.core.errors import InvalidInput, check_range
from fedsolve.core.types import Scalar, is_module, module, reductions, replace

# Medians and trimmed means without sorting: the value of a rank, bit by bit, a few coordinates at a time.
#
# Measured (benchmarks/FINDINGS.md): XLA's sort on a CPU takes 6 to 17 times as long as one count of all values for
# each bit of their type, where what is counted stays in the cache.

_AT_ONCE = 2**14  # values whose counts stay in the cache of a core


def medians(x: Float[Array, "clients ..."], count: Scalar) -> Array:
    """The median of each coordinate's `count` smallest values, the mean of the middle two of an even number."""
    # Values have no NaN; of 0 and -0 either may be the median.
    return _of_columns(partial(_median, count=count), x)


def trimmed_means(x: Float[Array, "clients ..."], first: Scalar, last: Scalar) -> Array:
    """The mean of each coordinate's values from rank `first` to rank `last`, both from 0 and included; without NaN."""
    return _of_columns(partial(_trimmed_mean, first=first, last=last), x)


def of_rank(x: Float[Array, "clients ..."], rank: Scalar) -> Array:
    """Each coordinate's value of a rank, from 0, of values without NaN; of 0 and -0 it may be either."""
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


# The interface of a robust reduction, which combines a cohort's messages although some clients may be malicious.


class Reduction(ABC):
    """Base class of robust reductions, which combine a cohort's messages into one.

    Concrete classes are modules: values that fix no shape are leaves.

    Attributes:
        uses_weights: whether clients count by the method's weights, or all alike.
        condition: in words, what its guarantee asks of the number n of clients whose messages are used.
        fewest: the least n of which that is true; `Robust` leaves the model as it is in a round with fewer.
    """

    uses_weights: ClassVar[bool] = False
    condition: ClassVar[str] = "n >= 1"

    @property
    def fewest(self) -> Scalar:
        """The smallest number of messages that the reduction accepts; 1 by default."""
        return 1

    def __call__(self, messages: Any, weight: Array, used: Array) -> Any:
        """The reduced message; zeros if no message is used.

        Args:
            messages: leaves of shape (clients, ...); rows that are not used may hold anything, NaN included.
            weight: of each client, shape (clients,).
            used: booleans of shape (clients,).

        Returns:
            One message, leaves of shape (...).
        """
        clean = jax.tree.map(lambda x: jnp.where(column(used, x), x, 0), messages)
        reduced_message = self.reduce(clean, jnp.where(used, weight, 0), used)
        some = jnp.any(used)
        return jax.tree.map(lambda x, m: jnp.where(some, x, 0).astype(m.dtype), reduced_message, messages)

    @abstractmethod
    def reduce(self, messages: Any, weight: Array, used: Array) -> Any:
        """Reduce messages in which unused rows are zero and have weight 0; any value if no row is used.

        Args:
            messages: leaves of shape (clients, ...).
            weight: of each client, shape (clients,), 0 where it is not used.
            used: booleans of shape (clients,).

        Returns:
            One message, leaves of shape (...).
        """


class OfVectors(Reduction):
    """A reduction that weighs clients by the vector they send, and combines these vectors.

    The vector is the client update, the field `delta`, all its leaves as one; of a message without one it is
    all that is reduced by a mean. Everything else in the message (losses, norms, steps) is reduced by its
    median, whatever its field says: a client whose vector passes could otherwise lie in a scalar that a
    server optimiser steps by.
    """

    @abstractmethod
    def combine(
        self, vectors: Float[Array, "clients d"], weight: Array, used: Bool[Array, " clients"]
    ) -> Float[Array, " d"]:
        """One vector out of the clients'; rows that are not used are zeros and weigh nothing."""

    def reduce(self, messages: Any, weight: Array, used: Array) -> Any:
        leaves, structure = jax.tree.flatten(messages)
        marks = jax.tree.leaves(vector_of(messages))
        own = [x for x, mark in zip(leaves, marks, strict=True) if mark]
        parts = iter(split(self.combine(joined(own), weight, used), own))
        leaves_reduced = [
            next(parts) if mark else middle(x, used) for x, mark in zip(leaves, marks, strict=True)
        ]
        return structure.unflatten(leaves_reduced)


def joined(leaves: Sequence[Array]) -> Float[Array, "clients d"]:
    """Leaves of shape (clients, ...) as one vector a client."""
    return jnp.concatenate([x.reshape(len(x), -1) for x in leaves], axis=1)


def split(vector: Float[Array, " d"], leaves: Sequence[Array]) -> list[Array]:
    """A vector as leaves of these shapes without their first axis: what `joined` has put together."""
    ends = np.cumsum([x[0].size for x in leaves])[:-1]
    parts = jnp.split(vector, ends)
    return [part.reshape(x.shape[1:]) for part, x in zip(parts, leaves, strict=True)]


def vector_of(message: Any) -> Any:
    """Which leaves of a message are its vector, truths in a pytree of the same structure: see `OfVectors`."""
    marked, has_delta = _deltas(message)
    if has_delta:
        return marked
    return jax.tree.map(lambda by: by != "max", reductions(message))


def _deltas(message: Any) -> tuple[Any, bool]:
    """True at the leaves of fields called `delta`, at any depth, and whether there are any."""
    if not is_module(message):
        return jax.tree.map(lambda _: False, message), False
    parts = {}
    for f in dataclasses.fields(message):
        value = getattr(message, f.name)
        if f.name == "delta":
            parts[f.name] = (jax.tree.map(lambda _: True, value), True)
        elif not f.metadata.get("static"):
            parts[f.name] = _deltas(value)
    marked = replace(message, **{name: marks for name, (marks, _) in parts.items()})
    return marked, any(has_delta for _, has_delta in parts.values())


def middle(x: Array, used: Array) -> Array:
    """The median over the first axis of the rows that are used, the mean of the middle two of an even number."""
    return medians(jnp.where(column(used, x), x, jnp.inf), jnp.maximum(jnp.sum(used), 1))


def first(count: Scalar, score: Array, ties: Array, used: Array) -> Array:
    """Booleans (clients,): the so many rows used of the smallest scores, of equal ones those of smaller `ties`."""
    finite = jnp.minimum(score, jnp.finfo(score.dtype).max)
    order = jnp.lexsort((ties, jnp.where(used, finite, jnp.inf)))
    return (jnp.argsort(order) < count) & used


def column(used: Array, like: Array) -> Array:
    """Who is used, shape (clients,), in a shape that broadcasts against a leaf of shape (clients, ...)."""
    return used.reshape(-1, *(1,) * (like.ndim - 1))


def combination(weight: Array, vectors: Array) -> Array:
    """The sum of w_i v_i over the sum of w_i; zeros if no weight is left."""
    total = jnp.sum(weight)
    share = weight / jnp.where(total > 0, total, 1)
    return jnp.matmul(share.astype(vectors.dtype), vectors, precision=lax.Precision.HIGHEST)


def lengths(vectors: Array) -> Array:
    """|v_i|, shape (clients,); infinite where its square is."""
    return jnp.sqrt(jnp.sum(vectors * vectors, axis=1))


@module
class GeometricMedian(OfVectors):
    """Geometric median, by the smoothed Weiszfeld algorithm (RFA; Pillutla et al. 2022, Algorithm 2).

        v minimises  sum_i p_i |D_i - v|:      v <- sum_i b_i D_i / sum_i b_i,   b_i = p_i / max(nu, |D_i - v|)

    Weights are used: p_i is uniform or by examples, as the method says. It starts at the coordinate-wise median,
    where RFA's code starts at the mean, which one client can put as far away as it likes: from there a few
    iterations would not come back. Clients of less than half the weight, and fewer than half of all, cannot carry
    it off (breakdown point 1/2; Lopuhaä and Rousseeuw 1991): n >= 3 clients are needed, or no client is fewer than
    half.

    Attributes:
        iterations: of Weiszfeld, a fixed number (the paper does with 3); at least 1.
        smoothing: nu, > 0, in units of the client update (1e-6 in the paper).

    Raises:
        InvalidInput: a number out of its range.
    """

    uses_weights: ClassVar[bool] = True
    condition: ClassVar[str] = "n >= 3"
    iterations: int = integer(default=8)
    smoothing: Scalar = number(default=1e-6, above=0)

    @property
    def fewest(self) -> Scalar:
        # at least 3 messages: one of two is not a minority
        return 3

    def combine(self, vectors: Array, weight: Array, used: Array) -> Array:
        def closer(_: Any, v: Array) -> Array:
            near = weight / jnp.maximum(lengths(vectors - v), self.smoothing)
            return jnp.where(jnp.sum(near) > 0, combination(near, vectors), v)

        start = jnp.where(jnp.any(used), middle(vectors, used), 0)
        return lax.fori_loop(0, self.iterations, closer, start)


@module
class MultiKrum(OfVectors):
    """Multi-Krum (Blanchard et al. 2017): the mean of the `keep` vectors closest to their neighbours.

        score(i) = sum of |D_i - D_j|^2 over the n - f - 2 vectors D_j closest to D_i,   n clients used

    Weights are ignored: a client could choose its own. Needed are 2f + 2 < n (their condition) and keep <= n - f:
    then no vector that is averaged lies farther from one of the honest ones than sqrt(n - f - 2) times the largest
    distance of two of these; of more vectors one is an attacker's, whatever it sends. Two clients that are
    each other's one neighbour have equal scores: the shorter vector comes first, so that no order of clients
    matters. Distances are taken one client at a time: n^2 d work, n d memory.

    Attributes:
        attackers: f, how many clients of a cohort may attack, at least 0; below (n - 2) / 2.
        keep: how many are averaged, at least 1, at most n - f.

    Raises:
        InvalidInput: a number that is not whole or out of its range.
    """

    condition: ClassVar[str] = "2 attackers + 2 < n and keep <= n - attackers"
    attackers: Scalar = number(at_least=0, whole=True)
    keep: Scalar = number(at_least=1, whole=True)

    @property
    def fewest(self) -> Scalar:
        # at least max(2f + 3, keep + f) messages
        return jnp.maximum(2 * self.attackers + 3, self.keep + self.attackers)

    def combine(self, vectors: Array, weight: Array, used: Array) -> Array:
        chosen = first(self.keep, krum_scores(vectors, used, self.attackers), lengths(vectors), used)
        return combination(chosen.astype(vectors.dtype), vectors)


@module
class Krum(OfVectors):
    """Krum (Blanchard et al. 2017): the vector closest to its neighbours; `MultiKrum` with keep = 1.

    Needed is 2f + 2 < n (their condition): see `MultiKrum` for what then holds.

    Attributes:
        attackers: f, how many clients of a cohort may attack, at least 0; below (n - 2) / 2.

    Raises:
        InvalidInput: a number that is not whole or out of its range.
    """

    condition: ClassVar[str] = "2 attackers + 2 < n"
    attackers: Scalar = number(at_least=0, whole=True)

    @property
    def fewest(self) -> Scalar:
        # at least 2f + 3 messages
        return 2 * self.attackers + 3

    def combine(self, vectors: Array, weight: Array, used: Array) -> Array:
        return MultiKrum(self.attackers, 1).combine(vectors, weight, used)


def krum_scores(vectors: Array, used: Array, attackers: Scalar) -> Array:
    """Sums of squared distances to the n - f - 2 nearest others, shape (clients,); those not used do not count."""
    count, numbers = jnp.sum(used), jnp.arange(len(used))

    def to_others(i: Array) -> Array:  # differences, not products: no digit cancels
        squares = jnp.sum((vectors - vectors[i]) ** 2, axis=1)
        return jnp.sort(jnp.where(used & (numbers != i), squares, jnp.inf))

    nearest = lax.map(to_others, numbers)
    neighbours = jnp.maximum(count - attackers - 2, 1)
    return jnp.sum(jnp.where(numbers < neighbours, nearest, 0), axis=1)


@module
class NormClipping(OfVectors):
    """Norm clipping: the mean of updates clipped to a norm, sum_i p_i D_i min(1, bound / |D_i|).

    Weights are used, as the method says. The bound limits how far a client can pull, p_i bound, not where to: many
    attackers still carry the mean off, slowly. Of a number given as bound that is true of every n; the median length
    is the others' where fewer than half attack, so n >= 3 clients are needed.

    Attributes:
        bound: the largest length, > 0, in units of the client update; None (or "median") is the median length of
            the cohort, which needs no tuning.

    Raises:
        InvalidInput: a bound that is not positive.
    """

    uses_weights: ClassVar[bool] = True
    condition: ClassVar[str] = "n >= 3, or a number as bound"
    bound: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.bound, str):
            if self.bound != "median":
                raise InvalidInput(f"bound = {self.bound!r} must be a number or 'median'")
            object.__setattr__(self, "bound", None)
        check_range("bound", self.bound, above=0, optional=True)

    @property
    def fewest(self) -> Scalar:
        # at least 3 messages if the bound is the median norm, 1 if it is a number
        return 3 if self.bound is None else 1

    def combine(self, vectors: Array, weight: Array, used: Array) -> Array:
        length = lengths(vectors)
        bound = middle(length, used) if self.bound is None else self.bound
        factor = jnp.minimum(1, bound / jnp.where(length > 0, length, 1))
        factor = jnp.where(length > 0, factor, 1).astype(vectors.dtype)
        return combination(weight, vectors * factor[:, None])
