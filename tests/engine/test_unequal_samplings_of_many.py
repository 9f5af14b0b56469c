"""Weighted and available clients of a large population: the law of drawing one by one, at the cost of a cohort."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.test_samplings import cohorts_are_distinct, near, near_chi_square
from fedsolve.core.sampling import Trace, Weighted, _client_of, bounds_of
from harness import crossed

CLIENTS, DRAWS = 5000, 6000


def draw(sampling, rounds=DRAWS):
    """ids and present of many rounds, one after another, so that the rest is drawn only where it must be."""
    keys, numbers = jax.random.split(jax.random.key(3), rounds), jnp.arange(rounds, dtype=jnp.int32)
    one = lambda given: sampling.draw(*given, CLIENTS)  # noqa: E731
    ids, present = jax.jit(lambda *given: jax.lax.map(one, given))(keys, numbers)
    cohorts_are_distinct(np.asarray(ids), np.asarray(present))
    return np.asarray(ids), np.asarray(present)


def test_weights_one_by_one():
    """Weights 1, 2, 4 and 9 in turn: the first two as P(a, b) = W_a / W (W_b - w_a [a = b]) / (W - w_a),
    and of the four every client as often as its fellows, those without weight never.
    """
    kinds, weights = np.arange(CLIENTS) % 5, np.array([1.0, 2, 4, 9, 0])
    ids, present = draw(Weighted(weights[kinds], 4))
    assert present.all()
    both, total, one = 1000 * weights[:4], 1000 * weights.sum(), weights[:4]
    law = both[:, None] / total * (both - np.diag(one)) / (total - one[:, None])
    pairs = np.zeros((5, 5))
    np.add.at(pairs, tuple(kinds[ids[:, :2]].T), 1)
    near_chi_square(pairs[:4, :4], law * len(ids))
    times = np.bincount(ids.ravel(), minlength=CLIENTS).reshape(-1, 5)
    assert not times[:, 4].any()
    near_chi_square(times[:, 3], times[:, 3].mean())


@pytest.mark.full
def test_few_clients_with_most_of_the_weight():
    """Three weigh 10^9 times as much as others: they come first, each order as often. Of who is left client 900 weighs
    as much as all 4,996 together: it is next with chance 1/2, after one of them with 1/4 x 4,996 / 4,995.5.
    """
    weights = np.ones(CLIENTS)
    weights[[7, 70, 700]], weights[900] = 1e9, CLIENTS - 4
    ids, _ = draw(Weighted(weights, 5), 1000)
    assert (np.sort(ids[:, :3], axis=1) == [7, 70, 700]).all()
    near_chi_square(np.unique(ids[:, :3], axis=0, return_counts=True)[1], 1000 / 6)
    near((ids[:, 3:] == 900).mean(axis=0), [0.5, 0.25], 1000)
    others = np.bincount(ids[:, 3][ids[:, 3] != 900] // 500, minlength=10)
    near_chi_square(others, others.mean())


def test_the_client_of_a_word():
    """Of words around each bound: the first client whose bound, as a whole number, lies above."""
    weights = np.array([0.0, 3, 1, 0, 5, 1e-12, 2, 0])
    bounds = bounds_of(weights)
    whole = [(int(a) << 32) + int(b) for a, b in bounds.T]
    words = [w for b in whole for w in (b - 1, b, b + 1) if w >= 0] + [2**64 - 1]
    high, low = np.array([divmod(w, 2**32) for w in words], np.uint32).T
    want = [next((i for i, b in enumerate(whole) if w < b), len(weights)) for w in words]
    np.testing.assert_array_equal(_client_of(high, low, bounds), want)
    share = [(b - a) / 2**64 for a, b in pairwise([0, *whole])]
    np.testing.assert_allclose(share, weights / weights.sum(), rtol=2e-6)


def test_those_that_a_trace_shows():
    """At most 3 of 3,000, of 40, of the first 2, and of nobody: each of those there as often, and no other."""
    trace = np.zeros((4, CLIENTS), bool)
    trace[0, 1000:4000], trace[1, 4960:], trace[2, :2] = True, True, True
    ids, present = draw(Trace(trace, 3))
    for row, here in enumerate((3, 3, 2, 0)):
        assert (present[row::4].sum(axis=1) == here).all()
        times = np.bincount(ids[row::4][present[row::4]], minlength=CLIENTS)
        assert not times[~trace[row]].any()
        if here == 3:
            near_chi_square(times[trace[row]], times[trace[row]].mean())
            first = np.bincount(ids[row::4, 0], minlength=CLIENTS)[trace[row]]
            near_chi_square(first, first.mean())


@pytest.mark.full
@pytest.mark.parametrize("sampling", crossed([Weighted, Trace], [Weighted]))
def test_the_same_cohort_wherever_it_is_drawn(sampling):
    """Operation by operation, compiled, with types of 64 bits, and under `vmap`."""
    given = np.arange(1, CLIENTS + 1) ** 0.5 if sampling is Weighted else np.ones((2, CLIENTS), bool)
    one = lambda key: sampling(given, 20).draw(key, jnp.int32(1), CLIENTS)[0]  # noqa: E731
    key = jax.random.key(4)
    want = np.asarray(one(key))
    np.testing.assert_array_equal(jax.jit(one)(key), want)
    np.testing.assert_array_equal(jax.jit(jax.vmap(one))(key[None])[0], want)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.jit(one)(key), want)
