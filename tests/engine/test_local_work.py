"""Local work: how many steps a client makes, over which rows, in which type."""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.sampling import Uniform, _first_different, choose, shuffled, true_first
from fedsolve.data.federated import FederatedData
from fedsolve.engine.compute.clients import client_oracle, pack
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import prepare as engine_prepare
from harness import Listed, Softmax, cross_entropy, default_start, engine, make_clients, make_task, prepare

DATA = FederatedData.from_clients(make_clients())


def packed(data=DATA, **local):
    local = {"batch_size": 4, "epochs": None, "local_steps": None} | local
    return pack(data, cross_entropy, jnp.float32, **local)


def test_epochs():
    """Batches of 4 from 7, 3, 12, 5, 9 rows: 2, 1, 3, 2, 3 per pass; two epochs twice as many."""
    clients, work = packed(epochs=2)
    np.testing.assert_array_equal(clients.steps, [4, 2, 6, 4, 6])
    assert (work.max_steps, work.passes, work.rows, work.even) == (6, 2, 12, False)


def test_steps():
    """5 steps for everyone; 2 batches per pass need 3 passes, 3 need 2; the client of one batch needs no
    order.
    """
    clients, work = packed(local_steps=5)
    np.testing.assert_array_equal(clients.steps, [5] * 5)
    assert (work.max_steps, work.passes) == (5, 3)


def test_full_batch():
    """One batch of everything (the largest client's 12 rows): one step per epoch, nothing is shuffled."""
    clients, work = packed(batch_size=None, epochs=3)
    np.testing.assert_array_equal(clients.steps, [3] * 5)
    assert (work.batch_size, work.passes, work.even) == (12, 0, False)


def test_even_clients_need_no_mask():
    """8 rows each in batches of 4 are even; in batches of 3 the last one is short, so they are not."""
    same = FederatedData.from_clients(make_clients((8, 8)))
    assert packed(same, epochs=1)[1].even
    assert not packed(same, epochs=1, batch_size=3)[1].even


def test_more_epochs_than_there_are_different_orders():
    """1,100 epochs keep 1,024 orders, and epoch 1,030 has the one of epoch 6, which it has always had."""
    key, client = jax.random.key(5), 2
    clients, work = packed(epochs=1100)
    model = jax.tree.map(jnp.float32, Softmax.of(default_start()))

    @jax.jit
    def found():
        oracle = client_oracle(work, clients, key, client, work.max_steps)
        losses = [oracle.loss(model, 3 * epoch) for epoch in (1030, 6, 5)]  # 12 rows are 3 batches an epoch
        return oracle.order, shuffled(key, client, 1030, 12, 12, 12), losses

    orders, order, (late, early, other) = found()
    assert orders.shape == (1024, 12)
    np.testing.assert_array_equal(order, orders[6])
    assert late == early != other


@pytest.mark.parametrize("given", [{"epochs": 10**9}, {"local_steps": 10**30}, {"epochs": 4_000_000}])
def test_more_local_work_than_a_round_may_hold(given):
    """The client of 12 rows has 3 batches an epoch: 4 million epochs are 12 million steps."""
    with pytest.raises(
        fs.InvalidInput, match=r"local steps of a client in one round are more than 10,000,000"
    ):
        packed(**given)


@pytest.mark.parametrize(("every", "capacity"), [(2, 2), (7, 7), (2_000_000_000, 7)])
def test_logs_are_no_longer_than_the_run(every, capacity):
    """Rows of the logs of one compiled call: an interval between evaluations, at most all 7 rounds."""
    options = RunOptions(rounds=7, sampling=Uniform(2), eval_every=every)
    setup = engine_prepare(fs.FedAvg(), make_task(make_clients()), options)
    assert setup.program.capacity == capacity


@pytest.mark.parametrize(
    "bad",
    [
        {"epochs": 0},
        {"local_steps": -1},
        {"epochs": 1.5},
        {"epochs": 1, "local_steps": 1},
        {},
        {"epochs": True},
    ],
)
def test_work_that_makes_no_sense(bad):
    with pytest.raises(fs.InvalidInput):
        packed(**bad)


def test_every_row_counts_once_in_an_epoch():
    """One epoch of plain sums: a loss linear in the model has the gradient mean(x) of its batch.

    With lr 1 and the batch mean weighted by its size, the displacement over a pass is minus the sum over
    batches of
    batch means: for client 0 (7 rows in 4 + 3) of rows r it is -(mean of 4 rows + mean of the other 3).
    """
    x = np.arange(7.0)[:, None] ** 2
    data = FederatedData.from_clients([x])
    task = fs.Task("sum", lambda key: np.zeros(1), linear, data, batch_size=4)
    with jax.enable_x64(True):
        setup = prepare(fs.FedAvg(1.0), task, Listed.of([[0]]))
        state, _ = setup.advance(setup.state, 1)
        moved = -float(state.server.params[0])
    halves = [x[list(c)].mean() + np.delete(x, list(c)).mean() for c in combinations(range(7), 4)]
    assert np.abs(np.array(halves) - moved).min() < 1e-12


def linear(params, batch):
    return jnp.mean(batch @ params)


def test_the_start_of_a_float64_run_keeps_its_digits():
    """1/3 given as float64 outside a float64 run is 1/3 in it, not its float32 neighbour .333333343."""
    task = fs.Task.from_arrays(linear, np.full(1, 1 / 3), [np.ones((2, 1))])
    with jax.enable_x64(True):
        setup = prepare(fs.FedAvg(1.0), task, Listed.of([[0]]))
        assert float(setup.algorithm.export(setup.state.server)[0]) == 1 / 3


@pytest.mark.full
def test_integers_stay_as_narrow_as_they_are():
    """Bytes of pictures, in a run of either type; the loss makes floats of a minibatch."""
    clients = [np.arange(12 * n, dtype=np.uint8).reshape(n, 12) for n in (3, 2)]
    task = fs.Task.from_arrays(
        lambda w, x: jnp.mean((x.astype(w.dtype) / 255 - w) ** 2, axis=1),
        np.zeros(12, np.float32),
        clients,
        batch_size=2,
    )
    for dtype in ("float32", "float64"):
        with jax.enable_x64(dtype == "float64"):
            setup = engine_prepare(fs.FedAvg(6.0), task, RunOptions(rounds=1, dtype=dtype, batch_size="full"))
            assert setup.packed.examples.dtype == jnp.uint8
            state, _ = setup.advance(setup.state, 1)
            np.testing.assert_allclose(state.server.params, np.concatenate(clients).mean(0) / 255, rtol=1e-6)


# Random orders of a client's rows: uniform, fresh for each client, pass and round, and blind to padding.

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
