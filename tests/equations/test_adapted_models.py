"""pFedMe and Per-FedAvg against transcripts of Dinh et al. 2020 and Fallah et al. 2020, and their limits."""

from __future__ import annotations

import numpy as np
import pytest

import fedsolve as fs
from equations.cases import EVERY, SOME, displacement_error, federation, flat
from equations.transcript import LocalSGD, fedopt, shares
from harness import engine, make_clients, make_task
from verbs_harness import play

CLOSE = 1e-11


def rounds(fed, w, weighting, server_lr, one):
    """Models averaged over each cohort, personal ones kept; `one(t, i, w)` gives a last iterate and a model to keep."""
    own, iterates = np.tile(w, (len(fed.clients), 1)), [w]
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            found = [one(t, i, w) for i in cohort]
            mean = shares(fed, cohort, weighting) @ np.stack([y - w for y, _ in found])
            for i, (_, v) in zip(cohort, found, strict=True):
                own[i] = v
            w = w + server_lr * mean
        iterates.append(w)
    return np.stack(iterates), own


def check(algorithm, transcript, sampling, by=play, rounds=10):
    """Every model of the server, and every client's own at the end."""
    clients = make_clients()
    run = by(algorithm, make_task(clients), sampling, rounds)
    start = run.iterates[0]
    iterates, own = transcript(federation(run, clients), start)
    assert displacement_error(run.iterates[1:], iterates[1:], start) < CLOSE
    found = run.state.clients.personal
    got = np.stack([flat([found.weight[i], found.bias[i]]) for i in range(len(clients))])
    np.testing.assert_allclose(got, own, rtol=0, atol=CLOSE)
    assert np.abs(own - iterates[-1]).max() > 0.01


def pfedme(fed, w, lr, lam, own_lr, passes, server_lr):
    """Algorithm 1, with theta from `passes` gradient steps that go on from the last theta, as in the authors' code."""

    def one(t, i, w):
        local, theta = w.copy(), w.copy()
        for rows in fed.minibatches(t, i):
            for _ in range(passes):
                theta = theta - own_lr * (fed.gradient(i, theta, rows) + lam * (theta - local))
            local = local - lr * lam * (local - theta)
        return local, theta

    return rounds(fed, w, "uniform", server_lr, one)


@EVERY
def test_pfedme(sampling):
    algorithm = fs.pFedMe(0.3, lam=2.0, personal_lr=0.2, personal_steps=3, server_lr=1.5)
    check(algorithm, lambda fed, w: pfedme(fed, w, 0.3, 2.0, 0.2, 3, 1.5), sampling)


def test_pfedme_in_the_engine():
    """Clients side by side, all in the last round: the personal model of one with fewer steps stands still."""
    algorithm = fs.pFedMe(0.3, lam=2.0, personal_lr=0.2, personal_steps=3)
    check(algorithm, lambda fed, w: pfedme(fed, w, 0.3, 2.0, 0.2, 3, 1.0), SOME, engine, 5)


def perfedavg(fed, w, lr, alpha, delta):
    """Algorithm 1 with the cyclic minibatches of the docstring; delta None leaves the Hessian out."""

    def one(t, i, w):
        y, batches = w.copy(), fed.minibatches(t, i)
        for k, rows in enumerate(batches):
            first, third = batches[(k + 1) % len(batches)], batches[(k + 2) % len(batches)]
            d = fed.gradient(i, y - alpha * fed.gradient(i, y, first), rows)
            h = 0.0
            if delta is not None:
                h = fed.gradient(i, y + delta * d, third) - fed.gradient(i, y - delta * d, third)
                h = h / (2 * delta)
            y = y - lr * (d - alpha * h)
        return y, w - alpha * fed.gradient(i, w)

    return rounds(fed, w, "uniform", 1.0, one)


@EVERY
def test_perfedavg(sampling):
    algorithm = fs.PerFedAvg(0.3, alpha=0.4, delta=0.5)
    check(algorithm, lambda fed, w: perfedavg(fed, w, 0.3, 0.4, 0.5), sampling)


def test_perfedavg_of_first_order():
    algorithm = fs.PerFedAvg(0.3, alpha=0.4, variant="FO")
    check(algorithm, lambda fed, w: perfedavg(fed, w, 0.3, 0.4, None), SOME)


@pytest.mark.parametrize(
    ("algorithm", "lr", "work"),
    [
        (fs.PerFedAvg(0.3, alpha=0.0), 0.3, {"epochs": 2}),
        (fs.PerFedAvg(0.3, alpha=0.0, variant="FO"), 0.3, {"epochs": 2}),
        (fs.pFedMe(0.5, lam=2.0, personal_lr=0.3, personal_steps=1), 0.3, {"local_steps": 1}),
    ],
    ids=["HF", "FO", "pFedMe"],
)
def test_limits_are_fedavg(algorithm, lr, work):
    """alpha = 0; one local step with one step of the personal model, at the product of the rates."""
    clients = make_clients()
    run = play(algorithm, make_task(clients, **work), SOME, 10)
    want, _ = fedopt(
        federation(run, clients, **work), run.iterates[0], LocalSGD(lr), lambda w, d, *_: (w + d, 1.0)
    )
    assert displacement_error(run.iterates[1:], want[1:], run.iterates[0]) < CLOSE


@pytest.mark.parametrize("client", range(3))
def test_the_hessian_free_gradient_is_that_of_the_adapted_loss(client):
    """Of all examples: the derivative of f(y - alpha grad f(y)) along random directions."""
    from fedsolve.methods.personal_models import MetaOracle

    fed = federation_of_all()
    oracle, alpha = NumpyOracle(fed, client), 0.4
    rng = np.random.default_rng(client)
    y, v = rng.standard_normal((2, 15))
    _, gradient = MetaOracle(oracle, alpha, 1e-3).full(y)
    value = lambda y: fed.loss(client, y - alpha * fed.gradient(client, y))  # noqa: E731
    slope = (value(y + 1e-5 * v) - value(y - 1e-5 * v)) / 2e-5
    np.testing.assert_allclose(np.asarray(gradient) @ v, slope, rtol=1e-5)


def federation_of_all():
    from equations.transcript import Federation

    return Federation(make_clients(), [], None, 4)


class NumpyOracle(fs.Oracle):
    """All examples of one client, as NumPy has them."""

    def __init__(self, fed, client):
        self.fed, self.client, self.steps, self.bound = fed, client, 1, 1

    def full(self, params):
        params = np.asarray(params, float)
        return self.fed.loss(self.client, params), self.fed.gradient(self.client, params)

    def __call__(self, params, step):
        return self.full(params)

    def loss(self, params, step):
        return self.full(params)[0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fs.pFedMe(lam=0.0), "lam = 0.0 must be"),
        (lambda: fs.pFedMe(personal_lr=-1.0), "personal_lr = -1.0 must be"),
        (lambda: fs.pFedMe(personal_steps=0), "personal_steps = 0 must be"),
        (lambda: fs.PerFedAvg(alpha=-0.1), "alpha = -0.1 must be"),
        (lambda: fs.PerFedAvg(delta=0.0), "delta = 0.0 must be"),
        (lambda: fs.PerFedAvg(variant="SO"), "variant"),  # pyright: ignore[reportArgumentType]
        (lambda: fs.Moreau(fs.FedPer("b")), "personal models: one of the two is enough"),
        (lambda: fs.Meta(fs.FedBuff(0.1)), "its clients start from models of different age"),
        (lambda: fs.build("SCAFFOLD+PerFedAvg"), "build PerFedAvg around SCAFFOLD"),
    ],
)
def test_refusals(make, said):
    with pytest.raises(fs.InvalidInput, match=said):
        make()


def test_moreau_envelopes_refuse_what_asks_for_more_than_gradients():
    with pytest.raises(fs.InvalidInput, match="take a method of plain local steps such as FedAvg"):
        fs.run(fs.Moreau(fs.FedLiLS()), make_task(make_clients()), rounds=2, batch_size=4, epochs=1)
