"""What a loss draws: the key of a local step, against rounds in NumPy whose masks are drawn with explicit keys.

The loss is a linear regression whose inputs are dropped with chance 1/2, so that a step on a minibatch is plain
regression on inputs that are partly 0. With key None, in evaluation and on all examples, nothing is dropped.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.engine.compute.clients import client_oracle
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import prepare as engine_prepare
from harness import Listed, crossed, engine

FEATURES, BATCH, LR = 4, 4, 0.05
EVERYONE = Listed.of([[0, 1, 2, 3, 4], [2, 3, 4], [4, 0, 1]])
SIZES = {"uneven": (7, 3, 12, 5, 9), "even": (8,) * 5, "one batch": (4, 3, 4, 2, 4)}


def drop(x, key):
    return x if key is None else jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)


def squares(w, batch, key):
    return (drop(batch.x, key) @ w - batch.y) ** 2


def per_example(w, batch, key=None):
    return squares(w, batch, key)


def weighted(w, batch, key, weights=None):
    own = squares(w, batch, key)
    return jnp.mean(own) if weights is None else jnp.sum(weights * own) / jnp.maximum(jnp.sum(weights), 1)


def weighted_examples(w, batch, *, key, weights):
    """A loss that looks at which examples count, as batch normalisation does, and gives each example's own value."""
    return (
        squares(w, batch, key) if weights is None else jnp.where(weights > 0, squares(w, batch, key), jnp.nan)
    )


def plain(w, batch, key):
    return jnp.mean(squares(w, batch, key))


class Model:
    def __call__(self, params, x, key=None):
        return drop(x, key) @ params


LOSSES = {
    "per example": per_example,
    "weighted": weighted,
    "weighted examples": weighted_examples,
    "plain": plain,
    "built in": fs.tasks.SquaredError(Model()),
}


def make(loss, sizes):
    rng = np.random.default_rng(3)
    clients = [fs.Examples(rng.normal(size=(n, FEATURES)), rng.normal(size=n)) for n in sizes]
    start = rng.normal(size=FEATURES)
    return clients, fs.Task.from_arrays(loss, start, clients, batch_size=BATCH, epochs=2, name="dropped")


def step_key(t, client, step):
    key = jax.random.fold_in(jax.random.split(jax.random.key(0, impl="threefry2x32"))[1], t)
    own = jax.random.fold_in(jax.random.fold_in(key, 0xC11E0000), client)
    return jax.random.fold_in(jax.random.fold_in(own, 0x57E90000), step)


def inputs(x, key, alone):
    """Inputs with what is dropped; `alone`: each example by itself, with a key that follows from its row."""
    if not alone:
        return x * np.asarray(jax.random.bernoulli(key, 0.5, x.shape))
    rows = [jax.random.bernoulli(jax.random.fold_in(key, i), 0.5, (1, FEATURES)) for i in range(len(x))]
    return x * np.concatenate([np.asarray(row) for row in rows])


def minibatches(run, clients, t, i, alone):
    """The examples of client i's local steps in round t, dropped."""
    n = len(clients[i].y)
    per_epoch = -(-n // BATCH)
    for k in range(2 * per_epoch):
        rows = np.arange(n)
        if run.orders[t] is not None:
            rows = run.orders[t][i][k // per_epoch][:n][k % per_epoch * BATCH :][:BATCH]
        yield inputs(clients[i].x[rows], step_key(t, i, k), alone), clients[i].y[rows]


def sgd(w, batches):
    for x, y in batches:
        w = w - LR * 2 * x.T @ (x @ w - y) / len(y)
    return w


def armijo(w, batches):
    """Steps 1, 0.9, 0.81, ... until the loss falls by a tenth of the linear decrease, all on one draw."""
    for x, y in batches:
        g, eta = 2 * x.T @ (x @ w - y) / len(y), 1.0
        while np.mean((x @ (w - eta * g) - y) ** 2) > np.mean((x @ w - y) ** 2) - 0.1 * eta * g @ g:
            eta *= 0.9
        w = w - eta * g
    return w


def check(loss, sizes, algorithm, local, alone=False, **options):
    """Three rounds: the engine's models, and those of local work in NumPy from the model before."""
    clients, task = make(LOSSES[loss], SIZES[sizes])
    run = engine(algorithm, task, EVERYONE, rounds=3, **options)
    with jax.enable_x64(True):
        for t, cohort in enumerate(run.cohorts):
            w = run.iterates[t]
            ends = [local(w, minibatches(run, clients, t, i, alone)) for i in cohort]
            np.testing.assert_allclose(run.iterates[t + 1], np.mean(ends, axis=0), rtol=1e-9)


FEDAVG = fs.FedAvg(LR, weighting="uniform")


@pytest.mark.full_rows("plain")
@pytest.mark.parametrize("loss", crossed(LOSSES, ["weighted", "plain"]))
def test_uneven_clients(loss):
    check(loss, "uneven", FEDAVG, sgd, alone=loss == "plain", chunk=1)


PADDED = [("per example", "uneven", 3), ("plain", "even", 1), ("weighted", "one batch", 1)]


@pytest.mark.parametrize(("loss", "sizes", "chunk"), crossed(PADDED, PADDED[:1]))
def test_padding_and_chunks(loss, sizes, chunk):
    """Clients side by side; without any padding, where a plain mean sees its batch at once; one batch a client."""
    check(loss, sizes, FEDAVG, sgd, chunk=chunk)


@pytest.mark.full
def test_all_trials_of_a_line_search_see_one_draw():
    check("per example", "uneven", fs.FedLiLS(), armijo, chunk=1)


@pytest.mark.full
def test_evaluation_and_all_examples_draw_nothing():
    clients, task = make(per_example, SIZES["uneven"])
    result = fs.run(FEDAVG, task, rounds=1, dtype="float64")
    whole = [np.mean((c.x @ np.asarray(result.params) - c.y) ** 2) for c in clients]
    assert result.metrics["train_loss"][-1] == pytest.approx(
        np.average(whole, weights=SIZES["uneven"]), rel=1e-12
    )
    assert result.metrics["client_loss_worst"][-1] == pytest.approx(max(whole), rel=1e-12)
    oracle = JaxOracle(plain, np.zeros(FEATURES), clients[2], batch_size=4, epochs=1)
    with jax.enable_x64(True):
        full = oracle.begin(jax.random.key(1), 0, jnp.float64).full(result.params)[0]
    assert float(full) == pytest.approx(whole[2], rel=1e-12)


def test_a_deployed_client_draws_the_same():
    """Also where its own noise has a secret key: dropout is no secret."""
    _, task = make(per_example, SIZES["uneven"])
    options = RunOptions(rounds=1, sampling=EVERYONE, chunk=1)
    setup, key, w = engine_prepare(FEDAVG, task, options), jax.random.key(9), jnp.ones(FEATURES)
    theirs = client_oracle(setup.program.work, setup.packed, key, jnp.int32(3), setup.packed.steps[3])
    ours = JaxOracle.of_task(task, 3).begin(key, 3, jnp.float32, noise=jax.random.key(77))
    look = jax.jit(lambda oracle: [(oracle(w, k), oracle.loss(w, k)) for k in (0, 1, 2)])
    for a, b in zip(jax.tree.leaves(look(ours)), jax.tree.leaves(look(theirs)), strict=True):
        assert a.tobytes() == b.tobytes()
    ((first, _), again), ((second, _), _), _ = look(theirs)
    assert first == again != second
