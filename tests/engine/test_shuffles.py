"""Random orders of a client's rows: uniform, fresh for each client, pass and round, and blind to padding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.sampling import Uniform, _first_different, choose, shuffled, true_first
from harness import engine, make_clients, make_task

PATHS = pytest.mark.parametrize("capacity", [4, 12, 300], ids=["exact", "rank", "sort"])


def orders(capacity, count, take, keys=6000):
    each = jax.vmap(lambda k: shuffled(k, 2, 1, capacity, count, take))
    return np.asarray(jax.jit(each)(jax.random.split(jax.random.key(3), keys)))


@pytest.mark.full_rows("sort")
@PATHS
def test_uniform_over_all_orders(capacity):
    """4 rows have 24 orders: 6000 draws give 250 of each, within five deviations sqrt(6000/24 x 23/24) =
    15.5.
    """
    found = orders(capacity, 4, 4)
    assert (np.sort(found, axis=1) == np.arange(4)).all()
    counts = np.unique(found @ np.array([64, 16, 4, 1]), return_counts=True)[1]
    assert len(counts) == 24
    assert (np.abs(counts - 250) <= 78).all()


def test_padding_does_not_change_the_order():
    """10 rows in a buffer of 10, 40, 256 (ranks) or 257, 1000 (sort): the same order."""
    want = orders(10, 10, 10, 50)
    for capacity in (40, 256, 257, 1000):
        np.testing.assert_array_equal(orders(capacity, 10, 10, 50), want)


@pytest.mark.full
def test_taking_less_cuts_the_order():
    """The first 3 of 10 places do not depend on how many are asked for."""
    for capacity in (12, 300):
        np.testing.assert_array_equal(orders(capacity, 10, 3, 50), orders(capacity, 10, 10, 50)[:, :3])


def test_clients_and_epochs_have_their_own_orders():
    """8 rows, 40 clients x 3 epochs under one key: all orders differ (two of 120 agree with chance .16)."""
    key = jax.random.key(0)
    clients, epochs = (a.ravel() for a in jnp.meshgrid(jnp.arange(40), jnp.arange(3)))
    found = jax.vmap(lambda c, e: shuffled(key, c, e, 8, 8, 8))(clients, epochs)
    assert len(np.unique(np.asarray(found), axis=0)) == 120


@pytest.mark.full
def test_rounds_and_seeds_have_their_own_orders():
    """Rounds, passes, clients and seeds of a run: no order of the 12 rows of client 2 comes twice."""
    task = make_task(make_clients())
    seen = [engine(fs.FedAvg(), task, Uniform(5), 3, seed=s).orders[:, 2] for s in (0, 1)]
    rows = np.concatenate([np.reshape(s, (-1, 12)) for s in seen])
    assert len(np.unique(rows, axis=0)) == len(rows) == 2 * 3 * 2


@pytest.mark.parametrize("draw", [choose, _first_different])
def test_choose_is_a_uniform_ordered_subset(draw):
    """2 of 4 in order: 12 outcomes, 6000 draws, 500 of each within five deviations 21.4."""
    keys = jax.random.split(jax.random.key(5), 6000)
    found = np.asarray(jax.jit(jax.vmap(lambda k: draw(k, 4, 2)))(keys))
    assert (found[:, 0] != found[:, 1]).all()
    counts = np.unique(found @ np.array([4, 1]), return_counts=True)[1]
    assert len(counts) == 12
    assert (np.abs(counts - 500) <= 107).all()


@pytest.mark.gate("33554432-1")
@pytest.mark.parametrize(("population", "size"), [(4097, 256), (10**6, 100), (2**30 + 1, 40), (2**25, 1)])
def test_few_of_many_are_the_first_different_ones_of_a_sequence(population, size):
    """By hand: words from the last multiple of the population on are skipped, a quarter of them at 2^30 + 1."""
    key = jax.random.key(11)
    words = np.asarray(jax.random.bits(key, (size + size // 4 + 64,), jnp.uint32)).astype(object)
    fitting = [int(w) % population for w in words if w < 2**32 // population * population]
    assert (population == 2**30 + 1) == (len(fitting) < len(words))
    np.testing.assert_array_equal(choose(key, population, size), list(dict.fromkeys(fitting))[:size])


def test_populations_of_4096_keep_the_cohorts_that_they_have_always_had():
    """The 3 largest of 30 random bits each: results that were kept stay those of their seeds."""
    key = jax.random.key(12)
    bits = np.asarray(jax.random.bits(key, (4096,), jnp.uint32)) >> 2
    np.testing.assert_array_equal(choose(key, 4096, 3), np.argsort(-bits.astype(np.int64))[:3])


def test_true_first():
    """True places, then the others, each in order."""
    flags = np.random.default_rng(0).random((50, 9)) < 0.4
    found = jax.jit(jax.vmap(true_first))(flags)
    np.testing.assert_array_equal(found, np.argsort(~flags, axis=1, kind="stable"))
