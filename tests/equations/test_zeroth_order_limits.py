"""Zeroth-order methods at their limits: many directions, small mu, one step; what they send, and what they refuse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from equations.cases import SOME
from fedsolve import wire
from fedsolve.core import introspect
from fedsolve.methods.zeroth_order import gaussian, key_of
from fedsolve.tasks import Encoder
from fedsolve.tasks.ready.newsgroups import fine_tuning
from harness import crossed, make_clients, make_task
from verbs_harness import play

FROZEN = ("words", "positions", "segment", "norm.*", "layers.*")


def test_a_run_says_who_was_left_out():
    task = make_task(make_clients(), local_steps=1)
    run = fs.run(fs.DeComFL(history=1), task, rounds=9, sampling=SOME, progress=False)
    assert "missed more than `history` rounds" in run.history.notes[-1]


def half_square(w, batch):
    """<w, A w> / 2 with the batch's A: of one client a quadratic."""
    return jnp.mean(jnp.einsum("i,nij,j->n", w, batch.x, w)) / 2


def on_a_quadratic(method, rounds=1):
    """A, the start and the iterates of one client that has a quadratic."""
    root = np.random.default_rng(4).standard_normal((6, 6)) / 2
    start, a = np.linspace(-1, 1, 6), root @ root.T
    task = fs.Task.from_arrays(
        half_square, start, [fs.Examples(a[None], np.zeros(1))], batch_size=1, local_steps=1
    )
    return a, start, play(method, task, fs.sampling.Trace(jnp.ones((1, 1), bool), 1), rounds).iterates


MANY = 20_000


@pytest.mark.parametrize("method", crossed([fs.FedZO, fs.DeComFL], [fs.FedZO]))
def test_many_directions_are_the_gradient(method):
    """The covariance of (1 / P) sum <z, g> z around g is at most (|g|^2 + g g') / P, with gaussian z."""
    given = {"most_steps": 1} if method is fs.DeComFL else {}
    a, start, iterates = on_a_quadratic(method(0.1, directions=MANY, mu=1e-4, **given))
    gradient, estimate = a @ start, (iterates[0] - iterates[1]) / 0.1
    spread = np.sqrt(7 / MANY) * np.linalg.norm(gradient)
    assert 0 < np.linalg.norm(estimate - gradient) < 3 * spread < np.linalg.norm(gradient) / 10


def test_one_step_is_zeroth_order_sgd_for_any_mu():
    """Of a quadratic the difference of two sides is exact: w - eta <z, A w> z, round after round."""
    for method, direction in (
        (decom_alone, lambda t: gaussian_of(2, t, 0, 0)),
        (kseed_alone, lambda t: gaussian_of(0, 0)),
    ):
        for mu in (1e-3, 1.0):
            a, w, iterates = on_a_quadratic(method(mu), 4)
            for t, after in enumerate(iterates[1:]):
                z = direction(t)
                w = w - 0.1 * (z @ a @ w) * z
                np.testing.assert_allclose(after, w, rtol=1e-10)


def test_small_mu_gives_the_slope():
    """Of one side the error is (mu / 2) <v, A v> in each slope: it falls with mu."""
    a, w, _ = on_a_quadratic(fs.FedZO(0.1))
    z = gaussian_of(3, 0, 0, 0, 0)
    v = z / np.linalg.norm(z)
    for mu in (1e-1, 1e-2, 1e-3):
        iterates = on_a_quadratic(fs.FedZO(0.1, mu=mu))[2]
        error = iterates[1] - (w - 0.1 * 6 * (v @ a @ w) * v)
        np.testing.assert_allclose(error, -0.1 * 6 * mu / 2 * (v @ a @ v) * v, rtol=1e-8)


def decom_alone(mu):
    return fs.DeComFL(0.1, mu=mu, most_steps=1)


def kseed_alone(mu):
    return fs.FedKSeed(0.1, seeds=1, mu=mu, most_steps=1)


def gaussian_of(*numbers):
    """A direction of six numbers."""
    with jax.enable_x64(True):
        return np.asarray(gaussian(key_of(*numbers), jnp.zeros(6)))


@pytest.mark.full
def test_the_head_of_a_frozen_encoder():
    """A message of 24 bytes whatever is frozen; rebuilt or sent, the model is the same up to rounding."""
    rng, model = np.random.default_rng(0), Encoder(5, 40, 8, 16, 1, 2, 32)
    clients = [fs.Examples(rng.integers(1, 40, (9, 8)), rng.integers(0, 5, 9)) for _ in range(4)]
    data = fs.FederatedData.from_clients(clients)
    task = fine_tuning(model, model.init(jax.random.key(0)), data, clients[0], "all", freeze=FROZEN)
    options = {"rounds": 60, "clients_per_round": 2, "local_steps": 5, "eval_every": 60, "progress": False}
    runs = [fs.run(fs.DeComFL(0.01, down=down), task, **options) for down in ("scalars", "model")]
    assert runs[0].history.total("bytes_up") == 60 * 2 * (5 + 1) * 4
    assert runs[0].final("train_loss") < np.log(5)
    for ours, theirs in zip(*(jax.tree.leaves(run.params) for run in runs), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("size", [3, 3000])
def test_bytes(size):
    """Of any model: j and g for each step, or the slopes and whether the client follows; A or a history down.

    FedKSeed's clients keep nothing, DeComFL's the model and how often it had moved.
    """
    params = np.zeros(size, np.float32)
    for method, up, down, kept in (
        (fs.FedKSeed(most_steps=10), 10 * (2 + 4), 4096 * 4 + 8 + 4, 0),
        (
            fs.DeComFL(most_steps=10, directions=2, history=50),
            10 * 2 * 4 + 4,
            50 * 10 * 2 * 4 + 8 + 4 + 4,
            size + 1,
        ),
        (fs.DeComFL(most_steps=10, down="model"), 10 * 4, 4 * size + 4 + 4, 0),
    ):
        sent = introspect.broadcast_shape(method, params, 5)
        client = jax.eval_shape(method.enrol, sent, params)
        assert wire.size(sent) == down
        assert sum(x.size for x in jax.tree.leaves(client)) == kept
        assert wire.size(introspect.message_shape(method, sent, client)) == up


def test_refusals():
    """What would be computed wrongly is refused in a line."""
    uneven, alike = make_task(make_clients()), make_task(make_clients(), local_steps=3)
    with pytest.raises(fs.InvalidInput, match="DeComFL sends slopes for each local step: set most_steps"):
        fs.run(fs.DeComFL(), uneven, rounds=1, progress=False)
    with pytest.raises(fs.InvalidInput, match=r"FedKSeed\(most_steps=2\): local steps are 3"):
        fs.run(fs.FedKSeed(most_steps=2), alike, rounds=1, progress=False)
    with pytest.raises(fs.InvalidInput, match="inside a wrapper give it down='model'"):
        fs.run(fs.Proximal(fs.DeComFL(), 0.1), alike, rounds=1, progress=False)
    with pytest.raises(fs.InvalidInput, match="down = 'dense' must be 'scalars' or 'model'"):
        fs.FedKSeed(down="dense")
    with pytest.raises(fs.InvalidInput, match="history = 0 must be an integer of at least 1"):
        fs.DeComFL(history=0)
    with pytest.raises(fs.InvalidInput, match="mu = 0"):
        fs.FedZO(mu=0.0)
